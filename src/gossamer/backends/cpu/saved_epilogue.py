"""Native kernel of ops/saved_epilogue.py."""

from __future__ import annotations

from torch import Tensor

from ...native import library, num_threads
from ...ops._library import implement
from ...ops.saved_epilogue import SavedEpilogue, saved_products
from ._arguments import at, contiguous, enough
from ._saved_epilogue import contiguous_saved, native_epilogue
from ._weight_grads import WeightGrads


def _saved_products(
    douts: list[Tensor], k: SavedEpilogue, weight: Tensor | None, bias: Tensor | None, result: bool
) -> list[Tensor]:
    k = contiguous_saved(k)
    if k.rows * k.columns == 0 or not douts:
        return [dout.new_zeros(dout.size(1), k.columns) for dout in douts]
    wanted, (weight, bias) = WeightGrads(douts, k.rows, k.columns), contiguous(weight, bias)
    given = (native_epilogue(k), at(weight), at(bias), result)
    enough(library.saved_weight_grad(*given, *wanted.arguments, k.rows, k.columns, num_threads()))
    return wanted.dws


implement(saved_products, "cpu", _saved_products)
