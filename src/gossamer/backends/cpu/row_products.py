"""Native kernel of ops/row_products.py."""

from __future__ import annotations

from torch import Tensor

from ... import memory
from ...native import library, num_threads
from ...ops._library import implement
from ...ops.row_products import row_products
from ._arguments import F32, at, contiguous, enough


def _row_products(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    (rows, columns), outputs = x.shape, weight.size(0)
    if min(rows, columns, outputs) == 0:
        return row_products.reference(x, weight, bias)
    x, weight = contiguous(x, weight)
    shift = x.new_zeros(outputs) if bias is None else bias + 0.0  # which turns -0 into 0
    out = memory.empty([rows, outputs], F32)
    enough(library.row_products(at(x), at(weight), at(shift), at(out), rows, columns, outputs, num_threads()))
    return out


implement(row_products, "cpu", _row_products)
