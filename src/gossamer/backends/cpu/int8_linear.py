"""Native kernels of ops/int8_linear.py."""

from __future__ import annotations

from torch import Tensor

from ... import memory
from ...native import library, num_threads
from ...ops._library import implement
from ...ops.int8_linear import int8_linear_op, int8_linear_plus, int8_linear_two
from ...ops.quantize_rows import QRows
from ._arguments import F32, as_float, at, contiguous, enough
from ._int8_rows import NO_TERMS, contiguous_rows


def _int8_linear(x: QRows, w: QRows, bias: Tensor | None, rows: Tensor | None = None) -> Tensor:
    out = memory.empty([x.codes.size(0), w.codes.size(0)], F32)
    if out.numel() == 0:  # it has no address, by which the kernel would know that floats are wanted
        return out
    x, w, (bias, rows) = contiguous_rows(x), contiguous_rows(w), contiguous(as_float(bias), as_float(rows))
    operands = (at(x.codes), at(x.scale), at(w.codes), at(w.scale), at(bias))
    given = (*operands, at(rows), at(out), 0, 0, 0, False, 0)
    enough(library.int8_linear(*given, *NO_TERMS, *x.codes.shape, w.codes.size(0), num_threads()))
    return out


def _int8_linear_two(x: QRows, w: QRows, bias: Tensor | None, x2: QRows, w2: QRows, bias2: Tensor | None) -> Tensor:
    out = memory.empty([x.codes.size(0), w.codes.size(0)], F32)
    if out.numel() == 0:
        return out
    x, w, x2, w2 = (contiguous_rows(rows) for rows in (x, w, x2, w2))
    bias, bias2 = contiguous(as_float(bias), as_float(bias2))
    one = (at(x.codes), at(x.scale), at(w.codes), at(w.scale), at(bias), x.codes.size(1))
    two = (at(x2.codes), at(x2.scale), at(w2.codes), at(w2.scale), at(bias2), x2.codes.size(1))
    enough(library.int8_linear_two(*one, *two, at(out), *out.shape, num_threads()))
    return out


def _int8_linear_plus(x: QRows, w: QRows, left: Tensor, right: Tensor) -> Tensor:
    out = memory.empty([x.codes.size(0), w.codes.size(0)], F32)
    if out.numel() == 0:
        return out
    x, w, (left, right) = contiguous_rows(x), contiguous_rows(w), contiguous(left, right)
    given = (at(x.codes), at(x.scale), at(w.codes), at(w.scale), at(left), at(right), left.size(1))
    enough(library.int8_linear_plus(*given, at(out), *x.codes.shape, w.codes.size(0), num_threads()))
    return out


implement(int8_linear_op, "cpu", _int8_linear)
implement(int8_linear_two, "cpu", _int8_linear_two)
implement(int8_linear_plus, "cpu", _int8_linear_plus)
