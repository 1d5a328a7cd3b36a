"""Products that save few bits of their input, once for all products of the same rows.

    y_k = x W_k^T + b_k (+ add)      dx = sum_k dy_k W_k (exact)     dW_k = dy_k^T x^     db_k = column sums of dy_k

Of neighbour sums of input that needs no gradient either few bits are saved as well, or the sum is recomputed:

    y = (A x) W^T + b (+ add)        dW = dy^T (A x): x and the graph live anyway, so nothing is saved, all is exact

which takes as long as another layer's sum. GCN and GIN save; GraphSAGE, whose other product reads x itself, does not,
nor does any layer where x has outlier columns (outliers.py), whose range few bits could not share with the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ... import ops
from ...aggregate import Adjacency
from ...ops.linear import bias_gradient, linear_op
from ..gradient import whole
from ..noise import refuse_twice
from .source import Dropped, Source, saved_of


class _Products(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, source: Source, add: Tensor | None, *params: Tensor | None) -> tuple[Tensor, ...]:
        weights, biases = params[::2], params[1::2]
        ctx.save_for_backward(*weights, *source.tensors)
        ctx.products, ctx.count = source.products, len(weights)
        added = [add, *[None] * (len(weights) - 1)]
        return tuple(linear_op(x, w, b, r) for w, b, r in zip(weights, biases, added, strict=True))

    @staticmethod
    def backward(ctx: Any, *douts: Tensor) -> tuple[Tensor | None, ...]:
        saved = ctx.saved_tensors  # once: checkpointing unpacks a tensor only once
        weights, saved = saved[: ctx.count], saved[ctx.count :]
        needs_x, _, needs_add, *needs = ctx.needs_input_grad
        with torch.no_grad():
            douts = tuple(map(whole, douts))
            dx = sum_of_products(douts, weights) if needs_x else None
            needs_weights, needs_biases = needs[::2], needs[1::2]
            wanted = [k for k, needed in enumerate(needs_weights) if needed]
            dweights = dict(zip(wanted, ctx.products(saved, [douts[k] for k in wanted]), strict=True)) if wanted else {}
            params: list[Tensor | None] = []
            for k, (dout, needs_bias) in enumerate(zip(douts, needs_biases, strict=True)):
                params += [dweights.get(k), bias_gradient(dout) if needs_bias else None]
        return refuse_twice(dx, None, douts[0] if needs_add else None, *params)


def sum_of_products(douts: Sequence[Tensor], weights: Sequence[Tensor]) -> Tensor:
    """sum_k dy_k W_k, in one buffer."""
    total = linear_op(douts[0], weights[0].t(), None, None)
    for dout, weight in zip(douts[1:], weights[1:], strict=True):
        total.addmm_(dout, weight)
    return total


def products(
    x: Tensor, weights: Sequence[Tensor], biases: Sequence[Tensor | None], source: Source, add: Tensor | None = None
) -> tuple[Tensor, ...]:
    """x W_k^T + b_k for each k (the first plus `add`); `source` is what is saved of x."""
    params = [tensor for pair in zip(weights, biases, strict=True) for tensor in pair]
    return _Products.apply(x, source, add, *params)


class _Known(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, value: Tensor, source: Source) -> Tensor:
        ctx.products = source.products
        ctx.save_for_backward(weight, *source.tensors)
        return value.detach()

    @staticmethod
    def backward(ctx: Any, dout: Tensor) -> tuple[Tensor | None, ...]:
        weight, *saved = ctx.saved_tensors
        dout, (needs_x, needs_weight, *_) = whole(dout), ctx.needs_input_grad
        with torch.no_grad():
            dx = linear_op(dout, weight.t(), None, None) if needs_x else None
            dweight = ctx.products(saved, [dout])[0] if needs_weight else None
        return refuse_twice(dx, dweight, None, None)


def known_product(x: Tensor, weight: Tensor, value: Tensor, source: Source) -> Tensor:
    """`value`, which is x W^T, with the gradients of that."""
    return _Known.apply(x, weight, value, source)


class _OfNeighbours(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, add: Tensor | None, adjacency: Adjacency
    ) -> Tensor:
        known = saved_of(x)
        dropped = known if isinstance(known, Dropped) else None
        ctx.adjacency, ctx.dropout = adjacency, None if dropped is None else (dropped.p, dropped.seed)
        ctx.save_for_backward(x if dropped is None else dropped.x)
        return linear_op(adjacency.product(x), weight, bias, add)

    @staticmethod
    def backward(ctx: Any, dout: Tensor) -> tuple[Tensor | None, ...]:
        (x,) = ctx.saved_tensors
        (_, needs_weight, needs_bias, needs_add, _), dout = ctx.needs_input_grad, whole(dout)
        with torch.no_grad():
            x = x if ctx.dropout is None else ops.dropout(x, *ctx.dropout)
            dweight = ops.weight_grad(dout, ctx.adjacency.product(x)) if needs_weight else None
            dbias = bias_gradient(dout) if needs_bias else None
        return refuse_twice(None, dweight, dbias, dout if needs_add else None, None)


def of_neighbours(
    adjacency: Adjacency, x: Tensor, weight: Tensor, bias: Tensor | None, add: Tensor | None = None
) -> Tensor:
    """(A x) W^T + b + add for x that needs no gradient and fixed A, A x recomputed in backward."""
    return _OfNeighbours.apply(x, weight, bias, add, adjacency)
