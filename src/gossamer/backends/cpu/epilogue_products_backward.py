"""Native kernel of ops/epilogue_products_backward.py."""

from __future__ import annotations

from torch import Tensor

from ... import memory
from ...native import library, num_threads
from ...ops._library import implement
from ...ops.epilogue_products_backward import ProductsGradient, epilogue_products_backward
from ...ops.norm_act import Epilogue
from ._arguments import F32, at, enough
from ._norm import column_affine, pointwise


def _epilogue_products_backward(gs: list[Tensor], weights: list[Tensor], x: Tensor, e: Epilogue) -> ProductsGradient:
    (rows, columns), dz = x.shape, memory.empty(x.shape, F32)
    dws = [memory.empty([g.size(1), columns], F32) for g in gs]
    some = [k for k, g in enumerate(gs) if g.numel()]  # kernels get no empty tensors
    if x.numel() == 0 or not some:
        return ProductsGradient([dw.zero_() for dw in dws], dz.zero_())
    x, gs, weights = x.contiguous(), [g.contiguous() for g in gs], [w.contiguous() for w in weights]
    scale, shift, *_ = column_affine(x, e)
    outs = -(-sum(gs[k].size(1) for k in some) // 16) * 16
    partial = memory.empty([library.grad_slabs(rows, outs, columns), columns, outs], F32)
    products = ([at(tensors[k]) for k in some] for tensors in (gs, weights, dws))
    given = (at(x), at(scale), at(shift), *pointwise(e), *products, [gs[k].size(1) for k in some])
    enough(library.epilogue_products_backward(*given, at(partial), at(dz), rows, columns, num_threads()))
    return ProductsGradient(dws, dz)


implement(epilogue_products_backward, "cpu", _epilogue_products_backward)
