"""Native kernels of ops/int8_linear.py."""

from __future__ import annotations

from torch import Tensor

from ... import memory
from ...native import library, num_threads
from ...ops._library import implement
from ...ops.int8_linear import int8_linear_op, int8_linear_plus, int8_linear_two
from ._arguments import F32, as_float, at, contiguous, enough
from ._int8_rows import NO_TERMS


def _int8_linear(
    x: Tensor, x_scale: Tensor, w: Tensor, w_scale: Tensor, bias: Tensor | None, rows: Tensor | None = None
) -> Tensor:
    out = memory.empty([x.size(0), w.size(0)], F32)
    if out.numel() == 0:  # it has no address, by which the kernel would know that floats are wanted
        return out
    x, x_scale, w, w_scale, bias, rows = contiguous(x, x_scale, w, w_scale, as_float(bias), as_float(rows))
    given = (at(x), at(x_scale), at(w), at(w_scale), at(bias), at(rows), at(out), 0, 0, 0, False, 0)
    enough(library.int8_linear(*given, *NO_TERMS, *x.shape, w.size(0), num_threads()))
    return out


def _int8_linear_two(*args: Tensor | None) -> Tensor:
    products = [contiguous(*product[:4], as_float(product[4])) for product in (args[:5], args[5:])]
    (x, _, w, *_), _ = products
    out = memory.empty([x.size(0), w.size(0)], F32)
    if out.numel() == 0:
        return out
    given = [number for product in products for number in (*(at(tensor) for tensor in product), product[0].size(1))]
    enough(library.int8_linear_two(*given, at(out), *out.shape, num_threads()))
    return out


def _int8_linear_plus(x: Tensor, x_scale: Tensor, w: Tensor, w_scale: Tensor, left: Tensor, right: Tensor) -> Tensor:
    out = memory.empty([x.size(0), w.size(0)], F32)
    if out.numel() == 0:
        return out
    x, x_scale, w, w_scale, left, right = contiguous(x, x_scale, w, w_scale, left, right)
    given = (at(x), at(x_scale), at(w), at(w_scale), at(left), at(right), left.size(1))
    enough(library.int8_linear_plus(*given, at(out), *x.shape, w.size(0), num_threads()))
    return out


implement(int8_linear_op, "cpu", _int8_linear)
implement(int8_linear_two, "cpu", _int8_linear_two)
implement(int8_linear_plus, "cpu", _int8_linear_plus)
