"""Native kernel of ops/spmm.py."""

from __future__ import annotations

import torch
from torch import Tensor

from ...native import library
from ...ops._library import implement
from ...ops.csr import Sparse
from ...ops.spmm import spmm_op
from ._arguments import F32
from ._sums import sum_rows


def _spmm(
    a: Sparse, x: Tensor, bias: Tensor | None, diagonal: Tensor | None, rows: Tensor | None, *transposed: Tensor | None
) -> Tensor:
    kernel = {F32: library.spmm_f32, torch.bfloat16: library.spmm_bf16}.get(x.dtype)
    if kernel is None:
        return spmm_op.reference(a, x, bias, diagonal, rows, *transposed)
    return sum_rows(kernel, a, x, x.dtype, bias, diagonal, rows)


implement(spmm_op, "cpu", _spmm)
