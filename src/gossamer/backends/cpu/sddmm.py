"""Native kernel of ops/sddmm.py."""

from __future__ import annotations

from torch import Tensor

from ... import memory
from ...native import library, num_threads
from ...ops._library import implement
from ...ops.sddmm import sddmm_op
from ._arguments import F32, at


def _sddmm(rowptr: Tensor, col: Tensor, a: Tensor, b: Tensor, heads: int, *transposed: Tensor | None) -> Tensor:
    if a.dtype != F32:
        return sddmm_op.reference(rowptr, col, a, b, heads, *transposed)
    rowptr, col, a, b = rowptr.contiguous(), col.contiguous(), a.contiguous(), b.contiguous()
    out = memory.empty([col.numel(), heads], F32)
    library.sddmm(at(rowptr), at(col), a.size(0), at(a), at(b), at(out), a.size(1), heads, num_threads())
    return out


implement(sddmm_op, "cpu", _sddmm)
