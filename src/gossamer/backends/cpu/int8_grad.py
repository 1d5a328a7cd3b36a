"""Native kernels of ops/int8_grad.py."""

from __future__ import annotations

from torch import Tensor

from ... import memory
from ...native import library, num_threads
from ...ops._library import implement
from ...ops.int8_grad import int8_grad, int8_grad_exact
from ._arguments import F32, MASK64, at, contiguous, enough


def _int8_grad(g: Tensor, g_scale: Tensor | None, codes: Tensor, scale: Tensor, seed: int) -> Tensor:
    (rows, columns), outs = codes.shape, g.size(1)
    if min(rows, columns, outs) == 0:
        return scale.new_zeros(outs, columns)
    g, codes = g.contiguous(), codes.contiguous()
    by_row = (scale if g_scale is None else scale * g_scale).contiguous()
    partial = memory.empty([library.grad_slabs(rows, outs, columns), outs, columns], F32)
    dw = memory.empty([outs, columns], F32)
    kernel = library.int8_grad_f32 if g_scale is None else library.int8_grad_int8
    ends = (at(partial), at(dw), rows, outs, columns, num_threads())
    enough(kernel(at(g), at(by_row), at(codes), seed & MASK64, *ends))
    return dw


def _int8_grad_exact(g: Tensor, codes: Tensor, scale: Tensor) -> Tensor:
    (rows, columns), outs = codes.shape, g.size(1)
    if min(rows, columns, outs) == 0:
        return scale.new_zeros(outs, columns)
    g, codes, scale = contiguous(g, codes, scale)
    partial = memory.empty([library.grad_slabs(rows, outs, columns), outs, columns], F32)
    dw = memory.empty([outs, columns], F32)
    given = (at(g), at(codes), at(scale), at(partial), at(dw))
    library.int8_grad_exact(*given, rows, outs, columns, num_threads())
    return dw


implement(int8_grad, "cpu", _int8_grad)
implement(int8_grad_exact, "cpu", _int8_grad_exact)
