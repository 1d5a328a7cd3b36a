"""The backward of norm, activation and dropout whose result leaves as int8 rows (ops/norm_act.py, ops/int8_rows.py).

    dx as in norm_act's backward; then for each of one or two readers  rows of  dx * factor, and the column sums of dx
    dots[i, h] = <first reader's row i, x_i - origin> over the columns of head h, if there are heads

A convolution or product before the chain reads its gradient only rounded, and summed by columns for its bias: dx in
float32 then never reaches memory. Attention reads the products by head too (ops/gat_int8.py). Statistics by column,
fixed, or none.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from . import _checks
from ._library import OPS, define
from .int8_rows import check_factor, empty_rows, head_products, rounded
from .linear import column_sums
from .norm_act import Over

Result = tuple[list[Tensor], Tensor, Tensor, Tensor, Tensor]
READERS = 2
"""At most: a product and a neighbour sum."""
COLUMNWISE = (Over.NOTHING, Over.FIXED, Over.COLUMNS)


def _check(
    dout: Tensor, x: Tensor, weight: Tensor | None, bias: Tensor | None, mean: Tensor, var: Tensor,
    over: int, eps: float, act: int, slope: float, p: float, seed: int, factors: list[Tensor | None],
    seeds: list[int], stochastic: bool, heads: int, origin: Tensor | None,
) -> None:  # fmt: skip
    OPS["norm_act_backward"].check(dout, x, weight, bias, mean, var, over, eps, act, slope, p, seed)
    _checks.dtype_of("x", x, (torch.float32,))
    if over not in COLUMNWISE:
        raise ValueError(f"`over` must be one of {[o.name for o in COLUMNWISE]} (got {Over(over).name})")
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


def _reference(*args: Any) -> Result:
    *given, factors, seeds, stochastic, heads, origin = args
    dx, dweight, dbias = OPS["norm_act_backward"].reference(*given)
    rows: list[Tensor] = []
    for factor, seed in zip(factors, seeds, strict=True):
        rows += rounded(dx, factor, seed if stochastic else None)
    x = given[1] if origin is None else given[1] - origin
    dots = head_products(rows[0], rows[1], x, heads) if heads else dx.new_empty(0)
    return rows, column_sums(dx), dweight, dbias, dots


def _fake(dout: Tensor, x: Tensor, *rest: Any) -> Result:
    rows = [tensor for _ in rest[-5] for tensor in empty_rows(x)]
    dots = x.new_empty(x.size(0), rest[-2]) if rest[-2] else x.new_empty(0)
    return rows, x.new_empty(x.size(1)), x.new_empty(x.size(1)), x.new_empty(x.size(1)), dots


norm_act_backward_rows = define(
    "norm_act_backward_rows(Tensor dout, Tensor x, Tensor? weight, Tensor? bias, Tensor mean, Tensor var, int over, "
    "float eps, int act, float slope, float p, int seed, Tensor?[] factors, int[] seeds, bool stochastic, "
    "int heads, Tensor? origin) -> (Tensor[], Tensor, Tensor, Tensor, Tensor)",
    check=_check,
    reference=_reference,
    fake=_fake,
)
"""Codes and scales for each factor in turn; column sums; dweight; dbias; dots, of no elements without heads."""
