"""Products and neighbour sums of int8 rows, in integers both ways.

    products          y_k = x W_k^T + b_k
    multiply first    y = A (x W^T) + b + x W_r^T + b_r          h = x W^T leaves its product as rows
    aggregate first   y = (A x) W^T + b + x W_r^T + b_r          z = A x leaves its sum as rows

A is a graph with fixed weights (mean, GCN's factors, GIN's own row included); the products of the node's own row are
optional. Backward, with Q(.) rounding rows stochastically and w the scales of W's outputs:

    dh = Q(A^T Q(dy) w)      dx = dh (codes of W)      dW = dh^T x^ / w           (ops/int8_grad.py)

A row scale leaves a sum only where it is constant along it; w is not, so it is folded into what is rounded before.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .. import memory, ops
from ..activations.chain import LARGE
from ..activations.noise import refuse_twice
from ..graph import Graph
from .entry import Entry, Norm, come_in, leave, operand
from .rows import Rows, Seeds, Weight, weight_rows


class Adjacency(NamedTuple):
    """A fixed sparse matrix: weights of edges, factors of sources and destinations, and `root` times the own row."""

    graph: Graph
    value: Tensor | None = None
    src_scale: Tensor | None = None
    dst_scale: Tensor | None = None
    root: float = 0.0

    def _weights(self) -> Tensor | None:
        return self.graph.value if self.value is None else self.value

    def arguments(self, x: Rows) -> tuple[Any, ...]:
        graph = self.graph
        return graph.rowptr, graph.col, self._weights(), x.scale, self.dst_scale, x.codes, self.src_scale

    def transposed(self, x: Rows) -> tuple[Any, ...]:
        t = self.graph.t()
        value = t.value if self.value is None else ops.gather_rows(self.value, self.graph.t_perm)
        return t.rowptr, t.col, value, x.scale, self.src_scale, x.codes, self.dst_scale

    def sum(self, x: Rows, bias: Tensor | None, rows: Tensor | None) -> Tensor:
        return ops.OPS["spmm_int8"](*self.arguments(x), bias, self.root, rows)

    def sum_rows(self, x: Rows, noise: int | None) -> Rows:
        return Rows(*ops.spmm_rows(*self.arguments(x), None, self.root, None, None, noise))

    def back(self, g: Rows) -> Tensor:
        return ops.OPS["spmm_int8"](*self.transposed(g), None, self.root, None)

    def back_rows(self, g: Rows, factor: Tensor, noise: int | None) -> Rows:
        return Rows(*ops.spmm_rows(*self.transposed(g), None, self.root, None, factor, noise))


class Spec(NamedTuple):
    """One call: how rows come in, the adjacency, and what is done first."""

    entry: Entry
    first: str  # "products", "multiply" or "aggregate"
    adjacency: Adjacency | None = None


NO_NORM: Norm = (None, None, None, None)
Back = tuple[Tensor | None, list[Tensor]]


class _Int8(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, nweight: Tensor | None, nbias: Tensor | None, nmean: Tensor | None, nvar: Tensor | None,
        rows: Tensor | None, spec: Spec, *params: Tensor | None,
    ) -> tuple[Tensor, ...]:  # fmt: skip
        weights = [weight_rows(w) for w in params[::2] if w is not None]
        biases, seeds = params[1::2], Seeds(spec.entry.how, x)
        came = come_in(x, (nweight, nbias, nmean, nvar), spec.entry, seeds)
        outs, extra = _run(came.rows, spec, weights, biases, rows, seeds)
        kept: tuple[Tensor | None, ...] = came.tensors
        if extra and len(weights) == 1 and spec.entry.chain is None:
            kept = ()  # only what was aggregated is multiplied
        ctx.spec, ctx.settings, ctx.seeds, ctx.counts = spec, came.settings, seeds, (len(weights), len(kept))
        ctx.shape = x.shape
        flat = [tensor for weight in weights for tensor in weight]
        ctx.save_for_backward(*flat, *kept, *extra)
        ctx.mark_non_differentiable(came.mean, came.var)
        return (*outs, came.mean, came.var)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        saved = ctx.saved_tensors  # once: checkpointing unpacks a tensor only once
        count, kept_count = ctx.counts
        weights = [Weight(*saved[3 * k : 3 * k + 3]) for k in range(count)]
        kept, extra = saved[3 * count : 3 * count + kept_count], saved[3 * count + kept_count :]
        spec, needs = ctx.spec, ctx.needs_input_grad
        if spec.entry.plan is not None and ctx.shape.numel() >= LARGE:
            memory.trim_heap()
        with torch.no_grad():
            douts = [dout.contiguous() for dout in grads[:-2]]
            x = operand(kept, ctx.settings) if kept else None
            wanted = needs[0] or needs[1] or needs[2]
            drows, dweights = _back(douts, x, extra, weights, spec, ctx.seeds, wanted)
            dx, dnweight, dnbias = (None,) * 3 if drows is None else leave(drows, spec.entry, kept, ctx.settings)
            params: list[Tensor | None] = []
            sums = [ops.column_sums(d) if any(needs[8 + 2 * k] for k in range(count)) else None for d in douts]
            for k, dweight in enumerate(dweights):
                own_sum = sums[min(k, len(sums) - 1)]
                params += [dweight if needs[7 + 2 * k] else None, own_sum if needs[8 + 2 * k] else None]
        own = (dx if needs[0] else None, dnweight if needs[1] else None, dnbias if needs[2] else None)
        return refuse_twice(*own, None, None, douts[0] if needs[5] else None, None, *params)


def _run(
    x: Rows, spec: Spec, weights: Sequence[Weight], biases: Sequence[Tensor | None], rows: Tensor | None, seeds: Seeds
) -> tuple[list[Tensor], tuple[Tensor, ...]]:
    """The results, and what else backward needs."""
    adjacency = spec.adjacency
    if adjacency is None:
        added = [rows, *[None] * (len(weights) - 1)]
        return [w.forward(x, b, r) for w, b, r in zip(weights, biases, added, strict=True)], ()
    if len(weights) > 1:
        rows = weights[1].forward(x, biases[1], rows)
    if spec.first == "multiply":
        return [adjacency.sum(weights[0].forward_rows(x, seeds.of_activation()), biases[0], rows)], ()
    z = adjacency.sum_rows(x, seeds.of_sum())
    return [weights[0].forward(z, biases[0], rows)], () if spec.entry.plan is not None else z


def _back(
    douts: list[Tensor], x: Rows | None, extra: Sequence[Tensor], weights: Sequence[Weight], spec: Spec, seeds: Seeds,
    wanted: bool,
) -> Back:  # fmt: skip
    """Gradients of the rows that came in (if wanted) and of the weights."""
    adjacency = spec.adjacency
    if adjacency is None:
        return _through_products(zip(douts, weights, strict=True), x, seeds, wanted)
    (dout,), drows = douts, None
    if spec.first == "multiply":
        dh = adjacency.back_rows(_rounded(dout, None, seeds), weights[0].folded, seeds.of_gradient())
        drows = weights[0].backward(dh) if wanted else None
        first = _dweight(dh, x, weights[0], seeds)
    else:
        z = Rows(*extra) if extra else adjacency.sum_rows(x, seeds.of_sum())  # type: ignore[arg-type]
        g = _rounded(dout, weights[0].folded, seeds) if wanted else None
        drows = None if g is None else adjacency.back(weights[0].backward_rows(g, seeds.of_gradient()))
        first = _dweight(dout if g is None else g, z, weights[0], seeds)
    own = [(dout, weight) for weight in weights[1:]]
    drows, others = _through_products(own, x, seeds, wanted, drows)
    return drows, [first, *others]


def _through_products(
    pairs: Iterable[tuple[Tensor, Weight]], x: Rows | None, seeds: Seeds, wanted: bool, drows: Tensor | None = None
) -> Back:
    dweights = []
    for dout, weight in pairs:
        g = _rounded(dout, weight.folded, seeds) if wanted else dout
        drows = weight.backward(g, drows) if isinstance(g, Rows) else drows
        dweights.append(_dweight(g, x, weight, seeds))
    return drows, dweights


def _rounded(dout: Tensor, factor: Tensor | None, seeds: Seeds) -> Rows:
    return Rows(*ops.quantize_times(dout, factor, seeds.of_gradient()))


def _dweight(g: Rows | Tensor, x: Rows | None, weight: Weight, seeds: Seeds) -> Tensor:
    """dW from gradients, or from rows of gradients that were multiplied by the weight's scales."""
    assert x is not None
    seed = seeds.of_weight_gradient()
    if isinstance(g, Tensor):
        return ops.int8_grad(g, None, *x, seed)
    return ops.int8_grad(*g, *x, seed).div_(weight.folded.unsqueeze(1))


def products(
    x: Tensor, weights: Sequence[Tensor], biases: Sequence[Tensor | None], entry: Entry, norm: Norm = NO_NORM,
    rows: Tensor | None = None,
) -> tuple[Tensor, ...]:  # fmt: skip
    """x W_k^T + b_k for each k (the first plus `rows`), then the chain's mean and variance."""
    return _apply(x, norm, rows, Spec(entry, "products"), weights, biases)


def convolve(
    x: Tensor, adjacency: Adjacency, weights: Sequence[Tensor], biases: Sequence[Tensor | None],
    first: str, entry: Entry, norm: Norm = NO_NORM, rows: Tensor | None = None,
) -> tuple[Tensor, ...]:  # fmt: skip
    """Neighbours through the first weight, the nodes themselves through the second; then mean and variance.

    `first` is "multiply" or "aggregate".
    """
    return _apply(x, norm, rows, Spec(entry, first, adjacency), weights, biases)


def _apply(
    x: Tensor, norm: Norm, rows: Tensor | None, spec: Spec, weights: Sequence[Tensor], biases: Sequence[Tensor | None]
) -> tuple[Tensor, ...]:
    params = [tensor for pair in zip(weights, biases, strict=True) for tensor in pair]
    return _Int8.apply(x.float().contiguous(), *norm, rows, spec, *params)
