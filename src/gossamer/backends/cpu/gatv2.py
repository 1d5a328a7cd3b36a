"""Native kernels of ops/gatv2.py."""

from __future__ import annotations

import torch
from torch import Tensor

from ... import memory
from ...native import library, num_threads
from ...ops._library import implement
from ...ops.gatv2 import gatv2_backward, gatv2_logits_op
from ._arguments import F32, at, row_sums_scratch


def _gatv2_logits(
    rowptr: Tensor, col: Tensor, x_src: Tensor, x_dst: Tensor, att: Tensor, slope: float, *transposed: Tensor | None
) -> Tensor:
    if x_src.dtype != F32:
        return gatv2_logits_op.reference(rowptr, col, x_src, x_dst, att, slope, *transposed)
    rowptr, col = rowptr.contiguous(), col.contiguous()
    x_src, x_dst, att = x_src.contiguous(), x_dst.contiguous(), att.contiguous()
    out = memory.empty([col.numel(), att.size(0)], F32)
    library.gatv2_logits(
        at(rowptr), at(col), x_dst.size(0), at(x_src), at(x_dst), at(att), slope, at(out),
        x_src.size(1), att.size(0), num_threads(),
    )  # fmt: skip
    return out


def _gatv2_backward(
    rowptr: Tensor, col: Tensor, x_src: Tensor, x_dst: Tensor, att: Tensor, slope: float,
    t_rowptr: Tensor, t_col: Tensor, t_perm: Tensor, dlogits: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    if x_src.dtype != F32 or x_src.size(1) == 0:  # without columns there is no memory to point a kernel to
        return gatv2_backward.reference(rowptr, col, x_src, x_dst, att, slope, t_rowptr, t_col, t_perm, dlogits)
    x_src, x_dst, att, dlogits = x_src.contiguous(), x_dst.contiguous(), att.contiguous(), dlogits.contiguous()
    dx_src, dx_dst, datt = memory.empty(x_src.shape, F32), memory.empty(x_dst.shape, F32), torch.zeros_like(att)
    scratch, ends = row_sums_scratch(*x_dst.shape), (x_src.size(1), att.size(0), num_threads())
    forward = (rowptr.contiguous(), col.contiguous(), None, x_dst, x_src, scratch, dx_dst, datt)
    backward = (t_rowptr.contiguous(), t_col.contiguous(), t_perm.contiguous(), x_src, x_dst, None, dx_src, None)
    for own_rowptr, own_col, perm, own, other, partial, dx, dweights in (forward, backward):
        library.gatv2_backward(
            at(own_rowptr), at(own_col), own.size(0), at(perm), at(own), at(other),
            at(att), slope, at(dlogits), at(partial), at(dx), at(dweights), *ends,
        )  # fmt: skip
    return dx_src, dx_dst, datt


implement(gatv2_logits_op, "cpu", _gatv2_logits)
implement(gatv2_backward, "cpu", _gatv2_backward)
