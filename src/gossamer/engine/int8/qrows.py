"""Operands of int8 products: rows with one scale each, weights with one scale per output, seeds by role.

A tensor that several ops read is quantised once: its codes are a fact about it (state/facts.py). Weights are quantised
anew in each step, from float32.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ... import ops
from ...ops.quantize_rows import QRows
from ...state import facts
from ..noise import draw_seed
from ..settings import Int8


def quantised(x: Tensor, setting: Int8) -> QRows:
    """The rows of x; rounded to nearest they are remembered for as long as x lives and is not changed."""
    if setting.rounding == "stochastic":
        return QRows(*ops.quantize_rows(x.detach(), draw_seed(x)))
    return facts.remember(x, "int8", lambda: QRows(*ops.quantize_rows(x.detach())))


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

    def forward(self, x: QRows, bias: Tensor | None = None, add: Tensor | None = None) -> Tensor:
        return ops.int8_linear(*x, self.codes, self.scale, bias, add)

    def forward_two(self, x: QRows, bias: Tensor | None, other: Weight, x2: QRows, bias2: Tensor | None) -> Tensor:
        """forward(x, bias) plus that of another weight and other rows."""
        return ops.int8_linear_two(*x, self.codes, self.scale, bias, *x2, other.codes, other.scale, bias2)

    def forward_rows(self, x: QRows, noise: int | None) -> QRows:
        return QRows(*ops.int8_linear_rows(*x, self.codes, self.scale, None, None, noise))

    def forward_heads(self, x: QRows, att: Tensor, heads: int, noise: int | None) -> tuple[QRows, Tensor]:
        """QRows, and their products with each row of att by head, of what they were before rounding."""
        *made, terms = ops.int8_linear_heads(*x, self.codes, self.scale, att, heads, noise)
        return QRows(*made), terms

    def backward(self, g: QRows, add: Tensor | None = None) -> Tensor:
        """g W from rows of gradients that were multiplied by `folded`."""
        return ops.int8_linear(*g, self.transposed, self._ones(), None, add)

    def backward_two(self, g: QRows, other: Weight, g2: QRows) -> Tensor:
        """backward(g) plus that of another weight and other rows."""
        one, two = (*g, self.transposed, self._ones(), None), (*g2, other.transposed, other._ones(), None)
        return ops.int8_linear_two(*one, *two)

    def backward_plus(self, g: QRows, left: Tensor, right: Tensor) -> Tensor:
        """backward(g) plus left @ right."""
        return ops.int8_linear_plus(*g, self.transposed, self._ones(), left, right)

    def backward_rows(self, g: QRows, noise: int | None) -> QRows:
        return QRows(*ops.int8_linear_rows(*g, self.transposed, self._ones(), None, None, noise))

    def _ones(self) -> Tensor:
        return self.scale.new_ones(self.transposed.size(0))


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
