"""One dot product of int8 rows per edge.

    out[e, h] = a_scale_i * b_scale_j * sum over the columns c of head h of a[i, c] b[j, c]      for e = (j -> i)

Both scales are constant along the sum, which is exact in int32: at most 133,144 columns to a head. It is the gradient
of a neighbour sum of int8 rows for the weights of its edges.
"""

from __future__ import annotations

import torch
from torch import Tensor

from . import _checks
from ._library import define
from .csr import row_of_edge
from .int8_linear import MAX_COLUMNS


def check_dots(
    rowptr: Tensor, col: Tensor, a: Tensor, a_scale: Tensor, b: Tensor, b_scale: Tensor, heads: int,
    of_a: str = "a", of_b: str = "b",
) -> None:  # fmt: skip
    """What dot products along edges ask of their operands, whatever those are called."""
    num_dst = rowptr.numel() - 1
    _checks.dtype_of(of_a, a, (torch.int8,))
    _checks.dtype_of(of_b, b, (torch.int8,))
    _checks.shape_of(of_a, a, (num_dst, None), f"[num_dst, columns] with num_dst = {num_dst}")
    _checks.shape_of(of_b, b, (None, a.size(1)), f"[num_src, columns] with {a.size(1)} columns, those of `{of_a}`")
    for name, scale, count in ((f"{of_a}_scale", a_scale, num_dst), (f"{of_b}_scale", b_scale, b.size(0))):
        _checks.dtype_of(name, scale, (torch.float32,))
        _checks.shape_of(name, scale, (count,), f"[{count}], one number per row")
    _checks.csr(rowptr, col, b.size(0))
    if heads < 1 or a.size(1) % heads:
        raise ValueError(f"`heads` must divide the number of columns, {a.size(1)} (got {heads})")
    width = a.size(1) // heads
    if width > MAX_COLUMNS:
        raise ValueError(
            f"`{of_a}` must have at most {MAX_COLUMNS} columns to a head, or int32 sums overflow (got {width}); "
            "split it"
        )


def _reference(
    rowptr: Tensor, col: Tensor, a: Tensor, a_scale: Tensor, b: Tensor, b_scale: Tensor, heads: int
) -> Tensor:
    row, source = row_of_edge(rowptr), col.long()
    product = a.int()[row] * b.int()[source]  # [nnz, columns]
    sums = product.view(col.numel(), heads, a.size(1) // heads).sum(2).to(torch.float32)
    return sums * (a_scale[row] * b_scale[source]).unsqueeze(1)


def _fake(rowptr: Tensor, col: Tensor, a: Tensor, a_scale: Tensor, b: Tensor, b_scale: Tensor, heads: int) -> Tensor:
    return a_scale.new_empty(col.size(0), heads)


sddmm_int8 = define(
    "sddmm_int8(Tensor rowptr, Tensor col, Tensor a, Tensor a_scale, Tensor b, Tensor b_scale, int heads) -> Tensor",
    check=check_dots,
    reference=_reference,
    fake=_fake,
)
