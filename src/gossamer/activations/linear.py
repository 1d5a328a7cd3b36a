"""Products that keep few bits of their input, once for all products of the same rows.

    y_k = x W_k^T + b_k (+ rows)     dx = sum_k dy_k W_k (exact)     dW_k = dy_k^T x^     db_k = column sums of dy_k

and neighbour sums of data, whose sum is made again instead of being kept:

    y = (A x) W^T + b (+ rows)       dW = dy^T (A x): x and the graph live anyway, so nothing is kept, all is exact
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import torch
from torch import Tensor

from .. import ops
from ..ops.linear import linear_op
from .noise import refuse_twice
from .plan import Plan
from .stash import Dropped, mark_of, source_of

if TYPE_CHECKING:
    from ..graph import Graph


class _Products(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, plan: Plan, rows: Tensor | None, *params: Tensor | None) -> tuple[Tensor, ...]:
        weights, biases = params[::2], params[1::2]
        source = source_of(x, plan)
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
            wanted = [k for k in range(ctx.count) if needs[3 + 2 * k]]
            dweights = dict(zip(wanted, ctx.products(saved, [douts[k] for k in wanted]), strict=True)) if wanted else {}
            params: list[Tensor | None] = []
            for k, dout in enumerate(douts):
                params += [dweights.get(k), ops.column_sums(dout) if needs[4 + 2 * k] else None]
        return refuse_twice(dx, None, douts[0] if needs[2] else None, *params)


def sum_of_products(douts: Sequence[Tensor], weights: Sequence[Tensor]) -> Tensor:
    """sum_k dy_k W_k, in one buffer."""
    total = linear_op(douts[0], weights[0].t(), None, None)
    for dout, weight in zip(douts[1:], weights[1:], strict=True):
        total.addmm_(dout, weight)
    return total


def products(
    x: Tensor, weights: Sequence[Tensor], biases: Sequence[Tensor | None], plan: Plan, rows: Tensor | None = None
) -> tuple[Tensor, ...]:
    """x W_k^T + b_k for each k (the first plus `rows`), keeping what the plan says of x."""
    params = [tensor for pair in zip(weights, biases, strict=True) for tensor in pair]
    return _Products.apply(x.contiguous(), plan, rows, *params)


class Sum(NamedTuple):
    """A neighbour sum with fixed weights, as ops.spmm takes it."""

    graph: Graph
    value: Tensor | None = None
    reduce: Literal["sum", "mean", "max"] = "sum"
    scale: Tensor | None = None
    root: float = 0.0

    def of(self, x: Tensor) -> Tensor:
        return ops.spmm(self.graph, x, self.value, self.reduce, root=self.root, scale=self.scale)

    def weight_grad(self, dout: Tensor, x: Tensor) -> Tensor:
        """dout^T (A x)."""
        graph = self.graph
        if self.reduce == "max":
            return ops.weight_grad(dout, self.of(x))
        value = graph.value if self.value is None else self.value
        dst_scale = graph.inverse_degree if self.reduce == "mean" else self.scale
        return ops.spmm_weight_grad(dout, graph.rowptr, graph.col, value, self.scale, dst_scale, x, self.root)


class _OfNeighbours(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, rows: Tensor | None, summed: Sum, dropped: Any
    ) -> Tensor:
        ctx.summed, ctx.dropout = summed, None if dropped is None else (dropped.p, dropped.seed)
        ctx.save_for_backward(x if dropped is None else dropped.x, weight)
        return linear_op(summed.of(x), weight, bias, rows)

    @staticmethod
    def backward(ctx: Any, dout: Tensor) -> tuple[Tensor | None, ...]:
        x, _ = ctx.saved_tensors
        needs, dout = ctx.needs_input_grad, dout.contiguous()
        with torch.no_grad():
            x = x if ctx.dropout is None else ops.dropout(x, *ctx.dropout)
            dweight = ctx.summed.weight_grad(dout, x) if needs[1] else None
            dbias = ops.column_sums(dout) if needs[2] else None
        return refuse_twice(None, dweight, dbias, dout if needs[3] else None, None, None)


def of_neighbours(summed: Sum, x: Tensor, weight: Tensor, bias: Tensor | None, rows: Tensor | None = None) -> Tensor:
    """(A x) W^T + b + rows for data x: no gradient of x or of A is asked for, and A x is made again in backward."""
    known = mark_of(x)
    return _OfNeighbours.apply(x, weight, bias, rows, summed, known if isinstance(known, Dropped) else None)
