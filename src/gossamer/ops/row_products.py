"""Products of rows in float32 that are functions of the row alone.

    out_io = b_o + sum_k x_ik W_ok        the sum over k in order, each term multiplied and added in one rounding (FMA)

A library's product orders its sums by the number of rows and threads and by the processor: encoded in other chunks, or
gathered in another batch, a row of features would get other bits. This order is fixed, so kernels and reference agree
to the bit. No result is -0. It is no slower than torch's product.
"""

from __future__ import annotations

import torch
from torch import Tensor

from . import _checks
from ._library import define


def _check(x: Tensor, weight: Tensor, bias: Tensor | None) -> None:
    _checks.dtype_of("x", x, (torch.float32,))
    _checks.shape_of("x", x, (None, None), "[rows, columns]")
    _checks.dtype_of("weight", weight, (torch.float32,))
    _checks.shape_of("weight", weight, (None, x.size(1)), f"[outputs, {x.size(1)}], as many columns as x")
    if bias is not None:
        _checks.dtype_of("bias", bias, (torch.float32,))
        _checks.shape_of("bias", bias, (weight.size(0),), f"[{weight.size(0)}], one number per output")


def _fused(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    """a b + c of float32 numbers, rounded once.

    float64 holds the product exactly; the sum is rounded to odd (its last bit says whether anything was lost), so that
    rounding it to float32 is as if it had been exact.
    """
    product, c = a.double() * b.double(), c.double()
    total = product + c
    back = total - product
    lost = (product - (total - back)) + (c - back)  # exactly: total + lost = product + c
    inexact = lost.abs() > 0  # not where it is NaN, as of infinities
    truncated = total.view(torch.int64) - (inexact & ((lost < 0) != (total < 0))).long()
    return (truncated | inexact.long()).view(torch.float64).float()


def _reference(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    sums = x.new_zeros(x.size(0), weight.size(0))
    for k in range(x.size(1)):
        sums = _fused(x[:, k : k + 1], weight[:, k], sums)
    return sums + (0.0 if bias is None else bias + 0.0)  # -0 + 0 = 0


row_products = define(
    "row_products(Tensor x, Tensor weight, Tensor? bias) -> Tensor",
    check=_check,
    reference=_reference,
    fake=lambda x, weight, bias: x.new_empty(x.size(0), weight.size(0)),
)
