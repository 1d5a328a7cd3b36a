"""Gradients of products and neighbour sums of int8 rows (conv.py has the formulas)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from torch import Tensor

from .. import ops
from .adjacency import Adjacency
from .rows import Rows, Seeds, Weight
from .watch import Watch

if TYPE_CHECKING:
    from .conv import Spec

Back = tuple[Tensor | None, list[Tensor]]


def through(
    douts: list[Tensor], x: Rows | None, extra: Sequence[Tensor], weights: Sequence[Weight], spec: Spec, seeds: Seeds,
    wanted: bool,
) -> Back:  # fmt: skip
    """Gradients of the rows that came in (if wanted) and of the weights."""
    adjacency, watch = spec.adjacency, spec.entry.watch
    if adjacency is None:
        return _through_products(zip(douts, weights, strict=True), x, seeds, wanted, watch)
    (dout,), drows = douts, None
    if spec.first == "multiply":
        g = _rounded(dout, None, seeds, watch)
        dh = adjacency.back_rows(g, weights[0].folded, seeds.of_gradient())
        if watch is not None:
            watch.see("dh", adjacency.back(g), dh, weights[0].folded)
        drows = weights[0].backward(dh) if wanted else None
        first = _dweight(dh, x, weights[0], seeds)
    else:
        z = Rows(*extra) if extra else adjacency.sum_rows(x, seeds.of_sum())  # type: ignore[arg-type]
        first, drows = _through_sum(dout, z, weights[0], adjacency, seeds, wanted, watch)
    own = [(dout, weight) for weight in weights[1:]]
    drows, others = _through_products(own, x, seeds, wanted, watch, drows)
    return drows, [first, *others]


def _through_sum(
    dout: Tensor, z: Rows, weight: Weight, adjacency: Adjacency, seeds: Seeds, wanted: bool, watch: Watch | None
) -> tuple[Tensor, Tensor | None]:
    """The gradients of a weight behind a sum and, if wanted, of the rows before it."""
    if not wanted:
        return _dweight(dout, z, weight, seeds), None
    g = _rounded(dout, weight.folded, seeds, watch)
    dz = weight.backward_rows(g, seeds.of_gradient())
    if watch is not None:
        watch.see("dz", weight.backward(g), dz)
    drows = adjacency.back(dz)
    return _dweight(g, z, weight, seeds), drows


def _through_products(
    pairs: Iterable[tuple[Tensor, Weight]], x: Rows | None, seeds: Seeds, wanted: bool, watch: Watch | None,
    drows: Tensor | None = None,
) -> Back:  # fmt: skip
    dweights = []
    for dout, weight in pairs:
        g = _rounded(dout, weight.folded, seeds, watch) if wanted else dout
        drows = weight.backward(g, drows) if isinstance(g, Rows) else drows
        dweights.append(_dweight(g, x, weight, seeds))
    return drows, dweights


def _rounded(dout: Tensor, factor: Tensor | None, seeds: Seeds, watch: Watch | None) -> Rows:
    rows = Rows(*ops.quantize_times(dout, factor, seeds.of_gradient()))
    if watch is not None:
        watch.see("dout", dout, rows, factor)
    return rows


def _dweight(g: Rows | Tensor, x: Rows | None, weight: Weight, seeds: Seeds) -> Tensor:
    """dW from gradients, or from rows of gradients that were multiplied by the weight's scales."""
    assert x is not None
    seed = seeds.of_weight_gradient()
    if isinstance(g, Tensor):
        return ops.int8_grad(g, None, *x, seed)
    return ops.int8_grad(*g, *x, seed).div_(weight.folded.unsqueeze(1))
