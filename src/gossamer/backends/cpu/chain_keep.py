"""Native kernel of ops/chain_keep.py."""

from __future__ import annotations

from torch import Tensor

from ... import memory
from ...ops._library import implement
from ...ops.chain_keep import Packing, SavingResult, chain_keep
from ...ops.norm_act import Epilogue
from ._arguments import F32
from ._chain_keep import keeping


def _chain_keep(
    x: Tensor, e: Epilogue, packing: Packing, products: list[Tensor], biases: list[Tensor | None]
) -> SavingResult:
    found = keeping(x, e, packing)
    if found is None:
        return chain_keep.reference(x, e, packing, products, biases)
    rows = x.size(0)
    outs = [memory.empty([rows, product.size(0)], F32) for product in products] or [memory.empty(x.shape, F32)]
    if products:
        found.multiply(outs, products, biases)
    else:
        found.run(0, rows, outs[0])
    return SavingResult(outs, found.mean, found.var, *found.packed)


implement(chain_keep, "cpu", _chain_keep)
