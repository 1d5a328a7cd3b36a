"""The backward of norm, activation and dropout whose result leaves as int8 rows (ops/norm_act.py, ops/int8_rows.py).

    dx as in norm_act's backward; then for each of one or two readers  rows of  dx * factor, and the column sums of dx
    dots[i, h] = <first reader's row i, x_i - origin> over the columns of head h, if there are heads

A convolution or product before the epilogue reads its gradient only quantised, and summed by columns for its bias: dx
in float32 then never reaches memory. Attention reads the products by head too (ops/gat_int8.py). Statistics by column,
fixed, or none.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from . import _checks
from ._library import define
from ._structure import structure
from .int8_rows import check_factor, empty_rows, head_products, rounded
from .linear import column_sums
from .norm_act import Epilogue, Over, check_backward, norm_act_backward
from .quantize_rows import QRows

READERS = 2
"""At most: a product and a neighbour sum."""
COLUMNWISE = (Over.NOTHING, Over.FIXED, Over.COLUMNS)


@structure
class GradientRows(NamedTuple):
    """Codes and scales for each factor in turn; column sums of dx; dots, of no elements without heads."""

    flat: list[Tensor]
    sums: Tensor
    dweight: Tensor
    dbias: Tensor
    dots: Tensor

    @property
    def rows(self) -> list[QRows]:
        """Rows of dx * factor for each factor."""
        return [QRows(*pair) for pair in zip(self.flat[::2], self.flat[1::2], strict=True)]


def _check(
    dout: Tensor, x: Tensor, e: Epilogue, factors: list[Tensor | None], seeds: list[int], stochastic: bool,
    heads: int, origin: Tensor | None,
) -> None:  # fmt: skip
    check_backward(dout, x, e)
    _checks.dtype_of("x", x, (torch.float32,))
    check_columnwise(e.over)
    if not 1 <= len(factors) <= READERS or len(seeds) != len(factors):
        raise ValueError(
            f"`factors` must be one or two, with a seed each (got {len(factors)} factors, {len(seeds)} seeds)"
        )
    for k, factor in enumerate(factors):
        check_factor(factor, x.size(1), f"factors[{k}]")
    if heads < 0 or (heads and x.size(1) % heads):
        raise ValueError(f"`heads` must be 0 or divide the number of columns, {x.size(1)} (got {heads})")
    if origin is not None:
        _checks.dtype_of("origin", origin, (torch.float32,))
        _checks.shape_of("origin", origin, (x.size(1),), f"[{x.size(1)}], one number per column")


def check_columnwise(over: int) -> None:
    if over not in COLUMNWISE:
        raise ValueError(f"`over` must be one of {[o.name for o in COLUMNWISE]} (got {Over(over).name})")


def _reference(
    dout: Tensor, x: Tensor, e: Epilogue, factors: list[Tensor | None], seeds: list[int], stochastic: bool,
    heads: int, origin: Tensor | None,
) -> GradientRows:  # fmt: skip
    dx, dweight, dbias = norm_act_backward.reference(dout, x, e)
    flat: list[Tensor] = []
    for factor, seed in zip(factors, seeds, strict=True):
        flat += rounded(dx, factor, seed if stochastic else None)
    shifted = x if origin is None else x - origin
    dots = head_products(flat[0], flat[1], shifted, heads) if heads else dx.new_empty(0)
    return GradientRows(flat, column_sums(dx), dweight, dbias, dots)


def _fake(
    dout: Tensor, x: Tensor, e: Epilogue, factors: list[Tensor | None], seeds: list[int], stochastic: bool,
    heads: int, origin: Tensor | None,
) -> GradientRows:  # fmt: skip
    flat = [tensor for _ in factors for tensor in empty_rows(x)]
    dots = x.new_empty(x.size(0), heads) if heads else x.new_empty(0)
    return GradientRows(flat, x.new_empty(x.size(1)), x.new_empty(x.size(1)), x.new_empty(x.size(1)), dots)


norm_act_backward_rows = define(
    "norm_act_backward_rows(Tensor dout, Tensor x, Epilogue, Tensor?[] factors, int[] seeds, bool stochastic, "
    "int heads, Tensor? origin) -> GradientRows",
    check=_check,
    reference=_reference,
    fake=_fake,
)
