"""Neighbour sums of rows: how `spmm` and `spmm_int8` call their kernels."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ... import memory
from ...native import num_threads
from ...ops._sum_checks import heads_of
from ...ops.csr import Sparse
from ...ops.row_selection import kept_matrix
from ._arguments import as_float, at, enough, stepped


def without_heads(a: Sparse, keep: Tensor | None) -> tuple[Sparse, Tensor | None]:
    """What kernels take: a matrix with a mask of its sources, which has one head, or a matrix without."""
    if keep is None or heads_of(a.value) == 1:
        return a, None if keep is None else keep.contiguous()
    return kept_matrix(a, keep), None


def sum_rows(
    kernel: Callable[..., bool], a: Sparse, x: Tensor, dtype: torch.dtype, bias: Tensor | None = None,
    diagonal: Tensor | None = None, rows: Tensor | None = None, own_scale: Tensor | None = None,
    keep: Tensor | None = None,
) -> Tensor:  # fmt: skip
    a, keep = without_heads(a, keep)
    rowptr, col, x, num_dst = a.rowptr.contiguous(), a.col.contiguous(), x.contiguous(), a.num_dst
    value, src_scale, dst_scale, bias, rows = (as_float(t) for t in (a.value, a.src_scale, a.dst_scale, bias, rows))
    diagonal, step = stepped(diagonal, num_dst)
    out = memory.empty([num_dst, x.size(1)], dtype)
    done = kernel(
        at(rowptr), at(col), num_dst, at(value), at(src_scale), at(dst_scale), heads_of(value), at(keep),
        at(bias), at(diagonal), step, at(rows), at(own_scale), at(x), at(out), x.size(1), num_threads(),
    )  # fmt: skip
    enough(done)
    return out
