"""GAT's attention and weighted sum on codes, in integers, requantised (ops/requantize.py).

    l_ij = leaky(a_src_j + a_dst_i + edge_ij)             float32, per head; absent terms count 0
    e_ij = TABLE[min(rne((max_i l - l_ij) / STEP), 1023)]         TABLE[t] = rne(255 exp(-t STEP)), 0 .. 255
    num_ic = sum over j of e_ij (q_jc - z)                den_i = sum over j of e_ij        exact
    out_ic = requantised from  (float32(num_ic) * (1 / float32(den_i))) * mult_c
    with `mean`                (sum over heads of float32(num) * (1 / float32(den))) * mult_c     as wide as one head

x has as many columns for each head, of which the first `width` count. Columns of `mult` beyond those of the result hold
the zero point.

The largest neighbour of a node always has the code 255, so weights are as exact for a node with a thousand equal
neighbours as for one with two: normalised weights with a fixed scale would round to zero there. A node without edges
gets 0. Sums are exact for any degree: int32 up to 32,768 edges, int64 beyond.
"""

from __future__ import annotations

import functools
import math

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

STEP = 2.0**-7
TABLE_SIZE = 1024


@functools.cache
def _table() -> tuple[int, ...]:
    return tuple(round(255 * math.exp(-t * STEP)) for t in range(TABLE_SIZE))


@functools.cache
def attention_table(device: torch.device) -> Tensor:
    """TABLE, uint8."""
    return torch.tensor(_table(), dtype=torch.uint8, device=device)


def attention_codes(
    rowptr: Tensor, col: Tensor, a_src: Tensor, a_dst: Tensor | None, edge: Tensor | None, slope: float
) -> Tensor:
    """e of each edge and head, uint8 [nnz, heads]."""
    row = row_of_edge(rowptr)
    logits = a_src[col.long()]
    logits = logits if a_dst is None else logits + a_dst[row]
    logits = logits if edge is None else logits + edge
    logits = torch.where(logits < 0, logits * slope, logits)
    if not len(logits):
        return logits.to(torch.uint8)
    top = torch.segment_reduce(logits, "max", offsets=rowptr, axis=0)
    steps = ((top[row] - logits) * (1 / STEP)).round().clamp(max=TABLE_SIZE - 1)
    return attention_table(logits.device)[steps.long()]


def _check(
    rowptr: Tensor, col: Tensor, a_src: Tensor, a_dst: Tensor | None, edge: Tensor | None, leak: float, x: Tensor,
    x_bits: int, x_zero: int, width: int, mean: bool, mult: Tensor, to: Requantize,
) -> None:  # fmt: skip
    check_codes("x", x, x_bits)
    check_code("x_zero", x_zero, x_bits)
    _checks.csr(rowptr, col, x.size(0))
    num_dst = rowptr.numel() - 1
    _checks.dtype_of("a_src", a_src, (torch.float32,))
    _checks.shape_of("a_src", a_src, (x.size(0), None), f"[{x.size(0)}, heads], one row per row of x")
    heads = a_src.size(1)
    for name, tensor, rows in (("a_dst", a_dst, num_dst), ("edge", edge, col.numel())):
        if tensor is not None:
            _checks.dtype_of(name, tensor, (torch.float32,))
            _checks.shape_of(name, tensor, (rows, heads), f"[{rows}, {heads}]")
    if not 0 <= leak <= 1:
        raise ValueError(f"`leak` must be from 0 to 1, the slope of leaky ReLU (got {leak})")
    columns = columns_of(x, x_bits)
    if not 1 <= heads <= 64 or columns % heads:
        raise ValueError(f"`a_src` must have from 1 to 64 heads that divide the {columns} columns of x (got {heads})")
    check_factors("mult", mult)
    if not 1 <= width <= columns // heads:
        raise ValueError(f"`width` must be from 1 to {columns // heads}, the columns of one head (got {width})")
    if mult.numel() < (width if mean else heads * width):
        raise ValueError(
            f"`mult` must have at least {width if mean else heads * width} numbers, one per column of the result (got "
            f"{mult.numel()})"
        )
    check_requantize(num_dst, mult.numel(), to)


def _reference(
    rowptr: Tensor, col: Tensor, a_src: Tensor, a_dst: Tensor | None, edge: Tensor | None, leak: float, x: Tensor,
    x_bits: int, x_zero: int, width: int, mean: bool, mult: Tensor, to: Requantize,
) -> Tensor:  # fmt: skip
    heads, row, num_dst = a_src.size(1), row_of_edge(rowptr), rowptr.numel() - 1
    weights = attention_codes(rowptr, col, a_src, a_dst, edge, leak).long()
    stored = columns_of(x, x_bits) // heads
    codes = (unpacked(x, x_bits).long() - x_zero).view(x.size(0), heads, stored)[:, :, :width]
    num = codes.new_zeros(num_dst, heads, width).index_add(0, row, weights.unsqueeze(2) * codes[col.long()])
    den = weights.new_zeros(num_dst, heads).index_add(0, row, weights)
    shares = num.float() * den.clamp(min=1).float().reciprocal().unsqueeze(2)
    if mean:
        t = shares[:, 0]
        for h in range(1, heads):
            t = t + shares[:, h]
    else:
        t = shares.flatten(1)
    t = torch.nn.functional.pad(t, (0, mult.numel() - t.size(1)))
    return requantized(t * mult, to)


integer_attention = define(
    "integer_attention(Tensor rowptr, Tensor col, Tensor a_src, Tensor? a_dst, Tensor? edge, float leak, Tensor x, "
    "int x_bits, int x_zero, int width, bool mean, Tensor mult, Requantize) -> Tensor",
    check=_check,
    reference=_reference,
    fake=lambda rowptr, col, a_src, a_dst, edge, leak, x, x_bits, x_zero, width, mean, mult, to: empty_like_requantized(
        x, rowptr.numel() - 1, mult.numel(), to
    ),
)
