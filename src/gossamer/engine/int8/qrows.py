"""Operands of int8 products: rows with one scale each, weights with one scale per output, seeds by role.

A tensor that several ops read is quantised once: its codes are a fact about it (state/facts.py). Weights are quantised
anew in each step, from float32.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ... import ops
from ...ops.int8_linear import int8_linear_op
from ...ops.quantize_rows import QRows
from ...state import facts
from ..noise import draw_seed
from ..settings import Int8


def quantised(x: Tensor, setting: Int8) -> QRows:
    """The rows of x; rounded to nearest they are remembered for as long as x lives and is not changed."""
    if setting.rounding == "stochastic":
        return ops.quantize_rows(x.detach(), draw_seed(x))
    return facts.remember(x, "int8", lambda: ops.quantize_rows(x.detach()))


WEAKEST = 1 / 4
"""The least of an output's scales beside the largest that gradients are multiplied by."""


class Weight(NamedTuple):
    """Codes of a weight [outputs, columns] with one scale per output, and what backward reads.

    folded      what gradients are multiplied by before they are rounded: the scales, clamped from below to max/4 (max
                where the scale is 0). Without the clamp, gradients of outputs with small weights would round to zero
                and their dW would vanish
    transposed  the same codes, [columns, outputs]; those of clamped outputs in units of `folded`, hence rounded again
    """

    codes: Tensor
    scale: Tensor
    transposed: Tensor
    folded: Tensor

    @property
    def rows(self) -> QRows:
        """What rows are multiplied by in forward."""
        return QRows(self.codes, self.scale)

    @property
    def back(self) -> QRows:
        """What rows of gradients that were multiplied by `folded` are multiplied by in backward."""
        return QRows(self.transposed, self.scale.new_ones(self.transposed.size(0)))

    def forward(self, x: QRows, bias: Tensor | None = None, add: Tensor | None = None) -> Tensor:
        return int8_linear_op(x, self.rows, bias, add)

    def forward_two(self, x: QRows, bias: Tensor | None, other: Weight, x2: QRows, bias2: Tensor | None) -> Tensor:
        """forward(x, bias) plus that of another weight and other rows."""
        return ops.int8_linear_two(x, self.rows, bias, x2, other.rows, bias2)

    def forward_rows(self, x: QRows, noise: int | None) -> QRows:
        return ops.int8_linear_rows(x, self.rows, None, None, noise)

    def forward_heads(self, x: QRows, att: Tensor, heads: int, noise: int | None) -> tuple[QRows, Tensor]:
        """QRows, and their products with each row of att by head, of what they were before rounding."""
        made = ops.int8_linear_heads(x, self.rows, att, heads, noise)
        return made.rows, made.terms

    def backward(self, g: QRows, add: Tensor | None = None) -> Tensor:
        """g W from rows of gradients that were multiplied by `folded`."""
        return int8_linear_op(g, self.back, None, add)

    def backward_two(self, g: QRows, other: Weight, g2: QRows) -> Tensor:
        """backward(g) plus that of another weight and other rows."""
        return ops.int8_linear_two(g, self.back, None, g2, other.back, None)

    def backward_plus(self, g: QRows, left: Tensor, right: Tensor) -> Tensor:
        """backward(g) plus left @ right."""
        return ops.int8_linear_plus(g, self.back, left, right)

    def backward_rows(self, g: QRows, noise: int | None) -> QRows:
        return ops.int8_linear_rows(g, self.back, None, None, noise)


def weight_rows(weight: Tensor) -> Weight:
    codes, scale = ops.quantize_rows(weight.detach())
    top = scale.max() if len(scale) else scale.new_zeros(())
    folded = torch.where(scale == 0, torch.where(top > 0, top, 1.0), scale.clamp(min=WEAKEST * top))
    shrunk = (codes * (scale / folded).unsqueeze(1)).round_().nan_to_num_().to(torch.int8)
    return Weight(codes, scale, shrunk.t().contiguous(), folded)


class Seeds:
    """Seeds of one call's roundings: of activations in forward, of gradients in backward; None rounds to nearest."""

    def __init__(self, setting: Int8, x: Tensor) -> None:
        self.base = draw_seed(x)
        self._setting, self._count = setting, 0

    def _next(self) -> int:
        self._count += 1
        mixed = (self.base + self._count * 0x9E3779B97F4A7C15) % 2**64
        return mixed - 2**64 if mixed >= 2**63 else mixed

    def of_activation(self) -> int | None:
        return self._next() if self._setting.rounding == "stochastic" else None

    def of_sum(self) -> int | None:
        """The same at every call: a neighbour sum that backward recomputes is the one of forward."""
        return ~self.base if self._setting.rounding == "stochastic" else None

    def of_gradient(self) -> int | None:
        return self._next() if self._setting.gradients == "stochastic" else None

    def of_weight_gradient(self) -> int:
        return self._next()
