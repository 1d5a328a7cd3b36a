"""Native kernel of ops/integer_weighted_sum.py."""

from __future__ import annotations

from torch import Tensor

from ...native import library, num_threads
from ...ops._library import implement
from ...ops.integer_weighted_sum import integer_weighted_sum
from ...ops.requantize import Requantize, columns_of
from ._arguments import at, contiguous, enough
from ._requantize import Result


def _integer_weighted_sum(
    rowptr: Tensor, col: Tensor, weight: Tensor, own: Tensor | None, x: Tensor, x_bits: int, x_zero: int, mult: Tensor,
    to: Requantize,
) -> Tensor:  # fmt: skip
    rowptr, col, weight, own, x, mult = contiguous(rowptr, col, weight, own, x, mult)
    num_dst, columns = rowptr.numel() - 1, mult.numel()
    result = Result(num_dst, columns, to)
    enough(
        library.integer_weighted_sum(
            at(rowptr), at(col), num_dst, at(weight), at(own), at(x), x_bits, x.size(1), columns_of(x, x_bits), x_zero,
            at(mult), *result.arguments, columns, num_threads(),
        )
    )  # fmt: skip
    return result.out


implement(integer_weighted_sum, "cpu", _integer_weighted_sum)
