"""Products of codes with integer weights, requantised (ops/requantize.py): a linear layer of the integer engine.

    sum_io = sum over k of x_ik w_ok + bias_o             exact in int32, modulo 2^32
    out    = requantised from  float32(sum) * mult_o
    of two products             float32(sum) * mult_o + float32(sum2) * mult2_o      one rounding for both

x holds codes of 8 or 4 bits, w int8. The zero point z of x is in the bias: bias_o = -z sum_k w_ok takes it out of the
sum; the layer's own bias is in the shift of the result. The products of up to 66,000 columns fit int32.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from . import _checks
from ._library import define
from ._structure import structure
from .requantize import (
    Requantize,
    check_codes,
    check_factors,
    check_requantize,
    columns_of,
    empty_like_requantized,
    requantized,
    unpacked,
)


@structure
class IntegerProduct(NamedTuple):
    """Codes and weights; `mult` is what the sums are multiplied by."""

    x: Tensor
    x_bits: int
    weight: Tensor
    bias: Tensor | None
    mult: Tensor


def _check_product(p: IntegerProduct, prefix: str = "") -> None:
    check_codes(prefix or "x", p.x, p.x_bits)
    columns = columns_of(p.x, p.x_bits)
    weight = f"{prefix}_weight" if prefix else "weight"
    _checks.dtype_of(weight, p.weight, (torch.int8,))
    _checks.shape_of(weight, p.weight, (None, columns), f"[outputs, {columns}], as many columns as x has codes")
    outs = p.weight.size(0)
    if p.bias is not None:
        bias = f"{prefix}_bias" if prefix else "bias"
        _checks.dtype_of(bias, p.bias, (torch.int32,))
        _checks.shape_of(bias, p.bias, (outs,), f"[{outs}], one number per output")
    mult = f"{prefix}_mult" if prefix else "mult"
    check_factors(mult, p.mult)
    _checks.shape_of(mult, p.mult, (outs,), f"[{outs}], one number per output")


def _sums(p: IntegerProduct) -> Tensor:
    """As float32, times their factors."""
    total = unpacked(p.x, p.x_bits).double() @ p.weight.double().t()  # exact: below 2^53
    whole = total.long() if p.bias is None else total.long() + p.bias
    return whole.to(torch.int32).float() * p.mult


def _check(p: IntegerProduct, to: Requantize) -> None:
    _check_product(p)
    check_requantize(p.x.size(0), p.weight.size(0), to)


integer_linear = define(
    "integer_linear(IntegerProduct, Requantize) -> Tensor",
    check=_check,
    reference=lambda p, to: requantized(_sums(p), to),
    fake=lambda p, to: empty_like_requantized(p.x, p.x.size(0), p.weight.size(0), to),
)


def _check_two(p: IntegerProduct, second: IntegerProduct, to: Requantize) -> None:
    _check(p, to)
    _check_product(second, "second")
    _checks.shape_of("second", second.x, (p.x.size(0), None), f"[{p.x.size(0)}, bytes], as many rows as x")
    outs = p.weight.size(0)
    columns = columns_of(second.x, second.x_bits)
    _checks.shape_of("second_weight", second.weight, (outs, columns), f"[{outs}, {columns}], as many outputs as weight")


integer_linear_two = define(
    "integer_linear_two(IntegerProduct, IntegerProduct second, Requantize) -> Tensor",
    check=_check_two,
    reference=lambda p, second, to: requantized(_sums(p) + _sums(second), to),
    fake=lambda p, second, to: empty_like_requantized(p.x, p.x.size(0), p.weight.size(0), to),
)
