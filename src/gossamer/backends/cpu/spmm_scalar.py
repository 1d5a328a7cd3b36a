"""Native kernel of ops/spmm_scalar.py."""

from __future__ import annotations

from torch import Tensor

from ... import memory
from ...native import library, num_threads
from ...ops._library import implement
from ...ops.csr import Sparse
from ...ops.spmm_scalar import spmm_scalar
from ._arguments import F32, as_float, at, contiguous, stepped


def _spmm_scalar(a: Sparse, codes: Tensor, table: Tensor, diagonal: Tensor | None, columns: int, bits: int) -> Tensor:
    rowptr, col, codes, table = contiguous(a.rowptr, a.col, codes, table)
    value, src_scale, dst_scale = (as_float(t) for t in (a.value, a.src_scale, a.dst_scale))
    diagonal, step = stepped(diagonal, a.num_dst)
    out = memory.empty([a.num_dst, columns], F32)
    library.spmm_scalar(
        at(rowptr), at(col), a.num_dst, at(value), at(src_scale), at(dst_scale), at(diagonal), step,
        at(codes), columns, bits, at(table), table.size(1) > 1, at(out), num_threads(),
    )  # fmt: skip
    return out


implement(spmm_scalar, "cpu", _spmm_scalar)
