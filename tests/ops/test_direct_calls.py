"""Calls that need nothing of PyTorch's dispatcher go to the kernel at once; all others go through it."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from gossamer.ops import OPS, _library
from support.traces import Calls

GATHER = OPS["gather_rows"]
IDS = torch.tensor([2, 0])


@pytest.fixture
def direct(monkeypatch):
    """The names of the ops whose kernels were called without the dispatcher."""
    if not _library._kernels:
        pytest.skip("needs native kernels")
    names: list[str] = []

    def noting(name, kernel):
        return lambda *args: (names.append(name), kernel(*args))[1]

    watched = {name: noting(name, kernel) for name, kernel in _library._kernels.items()}
    monkeypatch.setattr(_library, "_kernels", watched)
    return names


def test_plain_tensors_go_to_the_kernel(direct):
    x = torch.randn(3, 4)
    assert torch.equal(GATHER(x, IDS), x[IDS])
    with torch.no_grad():
        GATHER(nn.Parameter(x), IDS)
    with torch.inference_mode():
        GATHER(torch.randn(3, 4), IDS)
    assert direct == ["gather_rows"] * 3


def test_defaults_are_filled_in(direct):
    rowptr, col, x = torch.tensor([0, 2, 2]), torch.tensor([0, 1], dtype=torch.int32), torch.randn(2, 3)
    args = (rowptr, col, *[None] * 3, x, *[None] * 7)  # without the last, `keep`
    sums = OPS["spmm"](*args)
    assert direct == ["spmm"]
    assert torch.equal(sums, OPS["spmm"].overload(*args))


def test_everything_else_goes_through_the_dispatcher(direct):
    x = torch.randn(3, 4)
    assert GATHER(x.clone().requires_grad_(), IDS).grad_fn is not None
    assert GATHER(x.to("meta"), IDS.to("meta")).is_meta
    negative = torch.randn(3, 4, dtype=torch.complex64).conj().imag
    assert negative.is_neg() and torch.equal(GATHER(negative, IDS), negative[IDS])
    with Calls() as calls:
        GATHER(x, IDS)
    assert calls.names == ["gather_rows"]
    with FakeTensorMode() as mode:
        GATHER(mode.from_tensor(x), mode.from_tensor(IDS))
    with torch.profiler.profile() as profile:
        GATHER(x, IDS)
    assert "gossamer::gather_rows" in {event.name for event in profile.events()}
    assert direct == []


def test_wrong_types_get_the_error_of_the_dispatcher(direct):
    x = torch.randn(3, 4)
    for wrong in ((x, [0]), (x, IDS, 1), (x,), (x, "0")):
        with pytest.raises((RuntimeError, TypeError), match="gather_rows"):
            GATHER(*wrong)
    with pytest.raises(IndexError, match="`ids` must hold ids from 0 to 2"):
        GATHER(x, torch.tensor([3]))
    assert direct == ["gather_rows"]
