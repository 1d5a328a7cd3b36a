"""Products and neighbour sums of int8 rows, in integers forward and backward.

    products          y_k = x W_k^T + b_k
    projections       h = x W^T as rows, and <h, att> by head                    for attention (gat.py)
    multiply first    y = A (x W^T) + b + x W_r^T + b_r          h = x W^T leaves its product as rows
    aggregate first   y = (A x) W^T + b + x W_r^T + b_r          z = A x leaves its sum as rows

A is a fixed adjacency; the products of the node's own row are optional. Backward, with Q(.) rounding rows
stochastically and w the scales of W's outputs:

    dh = Q(A^T Q(dy) w)      dx = dh (codes of W)      dW = dh^T x^ / w           (ops/int8_grad.py)

    a = <h, att> = x^ v^T,   v = att W^ by head:       dx += da v,   dv = da^T x^,   datt = dv W^^T,   dW += att dv

A row scale leaves a sum only where it is constant along it; w is not, so it is folded into what is rounded before.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from ... import memory, ops
from ...aggregate import Adjacency
from ...ops.linear import bias_gradient
from ...ops.norm_act import Epilogue
from ...ops.quantize_rows import QRows
from ...state.location import layer_here
from ..gradient import QGradient, QTensor, Request, whole, without_memory
from ..noise import refuse_twice
from ..saved.epilogue import LARGE
from ..virtual import Pending
from .entry import BEFORE, Entry, SavedInput, enter, leave, refuse_nan
from .qrows import Seeds, Weight, weight_rows

PLAIN = "plain"
"""The name of gradient rows that no factor multiplies; others are named by the position of their weight."""


class Spec(NamedTuple):
    """One call: how rows come in, what is done, and what is asked of the gradient."""

    entry: Entry
    first: Literal["products", "multiply", "aggregate"]
    request: Request
    adjacency: Adjacency | None = None
    heads: int = 0
    """Of a projection for attention; 0: it is none."""


# Forward ----------------------------------------------------------------------------------------------------------


class _Int8(torch.autograd.Function):
    """What autograd is to know of a call that has run: x and the parameters may thus be without memory by now."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, nweight: Tensor | None, nbias: Tensor | None, add: Tensor | None, att: Tensor | None,
        begun: _Begun, outs: list[Tensor], z: QRows | None, *params: Tensor | None,
    ) -> tuple[Tensor, ...]:  # fmt: skip
        spec = begun.spec
        ctx.request = spec.request if len(outs) == 1 or spec.heads else None
        ctx.spec = spec._replace(entry=spec.entry._replace(epilogue=None))
        ctx.seeds, ctx.layer = begun.seeds, layer_here() if torch.is_anomaly_enabled() else ""
        ctx.large = x.numel() >= LARGE
        tensors, ctx.saved = begun.saved.flatten()
        ctx.counts = (len(begun.weights), len(tensors))
        flat = [tensor for weight in begun.weights for tensor in weight]
        ctx.save_for_backward(*flat, *tensors, *(z or ()), att)
        ctx.mark_non_differentiable(begun.mean, begun.var)
        return (*outs, begun.mean, begun.var)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        saved = list(ctx.saved_tensors)  # once: checkpointing unpacks a tensor only once
        weights = [Weight(*(saved.pop(0) for _ in Weight._fields)) for _ in range(ctx.counts[0])]
        tensors, (*z, att) = saved[: ctx.counts[1]], saved[ctx.counts[1] :]
        spec, needs, entered = ctx.spec, _Needs.of(ctx), ctx.saved.unflatten(tensors)
        if spec.entry.saving is not None and ctx.large:
            memory.trim_heap()
        with torch.no_grad():
            douts = _gradients_of(grads, ctx)
            datt = None
            if spec.heads:
                x = entered.operand()
                assert x is not None
                drows, dweight, datt = _through_projection(
                    douts[0], x, weights[0], att, grads[1], ctx.seeds, needs.rows
                )
                dweights = [dweight]
            else:
                drows, dweights = _through(
                    douts, entered, QRows(*z) if z else None, weights, spec, ctx.seeds, needs.rows
                )
            dx, dnweight, dnbias = (None,) * 3 if drows is None else leave(drows, spec.entry.asked, entered)
            sums = [dout.sums() if any(needs.biases) else None for dout in douts]
            params: list[Tensor | None] = []
            for k, dweight in enumerate(dweights):
                own = sums[min(k, len(sums) - 1)]
                params += [dweight if needs.weights[k] else None, own if needs.biases[k] else None]
        if spec.entry.watch is not None:
            spec.entry.watch.end_step()
        own_grads = (dx if needs.x else None, dnweight if needs.nweight else None, dnbias if needs.nbias else None)
        others = (grads[0] if needs.add else None, datt if needs.att else None)
        return refuse_twice(*own_grads, *others, None, None, None, *params)


class _Needs(NamedTuple):
    """Which inputs of `_Int8` need a gradient."""

    x: bool
    nweight: bool
    nbias: bool
    add: bool
    att: bool
    weights: Sequence[bool]
    biases: Sequence[bool]

    @classmethod
    def of(cls, ctx: Any) -> _Needs:
        x, nweight, nbias, add, att, _, _, _, *params = ctx.needs_input_grad
        return cls(x, nweight, nbias, add, att, params[::2], params[1::2])

    @property
    def rows(self) -> bool:
        """Whether the gradient of the rows that come in is needed."""
        return self.x or self.nweight or self.nbias


def _weight(weight: Tensor, watch: Any) -> Weight:
    made = weight_rows(weight)
    refuse_nan("the weights", made.scale)
    if watch is not None:
        watch.see("weight", weight, made.rows)
    return made


class _Begun(NamedTuple):
    """A call up to the sum along edges, which may wait: by then neither x nor its rows need be there."""

    x: Tensor
    """Its place in the graph, maybe without its memory."""
    spec: Spec
    rows: QRows
    """x; multiplied first, x W^T."""
    saved: SavedInput
    mean: Tensor
    var: Tensor
    weights: list[Weight]
    params: Sequence[Tensor | None]
    add: Tensor | None
    own: Tensor | None
    """What is added to the sum: `add`, and the node's own product if that came first."""
    att: Tensor | None
    seeds: Seeds
    is_input: bool

    def finish(self, waits: bool = False) -> tuple[Tensor, ...]:
        """The results, then the epilogue's mean and variance; a sum that comes last may be left waiting."""
        outs: list[Tensor]
        z: QRows | None = None
        if waits and self.spec.first == "multiply":
            assert self.spec.adjacency is not None
            shape = torch.Size((self.spec.adjacency.graph.num_dst, self.rows.codes.size(1)))
            outs = [Pending(shape, lambda: _finish(self)[0][0])]
        else:
            with torch.no_grad():
                outs, z = _finish(self)
        saved, spec, norm = self.saved, self.spec, self.spec.entry.epilogue or Epilogue()
        if spec.first == "aggregate" and z is not None and len(self.weights) == 1 and spec.entry.epilogue is None:
            saved = SavedInput()  # only what was aggregated is multiplied
        given = (self.x, norm.weight, norm.bias, self.add, self.att)
        return _Int8.apply(*given, self._replace(saved=saved), outs, z, *self.params)


def _begin(
    x: Tensor | list[Tensor], add: Tensor | None, spec: Spec, weights: Sequence[Tensor],
    biases: Sequence[Tensor | None], att: Tensor | None = None,
) -> _Begun:  # fmt: skip
    """`x` may be the only reference to a tensor, in a list: that is emptied, and x is free once it is quantised."""
    given = (x.pop() if isinstance(x, list) else x).float().contiguous()
    params = [tensor for pair in zip(weights, biases, strict=True) for tensor in pair]
    norm, add = spec.entry.epilogue or Epilogue(), None if add is None else add.float()  # bfloat16 by autocast
    needs_rows, needs_any = (
        _require_grad(given, norm.weight, norm.bias, *others) for others in ((), (add, att, *params))
    )
    if not needs_any:  # no backward will come
        spec = spec._replace(entry=spec.entry._replace(watch=None))
    seeds, is_input = Seeds(spec.entry.setting, given), spec.entry.epilogue is None and not given.requires_grad
    with torch.no_grad():
        ws = [_weight(weight, spec.entry.watch) for weight in weights]
        if needs_any and add is None:
            spec.request.ask_for(_wanted_rows(ws, spec, needs_rows), seeds, spec.entry.watch)
        rows, saved, mean, var = enter(given, spec.entry, seeds)
        if spec.entry.epilogue is not None and saved.x is None:
            with torch.set_grad_enabled(needs_rows):
                given = without_memory(given)
        own = add
        if spec.adjacency is not None and len(ws) > 1 and (spec.first == "multiply" or add is not None):
            own = ws[1].forward(rows, params[3], add)
        if spec.first == "multiply":
            h = ws[0].forward_rows(rows, seeds.of_activation())
            if spec.entry.watch is not None:
                spec.entry.watch.see("h", ws[0].forward(rows), h)
            rows = h
    return _Begun(given, spec, rows, saved, mean, var, ws, params, add, own, att, seeds, is_input)


def _require_grad(*tensors: Tensor | None) -> bool:
    return torch.is_grad_enabled() and any(tensor is not None and tensor.requires_grad for tensor in tensors)


def _finish(begun: _Begun) -> tuple[list[Tensor], QRows | None]:
    """The results, and the neighbour sums of x if backward needs them."""
    spec, rows, weights, biases, seeds = begun.spec, begun.rows, begun.weights, begun.params[1::2], begun.seeds
    adjacency, watch = spec.adjacency, spec.entry.watch
    if spec.heads:
        assert begun.att is not None
        h, terms = weights[0].forward_heads(rows, begun.att, spec.heads, seeds.of_activation())
        return [QTensor({PLAIN: h}, {PLAIN: None}), terms], None
    if adjacency is None:
        added = [begun.add, *[None] * (len(weights) - 1)]
        return [w.forward(rows, b, a) for w, b, a in zip(weights, biases, added, strict=True)], None
    if spec.first == "multiply":
        return [adjacency.product_of_rows(rows, biases[0], begun.own)], None
    once = begun.is_input and spec.entry.saving is None and seeds.of_sum() is None
    z = adjacency.product_rows_once(rows) if once else adjacency.product_rows(rows, seeds.of_sum())
    if watch is not None:
        watch.see("z", adjacency.product_of_rows(rows), z)
    saved = None if spec.entry.saving is not None else z
    if len(weights) > 1 and begun.add is None:
        return [weights[0].forward_two(z, biases[0], weights[1], rows, biases[1])], saved
    return [weights[0].forward(z, biases[0], begun.own)], saved


def products(
    x: Tensor | list[Tensor], weights: Sequence[Tensor], biases: Sequence[Tensor | None], entry: Entry,
    add: Tensor | None = None,
) -> tuple[Tensor, ...]:  # fmt: skip
    """x W_k^T + b_k for each k (the first plus `add`), then the epilogue's mean and variance.

    Here and below, x may be the only reference to a tensor, in a list: it is free as soon as it is quantised.
    """
    return _begin(x, add, Spec(entry, "products", Request()), weights, biases).finish()


def project(x: Tensor | list[Tensor], weight: Tensor, att: Tensor, heads: int, entry: Entry) -> tuple[Tensor, ...]:
    """x W^T as int8 rows (a QTensor), their products with att [terms, columns] by head, then mean and variance."""
    return _begin(x, None, Spec(entry, "products", Request(), heads=heads), [weight], [None], att).finish()


def convolve(
    x: Tensor | list[Tensor], adjacency: Adjacency, weights: Sequence[Tensor], biases: Sequence[Tensor | None],
    first: Literal["multiply", "aggregate"], entry: Entry, add: Tensor | None = None, waits: bool = False,
) -> tuple[Tensor, ...]:  # fmt: skip
    """Neighbours through the first weight, the nodes themselves through the second; then mean and variance.

    Multiplied first, the sum may wait until it is read.
    """
    return _begin(x, add, Spec(entry, first, Request(), adjacency), weights, biases).finish(waits)


# Backward ---------------------------------------------------------------------------------------------------------

Rows = dict[Hashable, Tensor | None]


class _FloatGradient:
    """The gradient of a result, in float32."""

    def __init__(self, dout: Tensor, seeds: Seeds, watch: Any) -> None:
        self.shown, self._seeds, self._watch = dout, seeds, watch

    def rows(self, name: Hashable, factor: Tensor | None) -> QRows:
        """Rows of dout * factor."""
        rows = ops.quantize_times(self.shown, factor, self._seeds.of_gradient())
        if self._watch is not None:
            self._watch.see("dout", self.shown, rows, factor)
        return rows

    def sums(self) -> Tensor:
        return bias_gradient(self.shown)

    def times(self, x: QRows, seed: int) -> Tensor:
        """dout^T x^."""
        return ops.int8_grad(self.shown, None, x, seed)


class _RowsGradient:
    """The gradient as it was requested: rows by name, and column sums."""

    def __init__(self, gradient: QGradient) -> None:
        assert gradient.rows is not None
        self._rows, self._sums = gradient.rows, gradient.sums
        self.shown = next(iter(self._rows.values())).scale

    def rows(self, name: Hashable, factor: Tensor | None) -> QRows:
        return self._rows[name]

    def sums(self) -> Tensor:
        return self._sums

    def times(self, x: QRows, seed: int) -> Tensor:
        return ops.int8_grad(*self._rows[PLAIN], x, seed)


Gradient = _FloatGradient | _RowsGradient


def _gradients_of(grads: Sequence[Tensor], ctx: Any) -> list[Gradient]:
    """One for each result."""
    spec: Spec = ctx.spec
    answer = spec.request.answer(grads[0])
    douts: list[Gradient]
    if answer is not None:
        douts = [_RowsGradient(answer)]
    else:
        floats = grads[:1] if spec.heads else grads[:-2]
        douts = [_FloatGradient(whole(dout), ctx.seeds, spec.entry.watch) for dout in floats]
    for dout in douts:
        refuse_nan("the gradients", dout.shown, ctx.layer or BEFORE)
    return douts


def _wanted_rows(weights: Sequence[Weight], spec: Spec, needs_rows: bool) -> Rows:
    """The rows of the gradient that backward will read, by name, with their factors."""
    if spec.first == "multiply":
        wanted: Rows = {PLAIN: None}
        wanted |= {k: weight.folded for k, weight in enumerate(weights) if k > 0 and needs_rows}
        return wanted
    return {k: weight.folded for k, weight in enumerate(weights)} if needs_rows else {PLAIN: None}


def _through(
    douts: Sequence[Gradient], entered: SavedInput, z: QRows | None, weights: Sequence[Weight], spec: Spec,
    seeds: Seeds, needs_rows: bool,
) -> tuple[Tensor | None, list[Tensor]]:  # fmt: skip
    """Gradients of the rows that came in (if needed) and of the weights.

    The rows' float32 gradient is the largest, so it comes last: what the weights' read is free by then.
    """
    adjacency, watch, named = spec.adjacency, spec.entry.watch, list(enumerate(weights))
    x = entered.operand()
    if adjacency is None:
        pairs = [(dout, k, weight) for dout, (k, weight) in zip(douts, named, strict=True)]
        behind, dweights = _of_products(pairs, x, seeds, needs_rows)
        del x
        return _sum_of_products(behind, None), dweights
    (dout,), drows = douts, None
    waiting: list[tuple[Weight, QRows]] = []
    if spec.first == "multiply":
        g = dout.rows(PLAIN, None)
        dh = adjacency.back_rows(g, weights[0].folded, seeds.of_gradient())
        if watch is not None:
            watch.see("dh", adjacency.back_of_rows(g), dh, weights[0].folded)
        del g
        waiting = [(weights[0], dh)] if needs_rows else []
        first = _dweight(dh, x, weights[0], seeds)
    else:
        if z is None:
            assert x is not None
            z = adjacency.product_rows(x, seeds.of_sum())
        first, drows = _through_sum(dout, z, weights[0], adjacency, seeds, needs_rows, watch)
    behind, others = _of_products([(dout, k, weight) for k, weight in named[1:]], x, seeds, needs_rows)
    del x
    return _sum_of_products([*waiting, *behind], drows), [first, *others]


def _through_sum(
    dout: Gradient, z: QRows, weight: Weight, adjacency: Adjacency, seeds: Seeds, needs_rows: bool, watch: Any
) -> tuple[Tensor, Tensor | None]:
    """The gradients of a weight behind a sum and, if needed, of the rows before it."""
    if not needs_rows:
        return dout.times(z, seeds.of_weight_gradient()), None
    g = dout.rows(0, weight.folded)
    dz = weight.backward_rows(g, seeds.of_gradient())
    if watch is not None:
        watch.see("dz", weight.backward(g), dz)
    return _dweight(g, z, weight, seeds), adjacency.back_of_rows(dz)


def _of_products(
    results: Iterable[tuple[Gradient, int, Weight]], x: QRows | None, seeds: Seeds, needs_rows: bool
) -> tuple[list[tuple[Weight, QRows]], list[Tensor]]:
    """What the gradient of the rows that came in is the sum of, if it is needed, and the gradients of the weights."""
    dweights, behind = [], []
    for dout, name, weight in results:
        assert x is not None
        if not needs_rows:
            dweights.append(dout.times(x, seeds.of_weight_gradient()))
            continue
        g = dout.rows(name, weight.folded)
        behind.append((weight, g))
        dweights.append(_dweight(g, x, weight, seeds))
    return behind, dweights


def _through_projection(
    dout: Gradient, x: QRows, weight: Weight, att: Tensor, da: Tensor, seeds: Seeds, needs_rows: bool
) -> tuple[Tensor | None, Tensor, Tensor]:
    """Gradients of the rows that came in (if needed), of the weight and of att, from those of rows and of <rows, att>.

    The latter never become part of the rows' gradient, which would round them with it: the terms are products of x too.
    """
    count, nodes, heads = da.shape
    flat = da.transpose(0, 1).reshape(nodes, count * heads)
    decoded = (weight.codes * weight.scale.unsqueeze(1)).view(
        1, heads, -1, x.codes.size(1)
    )  # [1, heads, width, columns]
    by_head = att.view(count, heads, -1, 1)
    drows = None
    if needs_rows:
        g = dout.rows(0, weight.folded)
        drows = weight.backward_plus(g, flat, (by_head * decoded).sum(2).view(count * heads, -1))
        dweight = _dweight(g, x, weight, seeds)
    else:
        dweight = dout.times(x, seeds.of_weight_gradient())
    dv = ops.int8_grad_exact(flat, x).view(count, heads, 1, -1)
    dweight += (by_head * dv).sum(0).view_as(dweight)
    return drows, dweight, (decoded * dv).sum(3).view_as(att)


def _sum_of_products(results: list[tuple[Weight, QRows]], drows: Tensor | None) -> Tensor | None:
    """The gradient of rows that all these weights multiplied, two products at a time."""
    if drows is None and len(results) > 1:
        (other, g2), (weight, g), *results = results
        drows = weight.backward_two(g, other, g2)
    for weight, g in results:
        drows = weight.backward(g, drows)
    return drows


def _dweight(g: QRows, x: QRows | None, weight: Weight, seeds: Seeds) -> Tensor:
    """dW from rows of gradients that were multiplied by the weight's scales."""
    assert x is not None
    return ops.int8_grad(*g, x, seeds.of_weight_gradient()).div_(weight.folded.unsqueeze(1))
