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
    a: Sparse, x: Tensor, bias: Tensor | None, diagonal: Tensor | None, rows: Tensor | None,
    t_rowptr: Tensor | None, t_col: Tensor | None, t_perm: Tensor | None, t_value: Tensor | None,
    keep: Tensor | None = None,
) -> Tensor:  # fmt: skip
    kernel = {F32: library.spmm_f32, torch.bfloat16: library.spmm_bf16}.get(x.dtype)
    if kernel is None:
        return spmm_op.reference(a, x, bias, diagonal, rows, t_rowptr, t_col, t_perm, t_value, keep)
    return sum_rows(kernel, a, x, x.dtype, bias, diagonal, rows, keep=keep)


implement(spmm_op, "cpu", _spmm)
