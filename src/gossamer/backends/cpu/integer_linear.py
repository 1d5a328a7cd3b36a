"""Native kernels of ops/integer_linear.py."""

from __future__ import annotations

from ...native import library, num_threads
from ...ops._library import implement
from ...ops.integer_linear import IntegerProduct, integer_linear, integer_linear_two
from ...ops.requantize import Requantize, columns_of
from ._arguments import at, contiguous, enough
from ._requantize import Result

NONE = (0, 8, 0, 0, 0, 0)


def _arguments(p: IntegerProduct) -> tuple[int, ...]:
    return at(p.x), p.x_bits, columns_of(p.x, p.x_bits), at(p.weight), at(p.bias), at(p.mult)


def _run(products: list[IntegerProduct], to: Requantize):  # type: ignore[no-untyped-def]
    held = [IntegerProduct(x, p.x_bits, *rest) for p in products for x, *rest in [contiguous(p.x, *p[2:])]]
    rows, outs = held[0].x.size(0), held[0].weight.size(0)
    result = Result(rows, outs, to)
    second = _arguments(held[1]) if len(held) > 1 else NONE
    enough(
        library.integer_linear(
            *_arguments(held[0]), *second, len(held), *result.arguments, rows, outs, num_threads()
        )
    )  # fmt: skip
    return result.out


implement(integer_linear, "cpu", lambda p, to: _run([p], to))
implement(integer_linear_two, "cpu", lambda p, second, to: _run([p, second], to))
