"""Neighbour sums whose edge weights require grad: few bits of the rows are saved for the weights' gradient.

    out = A x        dv_e = s_i <dout_i, x^_j>        dx = A^T dout (of the float rows)

with s the factors of destinations. A sum with fixed weights saves nothing and is `Adjacency.product` itself.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import Tensor

from ...aggregate import Adjacency
from ...codecs import Codec
from ...codecs.codec import Codes
from .. import rules
from ..gradient import whole
from ..noise import draw_seed, refuse_twice


class _WeightedSum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, value: Tensor, adjacency: Adjacency, codec: Codec | None) -> Tensor:
        ctx.adjacency, ctx.codec = dataclasses.replace(adjacency, value=None), codec
        saved: tuple[Tensor, ...] = (x,)
        if codec is not None:
            codes = codec.encode(x, draw_seed(x))
            ctx.meta, saved = (codes.shape, codes.dtype), codes.tensors
        ctx.save_for_backward(value, *saved)
        return adjacency.product(x)

    @staticmethod
    def backward(ctx: Any, dout: Tensor) -> tuple[Tensor | None, ...]:
        value, *saved = ctx.saved_tensors
        adjacency, dout = dataclasses.replace(ctx.adjacency, value=value), whole(dout)
        needs_x, needs_value, *_ = ctx.needs_input_grad

        def rows() -> Tensor:
            return saved[0] if ctx.codec is None else ctx.codec.decode(Codes(tuple(saved), *ctx.meta))

        with torch.no_grad():
            dx, dvalue = adjacency.gradients(dout, needs_x, needs_value, rows)
        return refuse_twice(dx, dvalue, None, None)


def needs_rows(adjacency: Adjacency, x: Tensor) -> bool:
    """Whether the gradient of the edges' weights needs x, and x is to be saved in few bits."""
    value = adjacency.value
    return value is not None and value.requires_grad and adjacency.is_linear and rules.saves_little(x)


def weighted_sum(
    adjacency: Adjacency, x: Tensor, codec: Codec | None, bias: Tensor | None = None, add: Tensor | None = None
) -> Tensor:
    """A x + b + add, A with weights that require grad; `codec` saves x, None saves it as it is."""
    assert adjacency.value is not None
    out = _WeightedSum.apply(x, adjacency.value, adjacency, codec)
    out = out if add is None else out + add
    return out if bias is None else out + bias
