"""Native kernel of ops/chain_keep.py."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from ... import memory
from ...ops._library import OPS, implement
from ._arguments import F32
from ._chain_keep import keeping


def _chain_keep(x: Tensor, *args: Any) -> Any:
    *settings, products, biases = args
    found = keeping(x, *settings)
    if found is None:
        return OPS["chain_keep"].reference(x, *args)
    rows = x.size(0)
    outs = [memory.empty([rows, product.size(0)], F32) for product in products] or [memory.empty(x.shape, F32)]
    if products:
        found.multiply(outs, products, biases)
    else:
        found.run(0, rows, outs[0])
    return outs, found.mean, found.var, *found.kept


implement(OPS["chain_keep"], "cpu", _chain_keep)
