"""Native kernel of ops/integer_attention.py."""

from __future__ import annotations

import functools

import torch
from torch import Tensor

from ...native import library, num_threads
from ...ops._library import implement
from ...ops.integer_attention import STEP, TABLE_SIZE, attention_table, integer_attention
from ...ops.requantize import Requantize, columns_of
from ._arguments import at, contiguous, enough
from ._requantize import Result


@functools.cache
def _table() -> Tensor:
    """As floats, which a vector can look up."""
    return attention_table(torch.device("cpu")).float()


def _integer_attention(
    rowptr: Tensor, col: Tensor, a_src: Tensor, a_dst: Tensor | None, edge: Tensor | None, leak: float, x: Tensor,
    x_bits: int, x_zero: int, width: int, mean: bool, mult: Tensor, to: Requantize,
) -> Tensor:  # fmt: skip
    rowptr, col, a_src, a_dst, edge, x, mult = contiguous(rowptr, col, a_src, a_dst, edge, x, mult)
    num_dst, columns, heads = rowptr.numel() - 1, mult.numel(), a_src.size(1)
    result, table = Result(num_dst, columns, to), _table()
    enough(
        library.integer_attention(
            at(rowptr), at(col), num_dst, at(a_src), at(a_dst), at(edge), leak, at(table), TABLE_SIZE, 1 / STEP, at(x),
            x_bits, x.size(1), columns_of(x, x_bits), x_zero, heads, width, mean, at(mult), *result.arguments, columns,
            num_threads(),
        )
    )  # fmt: skip
    return result.out


implement(integer_attention, "cpu", _integer_attention)
