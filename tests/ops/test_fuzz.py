"""Every op with random, mostly ill-formed arguments: the reference's result, or an error that names an argument.

A well-formed call is drawn first; then one argument, or none, is spoiled. Nothing here may crash, so the file is also
what the sanitizers run.
"""

from __future__ import annotations

import math
import re
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from gossamer import native
from gossamer.ops import OPS
from support import calls, calls_features, calls_int8, calls_integer, calls_layers
from support.calls import DTYPES, Draw
from support.compare import same, tensors_of, using

ISAS = native.available_isas() or [native.REFERENCE]
CALLS = calls.CALLS | calls_layers.CALLS | calls_int8.CALLS | calls_features.CALLS | calls_integer.CALLS
EXTREMES = (-(2**63), -(2**31), -1, 2**31 - 1, 2**31, 2**62)


def spoil_tensor(draw: Draw, x: Tensor) -> Tensor:
    kinds = ["dtype", "strided", "dimension", "empty", "longer", "shorter", "transposed", "one number"]
    whole = x.numel() and not x.is_floating_point() and x.dtype != torch.bool
    kind = draw(st.sampled_from([*kinds, *(["value"] * 4 if whole else [])]))
    if kind == "value":
        at, spoiled = draw(st.integers(0, x.numel() - 1)), x.clone()
        limits = torch.iinfo(x.dtype)
        value = draw(st.integers(-9, 40) | st.sampled_from(EXTREMES))
        spoiled.view(-1)[at] = min(max(value, limits.min), limits.max)
        return spoiled
    return {
        "dtype": lambda: x.to(draw(st.sampled_from(DTYPES))),
        "strided": lambda: torch.stack([x, x], -1)[..., 1],
        "dimension": lambda: x.unsqueeze(draw(st.integers(0, x.dim()))),
        "empty": lambda: x[:0],
        "longer": lambda: torch.cat([x, x[-1:]]),
        "shorter": lambda: x[:-1],
        "transposed": lambda: x.transpose(0, -1),
        "one number": lambda: x.sum(dtype=x.dtype),
    }[kind]()


def spoil(draw: Draw, value: Any) -> Any:
    if isinstance(value, Tensor):
        return spoil_tensor(draw, value)
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, list):
        at = draw(st.integers(0, len(value)))
        return value[:-1] if at == len(value) else [*value[:at], spoil(draw, value[at]), *value[at + 1 :]]
    if isinstance(value, float):
        return draw(st.sampled_from([-1.0, -1e-9, 1.0 + 1e-9, 2.0, math.nan, math.inf]))
    return draw(st.integers(-5, 40) | st.sampled_from([-(2**63), -(2**31), 1000]))


def assert_same(actual: Any, expected: Any) -> None:
    """Shapes, types and integers equal; sums of a few dozen numbers of size 1 to 127 near."""
    for a, b in zip(tensors_of(actual), tensors_of(expected), strict=True):
        near = {"rtol": 1e-2, "atol": 1e-2} if a.dtype == torch.bfloat16 else {"rtol": 1e-4, "atol": 1e-3}
        torch.testing.assert_close(a, b, equal_nan=True, **(near if a.is_floating_point() else {"rtol": 0, "atol": 0}))


def written_by(name: str) -> list[int]:
    """The positions of the arguments that an op writes into."""
    aliases = [argument.alias_info for argument in OPS[name].overload._schema.arguments]
    return [k for k, alias in enumerate(aliases) if alias is not None and alias.is_write]


def test_all_ops_are_here():
    assert set(CALLS) == set(OPS)


@pytest.mark.parametrize("name", CALLS)
@settings(max_examples=150, deadline=None, derandomize=True, database=None)
@given(data=st.data())
def test_the_references_result_or_an_error_that_names_an_argument(name, data):
    args = CALLS[name](data.draw)
    if (at := data.draw(st.integers(-2, len(args) - 1))) >= 0:
        args[at] = spoil(data.draw, args[at])
    copy = [arg.clone() if k in written_by(name) else arg for k, arg in enumerate(args)]
    with using(data.draw(st.sampled_from(ISAS))):
        try:
            out = OPS[name](*args)
        except (ValueError, TypeError, IndexError, RuntimeError) as error:
            names = [argument.name for argument in OPS[name].overload._schema.arguments]
            named = re.findall(r"`(\w+)(?:\[\d+\])?`|argument '(\w+)'", str(error))
            assert any(n in names for pair in named for n in pair), error
            return
    assert_same(out, OPS[name].reference(*copy))
    assert_same([args[k] for k in written_by(name)], [copy[k] for k in written_by(name)])


@pytest.mark.parametrize("name", CALLS)
@settings(max_examples=12, deadline=None, derandomize=True, database=None)
@given(data=st.data())
def test_torchs_default_dtype_changes_nothing(name, data):
    """What a kernel writes to has the type that the kernel writes."""
    args = CALLS[name](data.draw)
    again = [arg.clone() if k in written_by(name) else arg for k, arg in enumerate(args)]
    want = OPS[name](*args)
    torch.set_default_dtype(torch.float64)
    try:
        assert same(OPS[name](*again), want)
        assert same([again[k] for k in written_by(name)], [args[k] for k in written_by(name)])
    finally:
        torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize("name", CALLS)
@settings(max_examples=6, deadline=None, derandomize=True, database=None)
@given(data=st.data())
def test_a_tensor_of_another_device_is_refused(name, data):
    """By the kernel, by the reference and by the shape rule, which PyTorch asks where it sees a meta tensor: what comes
    back then is memory that nobody wrote."""
    args = list(OPS[name].flatten(*CALLS[name](data.draw)))
    tensors = [k for k, arg in enumerate(args) if isinstance(arg, Tensor)]
    lists = [k for k, arg in enumerate(args) if isinstance(arg, list) and arg and isinstance(arg[0], Tensor)]
    if len(tensors) + len(lists) < 2:
        return
    at = data.draw(st.sampled_from(tensors + lists))
    args[at] = args[at].to("meta") if at in tensors else [*args[at][:-1], args[at][-1].to("meta")]
    moved = OPS[name].overload._schema.arguments[at].name
    message = rf"(`{moved}` and `\w+`|`\w+` and `{moved}`) must be on one device \(got (cpu and meta|meta and cpu)"
    for call in (OPS[name], OPS[name].overload):
        with pytest.raises(ValueError, match=message):
            call(*args)
    with FakeTensorMode(allow_non_fake_inputs=True) as mode, pytest.raises(ValueError, match=message):
        OPS[name].overload(*[mode.from_tensor(arg) if isinstance(arg, Tensor) else arg for arg in args])
