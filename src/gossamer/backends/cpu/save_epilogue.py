"""Native kernel of ops/save_epilogue.py."""

from __future__ import annotations

from torch import Tensor

from ... import memory
from ...ops._library import implement
from ...ops.norm_act import Epilogue
from ...ops.save_epilogue import Packing, SavingResult, save_epilogue
from ._arguments import F32
from ._save_epilogue import saving


def _save_epilogue(
    x: Tensor, e: Epilogue, packing: Packing, products: list[Tensor], biases: list[Tensor | None]
) -> SavingResult:
    found = saving(x, e, packing)
    if found is None:
        return save_epilogue.reference(x, e, packing, products, biases)
    rows = x.size(0)
    outs = [memory.empty([rows, product.size(0)], F32) for product in products] or [memory.empty(x.shape, F32)]
    if products:
        found.multiply(outs, products, biases)
    else:
        found.run(0, rows, outs[0])
    return SavingResult(outs, found.mean, found.var, *found.packed)


implement(save_epilogue, "cpu", _save_epilogue)
