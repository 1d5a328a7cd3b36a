"""Native kernels of ops/csr.py."""

from __future__ import annotations

import torch
from torch import Tensor

from ... import memory
from ...native import library, num_threads
from ...ops import _checks
from ...ops._library import implement
from ...ops.csr import coo_to_csr, count_loops, split_loops, transpose_csr, without
from ._arguments import at


def _coo_to_csr(dst: Tensor, src: Tensor, num_dst: int, num_src: int) -> tuple[Tensor, Tensor, Tensor]:
    dst, src, nnz = dst.contiguous(), src.contiguous(), dst.numel()
    rowptr = memory.empty([num_dst + 1], torch.int64)
    col, perm = memory.empty([nnz], torch.int32), memory.empty([nnz], torch.int64)
    bad = library.coo_to_csr(
        at(dst),
        at(src),
        dst.element_size(),
        nnz,
        num_dst,
        num_src,
        at(rowptr),
        at(col),
        at(perm),
        num_threads(),
    )
    if bad >= 0:
        _checks.ids_within("src", src, num_src, "source nodes")
        _checks.ids_within("dst", dst, num_dst, "destination nodes")
    return rowptr, col, perm


def _transpose_csr(rowptr: Tensor, col: Tensor, num_src: int) -> tuple[Tensor, Tensor, Tensor]:
    rowptr, col, nnz = rowptr.contiguous(), col.contiguous(), col.numel()
    t_rowptr = memory.empty([num_src + 1], torch.int64)
    t_col, t_perm = memory.empty([nnz], torch.int32), memory.empty([nnz], torch.int64)
    library.transpose_csr(
        at(rowptr),
        at(col),
        rowptr.numel() - 1,
        num_src,
        at(t_rowptr),
        at(t_col),
        at(t_perm),
        num_threads(),
    )
    return t_rowptr, t_col, t_perm


def _count_loops(rowptr: Tensor, col: Tensor) -> Tensor:
    rowptr, col, rows = rowptr.contiguous(), col.contiguous(), rowptr.numel() - 1
    loops = torch.empty(rows, dtype=torch.int64)
    library.count_loops(at(rowptr), at(col), rows, at(loops), num_threads())
    return loops


def _split_loops(rowptr: Tensor, col: Tensor, value: Tensor | None) -> tuple[Tensor, ...]:
    rowptr, col, value = rowptr.contiguous(), col.contiguous(), None if value is None else value.contiguous()
    kept_rowptr = without(rowptr, _count_loops(rowptr, col))
    left = int(kept_rowptr[-1])
    kept_col, diagonal = memory.empty([left], torch.int32), torch.empty(rowptr.numel() - 1, dtype=torch.float32)
    kept_value = memory.empty([0 if value is None else left], torch.float32)
    library.split_loops(
        at(rowptr), at(col), rowptr.numel() - 1, at(value), at(kept_rowptr), at(kept_col), at(kept_value), at(diagonal),
        num_threads(),
    )  # fmt: skip
    return kept_rowptr, kept_col, kept_value, diagonal


implement(coo_to_csr, "cpu", _coo_to_csr)
implement(transpose_csr, "cpu", _transpose_csr)
implement(count_loops, "cpu", _count_loops)
implement(split_loops, "cpu", _split_loops)
