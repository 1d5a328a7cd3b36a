"""Gradients of products and neighbour sums of int8 rows (conv.py has the formulas)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from torch import Tensor

from .. import ops
from .adjacency import Adjacency
from .box import Found
from .rows import Rows, Seeds, Weight
from .watch import Watch

if TYPE_CHECKING:
    from .conv import Spec

Back = tuple[Tensor | None, list[Tensor]]


class Gradient:
    """The gradient of a result, in float32."""

    def __init__(self, dout: Tensor, seeds: Seeds, watch: Watch | None) -> None:
        self.shown, self._seeds, self._watch = dout, seeds, watch

    def rounded(self, factor: Tensor | None) -> Rows:
        rows = Rows(*ops.quantize_times(self.shown, factor, self._seeds.of_gradient()))
        if self._watch is not None:
            self._watch.see("dout", self.shown, rows, factor)
        return rows

    def sums(self) -> Tensor:
        return ops.column_sums(self.shown)

    def times(self, x: Rows, seed: int) -> Tensor:
        """dout^T x^."""
        return ops.int8_grad(self.shown, None, *x, seed)


class Delivered:
    """The gradient as it came in a box: rows by each factor, in the order of `readers`, and column sums."""

    def __init__(self, found: Found) -> None:
        self._rows, self._sums, self._next = found.rows, found.sums, 0

    @property
    def shown(self) -> Tensor:
        return self._rows[0].scale

    def rounded(self, factor: Tensor | None) -> Rows:
        self._next += 1
        return self._rows[self._next - 1]

    def sums(self) -> Tensor:
        return self._sums

    def times(self, x: Rows, seed: int) -> Tensor:
        return ops.int8_grad(*self._rows[0], *x, seed)


def readers(weights: Sequence[Weight], spec: Spec, wanted: bool) -> list[Tensor | None]:
    """The factors by which backward will want the gradient rounded, in that order; the first may serve `times` too."""
    if spec.first == "multiply":
        return [None, *(weight.folded for weight in weights[1:] if wanted)]
    return [weight.folded for weight in weights] if wanted else [None]


def through(
    douts: Sequence[Gradient | Delivered], x: Rows | None, extra: Sequence[Tensor], weights: Sequence[Weight],
    spec: Spec, seeds: Seeds, wanted: bool,
) -> Back:  # fmt: skip
    """Gradients of the rows that came in (if wanted) and of the weights."""
    adjacency, watch = spec.adjacency, spec.entry.watch
    if adjacency is None:
        return _through_products(zip(douts, weights, strict=True), x, seeds, wanted)
    (dout,), drows = douts, None
    waiting: list[tuple[Weight, Rows]] = []
    if spec.first == "multiply":
        g = dout.rounded(None)
        dh = adjacency.back_rows(g, weights[0].folded, seeds.of_gradient())
        if watch is not None:
            watch.see("dh", adjacency.back(g), dh, weights[0].folded)
        waiting = [(weights[0], dh)] if wanted else []
        first = _dweight(dh, x, weights[0], seeds)
    else:
        z = Rows(*extra) if extra else adjacency.sum_rows(x, seeds.of_sum())  # type: ignore[arg-type]
        first, drows = _through_sum(dout, z, weights[0], adjacency, seeds, wanted, watch)
    own = [(dout, weight) for weight in weights[1:]]
    drows, others = _through_products(own, x, seeds, wanted, drows, waiting)
    return drows, [first, *others]


def _through_sum(
    dout: Gradient | Delivered, z: Rows, weight: Weight, adjacency: Adjacency, seeds: Seeds, wanted: bool,
    watch: Watch | None,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    """The gradients of a weight behind a sum and, if wanted, of the rows before it."""
    if not wanted:
        return dout.times(z, seeds.of_weight_gradient()), None
    g = dout.rounded(weight.folded)
    dz = weight.backward_rows(g, seeds.of_gradient())
    if watch is not None:
        watch.see("dz", weight.backward(g), dz)
    return _dweight(g, z, weight, seeds), adjacency.back(dz)


def _through_products(
    pairs: Iterable[tuple[Gradient | Delivered, Weight]], x: Rows | None, seeds: Seeds, wanted: bool,
    drows: Tensor | None = None, waiting: Iterable[tuple[Weight, Rows]] = (),
) -> Back:  # fmt: skip
    """`waiting` are gradients whose products are part of that of the rows as well."""
    dweights, behind = [], list(waiting)
    for dout, weight in pairs:
        assert x is not None
        if not wanted:
            dweights.append(dout.times(x, seeds.of_weight_gradient()))
            continue
        g = dout.rounded(weight.folded)
        behind.append((weight, g))
        dweights.append(_dweight(g, x, weight, seeds))
    return _sum_of_products(behind, drows), dweights


def through_projection(
    dout: Gradient | Delivered, x: Rows, weight: Weight, att: Tensor, da: Tensor, seeds: Seeds, wanted: bool
) -> tuple[Tensor | None, Tensor, Tensor]:
    """Gradients of the rows that came in (if wanted), of the weight and of att, from those of rows and of <rows, att>.

    The latter never become part of the rows' gradient, which would round them with it: the terms are products of x too.
    """
    count, nodes, heads = da.shape
    flat = da.transpose(0, 1).reshape(nodes, count * heads)
    whole = (weight.codes * weight.scale.unsqueeze(1)).view(1, heads, -1, x.codes.size(1))  # [1, heads, width, columns]
    by_head = att.view(count, heads, -1, 1)
    drows = None
    if wanted:
        g = dout.rounded(weight.folded)
        drows = weight.backward_plus(g, flat, (by_head * whole).sum(2).view(count * heads, -1))
        dweight = _dweight(g, x, weight, seeds)
    else:
        dweight = dout.times(x, seeds.of_weight_gradient())
    dv = ops.int8_grad_exact(flat, *x).view(count, heads, 1, -1)
    dweight += (by_head * dv).sum(0).view_as(dweight)
    return drows, dweight, (whole * dv).sum(3).view_as(att)


def _sum_of_products(products: list[tuple[Weight, Rows]], drows: Tensor | None) -> Tensor | None:
    """The gradient of rows that all these weights multiplied, two products at a time."""
    if drows is None and len(products) > 1:
        (other, g2), (weight, g), *products = products
        drows = weight.backward_two(g, other, g2)
    for weight, g in products:
        drows = weight.backward(g, drows)
    return drows


def _dweight(g: Rows, x: Rows | None, weight: Weight, seeds: Seeds) -> Tensor:
    """dW from rows of gradients that were multiplied by the weight's scales."""
    assert x is not None
    return ops.int8_grad(*g, *x, seeds.of_weight_gradient()).div_(weight.folded.unsqueeze(1))
