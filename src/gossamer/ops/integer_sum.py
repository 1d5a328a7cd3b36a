"""Sums of neighbours' codes, requantised (ops/requantize.py): an unweighted aggregation of the integer engine.

    sum_ic = neighbours * (sum over edges (i, j) of q_jc - z) + own * (q_ic - z)      exact
    out    = requantised from  float32(sum) * mult_c

Means, and GCN's weights 1 / sqrt(d_i), are factors `row` of the result's rows; those of the sources, 1 / sqrt(d_j), are
in the codes. `neighbours` and `own` are fixed-point weights of the two parts: 256 and round(256 (1 + eps)) for GIN.
x may have more columns than the result. Sums run in int32, in int64 where d |neighbours| + |own| exceeds 2^31 / 255 for
a row of d edges; rows have fewer than 2^24 edges.
"""

from __future__ import annotations

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

MOST_EDGES = 2**24
"""Of one row: sums of codes fit 32 bits."""


def _check(
    rowptr: Tensor, col: Tensor, x: Tensor, x_bits: int, x_zero: int, neighbours: int, own: int, mult: Tensor,
    to: Requantize,
) -> None:  # fmt: skip
    check_codes("x", x, x_bits)
    check_code("x_zero", x_zero, x_bits)
    _checks.csr(rowptr, col, x.size(0))
    num_dst = rowptr.numel() - 1
    for name, value in (("neighbours", neighbours), ("own", own)):
        if not -(2**15) <= value <= 2**15:
            raise ValueError(f"`{name}` must be from {-(2**15)} to {2**15} (got {value})")
    if own and num_dst > x.size(0):
        raise ValueError(f"`own` must be 0 where destinations are no sources (got {num_dst} and {x.size(0)})")
    check_factors("mult", mult)
    columns = columns_of(x, x_bits)
    if mult.numel() > columns:
        raise ValueError(f"`mult` must have at most {columns} numbers, one per column of x (got {mult.numel()})")
    check_requantize(num_dst, mult.numel(), to)


def _reference(
    rowptr: Tensor, col: Tensor, x: Tensor, x_bits: int, x_zero: int, neighbours: int, own: int, mult: Tensor,
    to: Requantize,
) -> Tensor:  # fmt: skip
    codes = unpacked(x, x_bits)[:, : mult.numel()].long() - x_zero
    num_dst = rowptr.numel() - 1
    total = codes.new_zeros(num_dst, codes.size(1)).index_add(0, row_of_edge(rowptr), codes[col.long()]) * neighbours
    if own:
        total = total + own * codes[:num_dst]
    return requantized(total.float() * mult, to)


integer_sum = define(
    "integer_sum(Tensor rowptr, Tensor col, Tensor x, int x_bits, int x_zero, int neighbours, int own, Tensor mult, "
    "Requantize) -> Tensor",
    check=_check,
    reference=_reference,
    fake=lambda rowptr, col, x, x_bits, x_zero, neighbours, own, mult, to: empty_like_requantized(
        x, rowptr.numel() - 1, mult.numel(), to
    ),
)
