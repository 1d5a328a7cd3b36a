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
from .quantize_rows import QRows


def check_dots(rowptr: Tensor, col: Tensor, a: QRows, b: QRows, heads: int, of_a: str = "a", of_b: str = "b") -> None:
    """What dot products along edges ask of their operands, whatever those are called."""
    num_dst = rowptr.numel() - 1
    _checks.dtype_of(of_a, a.codes, (torch.int8,))
    _checks.dtype_of(of_b, b.codes, (torch.int8,))
    _checks.shape_of(of_a, a.codes, (num_dst, None), f"[num_dst, columns] with num_dst = {num_dst}")
    columns = a.codes.size(1)
    _checks.shape_of(of_b, b.codes, (None, columns), f"[num_src, columns] with {columns} columns, those of `{of_a}`")
    num_src = b.codes.size(0)
    for name, scale, count in ((f"{of_a}_scale", a.scale, num_dst), (f"{of_b}_scale", b.scale, num_src)):
        _checks.dtype_of(name, scale, (torch.float32,))
        _checks.shape_of(name, scale, (count,), f"[{count}], one number per row")
    _checks.csr(rowptr, col, num_src)
    if heads < 1 or columns % heads:
        raise ValueError(f"`heads` must divide the number of columns, {columns} (got {heads})")
    width = columns // heads
    if width > MAX_COLUMNS:
        raise ValueError(
            f"`{of_a}` must have at most {MAX_COLUMNS} columns to a head, or int32 sums overflow (got {width}); "
            "split it"
        )


def _reference(rowptr: Tensor, col: Tensor, a: QRows, b: QRows, heads: int) -> Tensor:
    row, source = row_of_edge(rowptr), col.long()
    product = a.codes.int()[row] * b.codes.int()[source]  # [nnz, columns]
    sums = product.view(col.numel(), heads, a.codes.size(1) // heads).sum(2).to(torch.float32)
    return sums * (a.scale[row] * b.scale[source]).unsqueeze(1)


def _fake(rowptr: Tensor, col: Tensor, a: QRows, b: QRows, heads: int) -> Tensor:
    return a.scale.new_empty(col.size(0), heads)


sddmm_int8 = define(
    "sddmm_int8(Tensor rowptr, Tensor col, QRows a, QRows b, int heads) -> Tensor",
    check=check_dots,
    reference=_reference,
    fake=_fake,
)
