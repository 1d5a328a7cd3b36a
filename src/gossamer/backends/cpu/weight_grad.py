"""Native kernel of ops/weight_grad.py."""

from __future__ import annotations

from torch import Tensor

from ...native import library, num_threads
from ...ops._library import implement
from ...ops.weight_grad import weight_grad
from ._arguments import F32, at, enough
from ._weight_grads import WeightGrads


def _weight_grad(g: Tensor, x: Tensor) -> Tensor:
    if x.dtype != F32 or min(*x.shape, g.size(1)) == 0:
        return weight_grad.reference(g, x)
    x, wanted = x.contiguous(), WeightGrads([g], x.size(0), x.size(1))
    enough(library.weight_grad(at(x), *wanted.arguments, *x.shape, num_threads()))
    return wanted.dws[0]


implement(weight_grad, "cpu", _weight_grad)
