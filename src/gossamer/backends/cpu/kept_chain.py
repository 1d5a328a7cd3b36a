"""Native kernel of ops/kept_chain.py."""

from __future__ import annotations

from torch import Tensor

from ...native import library, num_threads
from ...ops._library import implement
from ...ops.kept_chain import SavedEpilogue, kept_products
from ._arguments import at, contiguous, enough
from ._kept_chain import contiguous_kept, native_chain
from ._weight_grads import WeightGrads


def _kept_products(
    douts: list[Tensor], k: SavedEpilogue, weight: Tensor | None, bias: Tensor | None, result: bool
) -> list[Tensor]:
    k = contiguous_kept(k)
    if k.rows * k.columns == 0 or not douts:
        return [dout.new_zeros(dout.size(1), k.columns) for dout in douts]
    wanted, (weight, bias) = WeightGrads(douts, k.rows, k.columns), contiguous(weight, bias)
    given = (native_chain(k), at(weight), at(bias), result)
    enough(library.kept_weight_grad(*given, *wanted.arguments, k.rows, k.columns, num_threads()))
    return wanted.dws


implement(kept_products, "cpu", _kept_products)
