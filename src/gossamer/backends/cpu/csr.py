"""Native kernels of ops/csr.py."""

from __future__ import annotations

import torch
from torch import Tensor

from ... import memory
from ...native import library, num_threads
from ...ops import _checks
from ...ops._library import implement
from ...ops.csr import coo_to_csr, transpose_csr
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


implement(coo_to_csr, "cpu", _coo_to_csr)
implement(transpose_csr, "cpu", _transpose_csr)
