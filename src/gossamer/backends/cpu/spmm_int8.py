"""Native kernel of ops/spmm_int8.py."""

from __future__ import annotations

from torch import Tensor

from ...native import library
from ...ops._library import implement
from ...ops.spmm_int8 import of_sources, spmm_int8_op
from ._arguments import F32
from ._sums import sum_rows


def _spmm_int8(
    rowptr: Tensor, col: Tensor, value: Tensor | None, scale: Tensor, dst_scale: Tensor | None, codes: Tensor,
    src_scale: Tensor | None = None, bias: Tensor | None = None, diagonal: Tensor | None = None,
    rows: Tensor | None = None,
) -> Tensor:  # fmt: skip
    scale = scale.contiguous()
    sources = of_sources(scale, src_scale)
    return sum_rows(
        library.spmm_int8, rowptr, col, value, sources, dst_scale, codes, F32, bias, diagonal, rows, scale
    )  # fmt: skip


implement(spmm_int8_op, "cpu", _spmm_int8)
