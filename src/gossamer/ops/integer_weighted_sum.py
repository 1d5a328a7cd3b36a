"""Sums of neighbours' codes by weights of edges that are codes themselves, requantised (ops/requantize.py).

    sum_ic = sum over edges e = (i, j) of w_e (q_jc - z) + own_i (q_ic - z)        exact
    out    = requantised from  float32(sum) * mult_c

w and own are codes of eight bits with the zero point 0: weights that are not negative. Sums run in int32, in int64
where a row has more than 32,768 edges. x may have more columns than the result.
"""

from __future__ import annotations

import torch
from torch import Tensor

from . import _checks
from ._library import define
from .csr import row_of_edge
from .requantize import (
    Requantize,
    check_code,
    check_codes,
    check_factors,
    check_requantize,
    columns_of,
    empty_like_requantized,
    requantized,
    unpacked,
)


def _check(
    rowptr: Tensor, col: Tensor, weight: Tensor, own: Tensor | None, x: Tensor, x_bits: int, x_zero: int, mult: Tensor,
    to: Requantize,
) -> None:  # fmt: skip
    check_codes("x", x, x_bits)
    check_code("x_zero", x_zero, x_bits)
    _checks.csr(rowptr, col, x.size(0))
    num_dst, columns = rowptr.numel() - 1, columns_of(x, x_bits)
    _checks.dtype_of("weight", weight, (torch.uint8,))
    _checks.shape_of("weight", weight, (col.numel(),), f"[{col.numel()}], one code per edge")
    if own is not None:
        _checks.dtype_of("own", own, (torch.uint8,))
        _checks.shape_of("own", own, (num_dst,), f"[{num_dst}], one code per row of the result")
        if num_dst > x.size(0):
            raise ValueError(f"`own` must be None where destinations are no sources (got {num_dst} and {x.size(0)})")
    check_factors("mult", mult)
    if mult.numel() > columns:
        raise ValueError(f"`mult` must have at most {columns} numbers, one per column of x (got {mult.numel()})")
    check_requantize(num_dst, mult.numel(), to)


def _reference(
    rowptr: Tensor, col: Tensor, weight: Tensor, own: Tensor | None, x: Tensor, x_bits: int, x_zero: int, mult: Tensor,
    to: Requantize,
) -> Tensor:  # fmt: skip
    codes = unpacked(x, x_bits)[:, : mult.numel()].long() - x_zero
    num_dst = rowptr.numel() - 1
    messages = weight.long().unsqueeze(1) * codes[col.long()]
    total = codes.new_zeros(num_dst, codes.size(1)).index_add(0, row_of_edge(rowptr), messages)
    if own is not None:
        total = total + own.long().unsqueeze(1) * codes[:num_dst]
    return requantized(total.float() * mult, to)


integer_weighted_sum = define(
    "integer_weighted_sum(Tensor rowptr, Tensor col, Tensor weight, Tensor? own, Tensor x, int x_bits, int x_zero, "
    "Tensor mult, Requantize) -> Tensor",
    check=_check,
    reference=_reference,
    fake=lambda rowptr, col, weight, own, x, x_bits, x_zero, mult, to: empty_like_requantized(
        x, rowptr.numel() - 1, mult.numel(), to
    ),
)
