"""Which codec a recipe's `activations` gives to each kind of saved tensor.

rows     operands of products: their noise reaches weight gradients alone, so they may be projected
sums     A @ x for an input x that needs no gradient: at least 4 bits, as recomputing it would have no error at all
values   tensors that count element by element (normalised rows, attention): never projected
slopes   derivatives of smooth activations, whose noise travels down: at least 4 bits
sharp    what backward puts through something nonlinear (GATv2): at least 8 bits
"""

from __future__ import annotations

import dataclasses
import functools
from dataclasses import dataclass
from typing import Any

import torch

from ...codecs import Blockwise, Codec, Projected, Uniform
from ...ops.save_epilogue import Packing
from ..settings import Keep, Published

LEAST = 2**10
"""Elements from which a tensor is worth a codec."""
WIDEST_PUBLISHED = 1024
"""Elements of the longest blocks of block-wise EXACT."""


@dataclass(frozen=True)
class Saving:
    rows: Codec
    sums: Codec
    values: Codec
    slopes: int
    sharp: Codec


@functools.cache
def saving_of(setting: Any) -> Saving | None:
    """None for `Keep`."""
    if isinstance(setting, Keep):
        return None
    codec = setting.codec if isinstance(setting, Published) else setting
    values: Any = codec.then if isinstance(codec, Projected) else codec
    if isinstance(setting, Published) and isinstance(codec, Projected) and isinstance(values, Blockwise):
        block = min(int(values.block * codec.ratio), WIDEST_PUBLISHED)  # as many nodes
        values = dataclasses.replace(values, block=block)
    bits = getattr(values, "bits", 8)
    sharp = dataclasses.replace(values, bits=8) if hasattr(values, "bits") else values
    sums = dataclasses.replace(values, bits=max(4, bits)) if hasattr(values, "bits") else values
    # ReLU's outputs are not symmetric: bins made for a normal distribution do not suit them.
    rows, sums = (dataclasses.replace(c, bins="uniform") if isinstance(c, Blockwise) else c for c in (codec, sums))
    return Saving(rows, sums, values, max(4, bits), sharp)


def packing_of(codec: Codec, columns: int, device: torch.device) -> Packing | None:
    """How the packing kernels are to apply a codec, without noise; None if they do not know it."""
    if isinstance(codec, Blockwise):
        return Packing(codec.bits, codec.block, codec.meta == "bfloat16", codec.table(device))
    if isinstance(codec, Uniform):
        return Packing(codec.bits, max(1, columns), codec.meta == "bfloat16")
    return None
