"""Native kernel of ops/sddmm_int8.py."""

from __future__ import annotations

from torch import Tensor

from ... import memory
from ...native import library, num_threads
from ...ops._library import implement
from ...ops.quantize_rows import QRows
from ...ops.sddmm_int8 import sddmm_int8
from ._arguments import F32, at
from ._int8_rows import contiguous_rows


def _sddmm_int8(rowptr: Tensor, col: Tensor, a: QRows, b: QRows, heads: int) -> Tensor:
    rowptr, col, a, b = rowptr.contiguous(), col.contiguous(), contiguous_rows(a), contiguous_rows(b)
    out = memory.empty([col.numel(), heads], F32)
    rows = (at(a.codes), at(a.scale), at(b.codes), at(b.scale))
    num_dst, columns = a.codes.shape
    library.sddmm_int8(at(rowptr), at(col), num_dst, *rows, at(out), columns, heads, num_threads())
    return out


implement(sddmm_int8, "cpu", _sddmm_int8)
