"""Native kernel of ops/kept_chain.py."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from ...native import library, num_threads
from ...ops._library import OPS, implement
from ._arguments import at, contiguous, enough
from ._kept_chain import contiguous_kept, native_chain
from ._weight_grads import WeightGrads


def _kept_products(douts: list[Tensor], *args: Any) -> list[Tensor]:
    k, (weight, bias, result) = contiguous_kept(args), args[15:]
    if k.rows * k.columns == 0 or not douts:
        return [dout.new_zeros(dout.size(1), k.columns) for dout in douts]
    wanted, (weight, bias) = WeightGrads(douts, k.rows, k.columns), contiguous(weight, bias)
    given = (native_chain(k), at(weight), at(bias), result)
    enough(library.kept_weight_grad(*given, *wanted.arguments, k.rows, k.columns, num_threads()))
    return wanted.dws


implement(OPS["kept_products"], "cpu", _kept_products)
