"""Calls that need nothing of PyTorch's dispatcher go to the kernel at once; all others go through it."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.overrides import TorchFunctionMode

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


class _Functions(TorchFunctionMode):
    """Notes which functions are called."""

    def __init__(self):
        super().__init__()
        self.called = []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.called.append(func)
        return func(*args, **(kwargs or {}))


def test_a_torch_function_mode_sees_the_op_and_not_its_kernel(direct):
    with _Functions() as functions:
        GATHER(torch.ones(3, 4), IDS)
    assert GATHER.overload in functions.called
    assert torch.empty not in functions.called
    assert direct == []


def test_a_default_device_is_not_that_of_the_result(direct):
    x = torch.randn(3, 4)
    with torch.device("meta"):
        out = GATHER(x, IDS)
    assert torch.equal(out, x[IDS])
    assert direct == []


def test_zeros_without_memory_go_through_the_dispatcher(direct):
    zeros = torch._efficientzerotensor(3, 4)  # what autograd makes of undefined tangents; it has no address
    assert torch.equal(GATHER(zeros, IDS), torch.zeros(2, 4))
    assert direct == []


def test_a_mode_that_is_active_during_import_is_seen_nevertheless():
    code = """
import torch
from torch.utils._python_dispatch import TorchDispatchMode

class Mode(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        called.append(str(func))
        return func(*args, **(kwargs or {}))

called = []
with Mode():
    from gossamer.ops import OPS
    OPS["gather_rows"](torch.ones(3, 4), torch.tensor([2, 0]))
assert "gossamer.gather_rows.default" in called, called
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_wrong_types_get_the_error_of_the_dispatcher(direct):
    x = torch.randn(3, 4)
    for wrong in ((x, [0]), (x, IDS, 1), (x,), (x, "0")):
        with pytest.raises((RuntimeError, TypeError), match="gather_rows"):
            GATHER(*wrong)
    with pytest.raises(IndexError, match="`ids` must hold ids from 0 to 2"):
        GATHER(x, torch.tensor([3]))
    assert direct == ["gather_rows"]
