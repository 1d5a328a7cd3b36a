"""Native kernel of ops/spmm_int8.py."""

from __future__ import annotations

from torch import Tensor

from ...native import library
from ...ops._library import implement
from ...ops.csr import Sparse
from ...ops.quantize_rows import QRows
from ...ops.spmm_int8 import of_codes, spmm_int8_op
from ._arguments import F32
from ._int8_rows import contiguous_rows
from ._sums import sum_rows


def _spmm_int8(
    a: Sparse, x: QRows, bias: Tensor | None = None, diagonal: Tensor | None = None, rows: Tensor | None = None,
    keep: Tensor | None = None,
) -> Tensor:  # fmt: skip
    x = contiguous_rows(x)
    return sum_rows(library.spmm_int8, of_codes(a, x), x.codes, F32, bias, diagonal, rows, x.scale, keep)


implement(spmm_int8_op, "cpu", _spmm_int8)
