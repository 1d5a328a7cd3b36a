"""Products and neighbour sums of int8 rows, in integers both ways.

    products          y_k = x W_k^T + b_k
    projections       h = x W^T as rows, and <h, att> by head                    for attention (attention.py)
    multiply first    y = A (x W^T) + b + x W_r^T + b_r          h = x W^T leaves its product as rows
    aggregate first   y = (A x) W^T + b + x W_r^T + b_r          z = A x leaves its sum as rows

A is a graph with fixed weights (mean, GCN's factors, GIN's own row included); the products of the node's own row are
optional. Backward, with Q(.) rounding rows stochastically and w the scales of W's outputs:

    dh = Q(A^T Q(dy) w)      dx = dh (codes of W)      dW = dh^T x^ / w           (ops/int8_grad.py)

    a = <h, att> = x^ v^T,   v = att W^ by head:       dx += da v,   dv = da^T x^,   datt = dv W^^T,   dW += att dv

A row scale leaves a sum only where it is constant along it; w is not, so it is folded into what is rounded before.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .. import memory
from ..activations.chain import LARGE
from ..activations.noise import refuse_twice
from ..state.location import layer_here
from .adjacency import Adjacency
from .box import Box, leave_box, stand_in
from .entry import BEFORE, Entry, Norm, come_in, leave, operand, refuse_nan
from .gradients import Delivered, Gradient, readers, through, through_projection
from .rows import Rows, Seeds, Weight, weight_rows
from .watch import Watch


class Projected:
    """Rows for attention: `h` stands for them where autograd looks, and their gradient is to be put into `box`."""

    h: Tensor
    rows: Rows
    terms: Tensor  # [len(att), nodes, heads]

    def __init__(self, heads: int) -> None:
        self.heads, self.box = heads, Box()


class Spec(NamedTuple):
    """One call: how rows come in, the adjacency, and what is done first."""

    entry: Entry
    first: str  # "products", "multiply" or "aggregate"
    box: Box
    adjacency: Adjacency | None = None
    projected: Projected | None = None


NO_NORM: Norm = (None, None, None, None)


class _Int8(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, nweight: Tensor | None, nbias: Tensor | None, nmean: Tensor | None, nvar: Tensor | None,
        rows: Tensor | None, att: Tensor | None, spec: Spec, *params: Tensor | None,
    ) -> tuple[Tensor, ...]:  # fmt: skip
        if not any(ctx.needs_input_grad):  # no backward will come
            spec = spec._replace(entry=spec.entry.unwatched())
        weights = [_weight(w, spec.entry.watch) for w in params[::2] if w is not None]
        biases, seeds = params[1::2], Seeds(spec.entry.how, x)
        wanted = any(ctx.needs_input_grad[:3])
        if any(ctx.needs_input_grad) and rows is None:
            spec.box.ask_for(readers(weights, spec, wanted), seeds, spec.entry.watch)
        came = come_in(x, (nweight, nbias, nmean, nvar), spec.entry, seeds)
        data = spec.entry.chain is None and not x.requires_grad
        outs, extra = _run(came.rows, spec, weights, biases, rows, att, seeds, data)
        kept: tuple[Tensor | None, ...] = came.tensors
        if spec.first == "aggregate" and extra and len(weights) == 1 and spec.entry.chain is None:
            kept = ()  # only what was aggregated is multiplied
        ctx.spec, ctx.projects = spec._replace(projected=None), spec.projected is not None  # which holds the result
        ctx.settings, ctx.seeds, ctx.counts = came.settings, seeds, (len(weights), len(kept))
        ctx.shape, ctx.layer = x.shape, layer_here() if torch.is_anomaly_enabled() else ""
        flat = [tensor for weight in weights for tensor in weight]
        ctx.save_for_backward(*flat, *kept, *extra)
        ctx.mark_non_differentiable(came.mean, came.var)
        return (*outs, came.mean, came.var)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        saved = ctx.saved_tensors  # once: checkpointing unpacks a tensor only once
        count, kept_count = ctx.counts
        size = len(Weight._fields)
        weights = [Weight(*saved[size * k : size * (k + 1)]) for k in range(count)]
        kept, extra = saved[size * count : size * count + kept_count], saved[size * count + kept_count :]
        spec, needs = ctx.spec, ctx.needs_input_grad
        if spec.entry.plan is not None and ctx.shape.numel() >= LARGE:
            memory.trim_heap()
        with torch.no_grad():
            found = spec.box.take(grads[0])
            douts: list[Gradient | Delivered] = [] if found is None else [Delivered(found)]
            for dout in grads[: 1 if ctx.projects else -2] if found is None else ():
                douts.append(Gradient(dout.contiguous(), ctx.seeds, spec.entry.watch))
            for each in douts:
                refuse_nan("the gradients", each.shown, ctx.layer or BEFORE)
            x = operand(kept, ctx.settings) if kept else None
            wanted = any(needs[:3])
            datt = None
            if ctx.projects:
                given = (weights[0], extra[0], grads[1], ctx.seeds, wanted)
                assert x is not None
                drows, dweight, datt = through_projection(douts[0], x, *given)
                dweights = [dweight]
            else:
                drows, dweights = through(douts, x, extra, weights, spec, ctx.seeds, wanted)
            dx, dnweight, dnbias = (None,) * 3 if drows is None else leave(drows, spec.entry, kept, ctx.settings)
            params: list[Tensor | None] = []
            sums = [d.sums() if any(needs[9 + 2 * k] for k in range(count)) else None for d in douts]
            for k, dweight in enumerate(dweights):
                own_sum = sums[min(k, len(sums) - 1)]
                params += [dweight if needs[8 + 2 * k] else None, own_sum if needs[9 + 2 * k] else None]
        if spec.entry.watch is not None:
            spec.entry.watch.end_step()
        own = (dx if needs[0] else None, dnweight if needs[1] else None, dnbias if needs[2] else None)
        others = (grads[0] if needs[5] else None, datt if needs[6] else None)
        return refuse_twice(*own, None, None, *others, None, *params)


def _weight(weight: Tensor, watch: Watch | None) -> Weight:
    made = weight_rows(weight)
    refuse_nan("the weights", made.scale)
    if watch is not None:
        watch.see("weight", weight, Rows(made.codes, made.scale))
    return made


def _run(
    x: Rows, spec: Spec, weights: Sequence[Weight], biases: Sequence[Tensor | None], rows: Tensor | None,
    att: Tensor | None, seeds: Seeds, data: bool,
) -> tuple[list[Tensor], tuple[Tensor, ...]]:  # fmt: skip
    """The results, and what else backward needs."""
    adjacency, watch, projected = spec.adjacency, spec.entry.watch, spec.projected
    if projected is not None:
        assert att is not None
        projected.rows, terms = weights[0].forward_heads(x, att, projected.heads, seeds.of_activation())
        return [stand_in(projected.rows.codes), terms], (att,)
    if adjacency is None:
        added = [rows, *[None] * (len(weights) - 1)]
        return [w.forward(x, b, r) for w, b, r in zip(weights, biases, added, strict=True)], ()
    if len(weights) > 1 and (spec.first == "multiply" or rows is not None):
        rows = weights[1].forward(x, biases[1], rows)
    if spec.first == "multiply":
        h = weights[0].forward_rows(x, seeds.of_activation())
        if watch is not None:
            watch.see("h", weights[0].forward(x), h)
        return [adjacency.sum(h, biases[0], rows)], ()
    again = data and spec.entry.plan is None and seeds.of_sum() is None
    z = adjacency.sum_of_data(x) if again else adjacency.sum_rows(x, seeds.of_sum())
    if watch is not None:
        watch.see("z", adjacency.sum(x, None, None), z)
    kept = () if spec.entry.plan is not None else z
    if len(weights) > 1 and rows is None:
        return [weights[0].forward_two(z, biases[0], weights[1], x, biases[1])], kept
    return [weights[0].forward(z, biases[0], rows)], kept


def products(
    x: Tensor, weights: Sequence[Tensor], biases: Sequence[Tensor | None], entry: Entry, norm: Norm = NO_NORM,
    rows: Tensor | None = None,
) -> tuple[Tensor, ...]:  # fmt: skip
    """x W_k^T + b_k for each k (the first plus `rows`), then the chain's mean and variance."""
    return _apply(x, norm, rows, Spec(entry, "products", Box()), weights, biases)


def project(
    x: Tensor, weight: Tensor, att: Tensor, heads: int, entry: Entry, norm: Norm = NO_NORM
) -> tuple[Projected | Tensor, ...]:
    """x W^T for attention with att [terms, columns], then the chain's mean and variance."""
    made = Projected(heads)
    spec = Spec(entry, "products", made.box, None, made)
    made.h, made.terms, *statistics = _apply(x, norm, None, spec, [weight], [None], att)
    return made, *statistics


def convolve(
    x: Tensor, adjacency: Adjacency, weights: Sequence[Tensor], biases: Sequence[Tensor | None],
    first: str, entry: Entry, norm: Norm = NO_NORM, rows: Tensor | None = None,
) -> tuple[Tensor, ...]:  # fmt: skip
    """Neighbours through the first weight, the nodes themselves through the second; then mean and variance.

    `first` is "multiply" or "aggregate".
    """
    return _apply(x, norm, rows, Spec(entry, first, Box(), adjacency), weights, biases)


def _apply(
    x: Tensor, norm: Norm, rows: Tensor | None, spec: Spec, weights: Sequence[Tensor], biases: Sequence[Tensor | None],
    att: Tensor | None = None,
) -> tuple[Tensor, ...]:  # fmt: skip
    params = [tensor for pair in zip(weights, biases, strict=True) for tensor in pair]
    outs = _Int8.apply(x.float().contiguous(), *norm, rows, att, spec, *params)
    if len(outs) == 3 and spec.projected is None:
        leave_box(outs[0], spec.box)
    return outs
