"""Products that keep few bits of their input, once for all products of the same rows.

    y_k = x W_k^T + b_k (+ rows)     dx = sum_k dy_k W_k (exact)     dW_k = dy_k^T x^     db_k = column sums of dy_k

Of neighbour sums of data either few bits are kept as well (`is_sum`), or the sum is made again:

    y = (A x) W^T + b (+ rows)       dW = dy^T (A x): x and the graph live anyway, so nothing is kept, all is exact

which takes as long as another layer's sum. GCN and GIN keep; GraphSAGE, whose other product reads x itself, does not.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from .. import ops
from ..ops.linear import bias_gradient, linear_op
from .noise import refuse_twice
from .plan import Plan
from .stash import Dropped, mark_of, source_of

if TYPE_CHECKING:
    from ..graph import Graph


class _Products(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, plan: Plan, is_sum: bool, rows: Tensor | None, *params: Tensor | None
    ) -> tuple[Tensor, ...]:
        weights, biases = params[::2], params[1::2]
        source = source_of(x, plan, is_sum)
        ctx.save_for_backward(*weights, *source.tensors)
        ctx.products, ctx.count = source.products, len(weights)
        added = [rows, *[None] * (len(weights) - 1)]
        return tuple(linear_op(x, w, b, r) for w, b, r in zip(weights, biases, added, strict=True))

    @staticmethod
    def backward(ctx: Any, *douts: Tensor) -> tuple[Tensor | None, ...]:
        saved = ctx.saved_tensors  # once: checkpointing unpacks a tensor only once
        weights, saved = saved[: ctx.count], saved[ctx.count :]
        needs = ctx.needs_input_grad
        with torch.no_grad():
            douts = tuple(dout.contiguous() for dout in douts)
            dx = sum_of_products(douts, weights) if needs[0] else None
            wanted = [k for k in range(ctx.count) if needs[4 + 2 * k]]
            dweights = dict(zip(wanted, ctx.products(saved, [douts[k] for k in wanted]), strict=True)) if wanted else {}
            params: list[Tensor | None] = []
            for k, dout in enumerate(douts):
                params += [dweights.get(k), bias_gradient(dout) if needs[5 + 2 * k] else None]
        return refuse_twice(dx, None, None, douts[0] if needs[3] else None, *params)


def sum_of_products(douts: Sequence[Tensor], weights: Sequence[Tensor]) -> Tensor:
    """sum_k dy_k W_k, in one buffer."""
    total = linear_op(douts[0], weights[0].t(), None, None)
    for dout, weight in zip(douts[1:], weights[1:], strict=True):
        total.addmm_(dout, weight)
    return total


def products(
    x: Tensor, weights: Sequence[Tensor], biases: Sequence[Tensor | None], plan: Plan, rows: Tensor | None = None,
    is_sum: bool = False,
) -> tuple[Tensor, ...]:  # fmt: skip
    """x W_k^T + b_k for each k (the first plus `rows`), keeping what the plan says of x, or of a sum of data."""
    params = [tensor for pair in zip(weights, biases, strict=True) for tensor in pair]
    return _Products.apply(x.contiguous(), plan, is_sum, rows, *params)


class _Known(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, value: Tensor, plan: Plan) -> Tensor:
        source = source_of(x, plan)
        ctx.products = source.products
        ctx.save_for_backward(weight, *source.tensors)
        return value.detach()

    @staticmethod
    def backward(ctx: Any, dout: Tensor) -> tuple[Tensor | None, ...]:
        weight, *saved = ctx.saved_tensors
        dout, needs = dout.contiguous(), ctx.needs_input_grad
        with torch.no_grad():
            dx = linear_op(dout, weight.t(), None, None) if needs[0] else None
            dweight = ctx.products(saved, [dout])[0] if needs[1] else None
        return refuse_twice(dx, dweight, None, None)


def known_product(x: Tensor, weight: Tensor, value: Tensor, plan: Plan) -> Tensor:
    """`value`, which is x W^T, with the gradients of that."""
    return _Known.apply(x, weight, value, plan)


class _OfNeighbours(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, rows: Tensor | None, summed: Any, dropped: Any
    ) -> Tensor:
        ctx.summed, ctx.dropout = summed, None if dropped is None else (dropped.p, dropped.seed)
        ctx.save_for_backward(x if dropped is None else dropped.x, weight)
        return linear_op(summed(x), weight, bias, rows)

    @staticmethod
    def backward(ctx: Any, dout: Tensor) -> tuple[Tensor | None, ...]:
        x, _ = ctx.saved_tensors
        needs, dout = ctx.needs_input_grad, dout.contiguous()
        with torch.no_grad():
            x = x if ctx.dropout is None else ops.dropout(x, *ctx.dropout)
            dweight = ops.weight_grad(dout, ctx.summed(x)) if needs[1] else None
            dbias = bias_gradient(dout) if needs[2] else None
        return refuse_twice(None, dweight, dbias, dout if needs[3] else None, None, None)


def of_neighbours(
    graph: Graph, value: Tensor | None, reduce: Any, x: Tensor, weight: Tensor, bias: Tensor | None,
    rows: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """(A x) W^T + b + rows for data x, A x made again in backward: no gradient of x or of A is asked for."""
    known = mark_of(x)
    dropped = known if isinstance(known, Dropped) else None
    return _OfNeighbours.apply(x, weight, bias, rows, lambda x: ops.spmm(graph, x, value, reduce), dropped)
