"""Native kernel of ops/sddmm_int8.py."""

from __future__ import annotations

from torch import Tensor

from ... import memory
from ...native import library, num_threads
from ...ops._library import implement
from ...ops.sddmm_int8 import sddmm_int8
from ._arguments import F32, at, contiguous


def _sddmm_int8(
    rowptr: Tensor, col: Tensor, a: Tensor, a_scale: Tensor, b: Tensor, b_scale: Tensor, heads: int
) -> Tensor:
    rowptr, col, a, a_scale, b, b_scale = contiguous(rowptr, col, a, a_scale, b, b_scale)
    out = memory.empty([col.numel(), heads], F32)
    rows = (at(a), at(a_scale), at(b), at(b_scale))
    library.sddmm_int8(at(rowptr), at(col), a.size(0), *rows, at(out), a.size(1), heads, num_threads())
    return out


implement(sddmm_int8, "cpu", _sddmm_int8)
