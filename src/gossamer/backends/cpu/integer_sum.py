"""Native kernel of ops/integer_sum.py."""

from __future__ import annotations

from torch import Tensor

from ...native import library, num_threads
from ...ops._library import implement
from ...ops.integer_sum import integer_sum
from ...ops.requantize import Requantize
from ._arguments import at, contiguous, enough
from ._requantize import Result


def _integer_sum(
    rowptr: Tensor, col: Tensor, x: Tensor, x_bits: int, x_zero: int, neighbours: int, own: int, mult: Tensor,
    to: Requantize,
) -> Tensor:  # fmt: skip
    rowptr, col, x, mult = contiguous(rowptr, col, x, mult)
    num_dst, columns = rowptr.numel() - 1, mult.numel()
    result = Result(num_dst, columns, to)
    enough(
        library.integer_sum(
            at(rowptr), at(col), num_dst, at(x), x_bits, x.size(1), neighbours, own, x_zero, at(mult),
            *result.arguments, columns, num_threads(),
        )
    )  # fmt: skip
    return result.out


implement(integer_sum, "cpu", _integer_sum)
