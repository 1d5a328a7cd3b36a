"""The weight gradient of a product of neighbour sums: dW = g^T (A x + root x), in float32.

The sums (ops/spmm.py) are made a few rows at a time and multiplied while they are in the cache: they never exist as a
whole, and reading them again costs nothing. Bits do not depend on the number of threads (ops/weight_grad.py).
"""

from __future__ import annotations

import torch
from torch import Tensor

from . import _checks
from ._library import define
from .spmm import spmm_op


def _check(
    g: Tensor, rowptr: Tensor, col: Tensor, value: Tensor | None, src_scale: Tensor | None, dst_scale: Tensor | None,
    x: Tensor, root: float,
) -> None:  # fmt: skip
    _checks.dtype_of("x", x, (torch.float32, torch.float64))
    spmm_op.check(rowptr, col, value, src_scale, dst_scale, x, None, root, None, None, None, None, None)
    num_dst = rowptr.numel() - 1
    _checks.dtype_of("g", g, (x.dtype,))
    _checks.shape_of("g", g, (num_dst, None), f"[{num_dst}, outputs], a row for each sum")


def _reference(
    g: Tensor, rowptr: Tensor, col: Tensor, value: Tensor | None, src_scale: Tensor | None, dst_scale: Tensor | None,
    x: Tensor, root: float,
) -> Tensor:  # fmt: skip
    summed = (rowptr, col, value, src_scale, dst_scale, x, None, root, None, None, None, None, None)
    return torch.mm(g.t(), spmm_op.reference(*summed))


spmm_weight_grad = define(
    "spmm_weight_grad(Tensor g, Tensor rowptr, Tensor col, Tensor? value, Tensor? src_scale, Tensor? dst_scale, "
    "Tensor x, float root) -> Tensor",
    check=_check,
    reference=_reference,
    fake=lambda g, rowptr, col, value, src_scale, dst_scale, x, root: x.new_empty(g.size(1), x.size(1)),
)
