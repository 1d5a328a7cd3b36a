"""Native kernels of ops/head_mean.py."""

from __future__ import annotations

from torch import Tensor

from ... import memory
from ...native import library, num_threads
from ...ops._library import implement
from ...ops.head_mean import head_mean_backward, head_mean_spmm_op
from ._arguments import F32, at, contiguous


def _head_mean_spmm(
    rowptr: Tensor, col: Tensor, value: Tensor, x: Tensor, bias: Tensor | None, *transposed: Tensor | None
) -> Tensor:
    if x.dtype != F32:
        return head_mean_spmm_op.reference(rowptr, col, value, x, bias, *transposed)
    rowptr, col, value, x, bias = contiguous(rowptr, col, value, x, bias)
    rows, heads = rowptr.numel() - 1, value.size(1)
    out = memory.empty([rows, x.size(1) // heads], F32)
    library.head_mean(
        at(rowptr), at(col), rows, at(value), at(x), at(bias), at(out), out.size(1), heads, num_threads()
    )  # fmt: skip
    return out


def _head_mean_backward(
    rowptr: Tensor, col: Tensor, perm: Tensor, value: Tensor, x: Tensor | None, dout: Tensor, needs_dx: bool,
    keep: Tensor | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    if dout.dtype != F32 or dout.size(1) == 0:  # without columns there is no dot product to write
        return head_mean_backward.reference(rowptr, col, perm, value, x, dout, needs_dx, keep)
    rowptr, col, perm, value, x, dout, keep = contiguous(rowptr, col, perm, value, x, dout, keep)
    num_src, (heads, width) = rowptr.numel() - 1, (value.size(1), dout.size(1))
    dx = memory.empty([num_src, heads * width], F32) if needs_dx else None
    dvalue = None if x is None else memory.empty(value.shape, F32)
    library.head_mean_backward(
        at(rowptr), at(col), num_src, at(perm), at(value), at(x), at(dout), at(keep), at(dx), at(dvalue),
        width, heads, num_threads(),
    )  # fmt: skip
    return dout.new_empty(0) if dx is None else dx, dout.new_empty(0) if dvalue is None else dvalue


implement(head_mean_spmm_op, "cpu", _head_mean_spmm)
implement(head_mean_backward, "cpu", _head_mean_backward)
