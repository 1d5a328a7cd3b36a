"""Int8 rows: one symmetric code per element, one scale per row.

A tensor that several ops read is rounded once: its codes go with the tensor object and are void once it is changed in
place. Weights are rounded anew in each step, from float32. Noise differs by role, and follows torch's generator.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from .. import ops
from ..activations.noise import draw_seed
from .plan import Int8

_remembered: WeakTensorKeyDictionary = WeakTensorKeyDictionary()


class Rows(NamedTuple):
    codes: Tensor
    scale: Tensor


def quantised(x: Tensor, how: Int8) -> Rows:
    """The rows of x; rounded to nearest they are remembered for as long as x lives and is not changed."""
    if how.rounding == "stochastic":
        return Rows(*ops.quantize_rows(x.detach(), draw_seed(x)))
    if x.is_inference():  # such tensors count no changes
        return Rows(*ops.quantize_rows(x))
    version = (x._version, x.data_ptr(), tuple(x.shape))
    known = _remembered.get(x)
    if known is not None and known[0] == version:
        return known[1]
    rows = Rows(*ops.quantize_rows(x.detach()))
    _remembered[x] = (version, rows)
    return rows


WEAKEST = 1 / 4
"""The least of an output's scales beside the largest that gradients are multiplied by."""


class Weight(NamedTuple):
    """Codes of a weight [outputs, columns] with one scale per output, and what backward reads.

    folded      what gradients are multiplied by before they are rounded: the scales, but at least a quarter of the
                largest, and that itself for zeros. An output with much smaller weights would else be lost in the
                step of the others, and with it its dW
    transposed  the same codes, [columns, outputs]; those of weak outputs in units of `folded`, hence rounded again
    """

    codes: Tensor
    scale: Tensor
    transposed: Tensor
    folded: Tensor

    def forward(self, x: Rows, bias: Tensor | None = None, rows: Tensor | None = None) -> Tensor:
        return ops.int8_linear(*x, self.codes, self.scale, bias, rows)

    def forward_two(self, x: Rows, bias: Tensor | None, other: Weight, x2: Rows, bias2: Tensor | None) -> Tensor:
        """forward(x, bias) plus that of another weight and other rows."""
        return ops.int8_linear_two(*x, self.codes, self.scale, bias, *x2, other.codes, other.scale, bias2)

    def forward_rows(self, x: Rows, noise: int | None) -> Rows:
        return Rows(*ops.int8_linear_rows(*x, self.codes, self.scale, None, None, noise))

    def forward_heads(self, x: Rows, att: Tensor, heads: int, noise: int | None) -> tuple[Rows, Tensor]:
        """Rows, and their products with each row of att by head, of what they were before rounding."""
        *made, terms = ops.int8_linear_heads(*x, self.codes, self.scale, att, heads, noise)
        return Rows(*made), terms

    def backward(self, g: Rows, rows: Tensor | None = None) -> Tensor:
        """g W from rows of gradients that were multiplied by `folded`."""
        return ops.int8_linear(*g, self.transposed, self._ones(), None, rows)

    def backward_two(self, g: Rows, other: Weight, g2: Rows) -> Tensor:
        """backward(g) plus that of another weight and other rows."""
        one, two = (*g, self.transposed, self._ones(), None), (*g2, other.transposed, other._ones(), None)
        return ops.int8_linear_two(*one, *two)

    def backward_plus(self, g: Rows, left: Tensor, right: Tensor) -> Tensor:
        """backward(g) plus left @ right."""
        return ops.int8_linear_plus(*g, self.transposed, self._ones(), left, right)

    def backward_rows(self, g: Rows, noise: int | None) -> Rows:
        return Rows(*ops.int8_linear_rows(*g, self.transposed, self._ones(), None, None, noise))

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

    def __init__(self, how: Int8, x: Tensor) -> None:
        self.base = draw_seed(x)
        self._how, self._count = how, 0

    def _next(self) -> int:
        self._count += 1
        mixed = (self.base + self._count * 0x9E3779B97F4A7C15) % 2**64
        return mixed - 2**64 if mixed >= 2**63 else mixed

    def of_activation(self) -> int | None:
        return self._next() if self._how.rounding == "stochastic" else None

    def of_sum(self) -> int | None:
        """The same at every call: a neighbour sum that backward makes again is the one of forward."""
        return ~self.base if self._how.rounding == "stochastic" else None

    def of_gradient(self) -> int | None:
        return self._next() if self._how.gradients == "stochastic" else None

    def of_weight_gradient(self) -> int:
        return self._next()
