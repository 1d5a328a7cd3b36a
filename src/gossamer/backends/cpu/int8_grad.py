"""Native kernels of ops/int8_grad.py."""

from __future__ import annotations

from torch import Tensor

from ... import memory
from ...native import library, num_threads
from ...ops._library import implement
from ...ops.int8_grad import int8_grad, int8_grad_exact
from ...ops.quantize_rows import QRows
from ._arguments import F32, MASK64, at, enough
from ._int8_rows import contiguous_rows


def _int8_grad(g: Tensor, g_scale: Tensor | None, x: QRows, seed: int) -> Tensor:
    codes, scale = contiguous_rows(x)
    (rows, columns), outs = codes.shape, g.size(1)
    if min(rows, columns, outs) == 0:
        return scale.new_zeros(outs, columns)
    g = g.contiguous()
    by_row = (scale if g_scale is None else scale * g_scale).contiguous()
    partial = memory.empty([library.grad_slabs(rows, outs, columns), outs, columns], F32)
    dw = memory.empty([outs, columns], F32)
    kernel = library.int8_grad_f32 if g_scale is None else library.int8_grad_int8
    ends = (at(partial), at(dw), rows, outs, columns, num_threads())
    enough(kernel(at(g), at(by_row), at(codes), seed & MASK64, *ends))
    return dw


def _int8_grad_exact(g: Tensor, x: QRows) -> Tensor:
    codes, scale = contiguous_rows(x)
    (rows, columns), outs = codes.shape, g.size(1)
    if min(rows, columns, outs) == 0:
        return scale.new_zeros(outs, columns)
    g = g.contiguous()
    partial = memory.empty([library.grad_slabs(rows, outs, columns), outs, columns], F32)
    dw = memory.empty([outs, columns], F32)
    given = (at(g), at(codes), at(scale), at(partial), at(dw))
    library.int8_grad_exact(*given, rows, outs, columns, num_threads())
    return dw


implement(int8_grad, "cpu", _int8_grad)
implement(int8_grad_exact, "cpu", _int8_grad_exact)
