"""Native kernel of ops/unpack.py."""

from __future__ import annotations

import torch
from torch import Tensor

from ... import memory
from ...native import library, num_threads
from ...ops._library import implement
from ...ops.unpack import unpack_op
from ._arguments import F32, at, contiguous


def _unpack(
    codes: Tensor, zero: Tensor, spread: Tensor, numel: int, bits: int, block: int, levels: Tensor | None
) -> Tensor:
    codes, zero, spread, levels = codes.contiguous(), zero.contiguous(), spread.contiguous(), contiguous(levels)[0]
    block = min(block, max(numel, 1))
    out = memory.empty([numel], F32)
    library.unpack(
        at(codes),
        at(zero),
        at(spread),
        numel,
        block,
        bits,
        zero.dtype == torch.bfloat16,
        at(levels),
        at(out),
        num_threads(),
    )
    return out


implement(unpack_op, "cpu", _unpack)
