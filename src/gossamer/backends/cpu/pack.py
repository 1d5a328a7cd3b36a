"""Native kernel of ops/pack.py."""

from __future__ import annotations

import torch
from torch import Tensor

from ... import memory
from ...native import library, num_threads
from ...ops._library import implement
from ...ops.pack import num_blocks, num_bytes, pack_op
from ._arguments import F32, at, contiguous, noise


def _pack(
    x: Tensor, bits: int, block: int, seed: int | None, bf16_meta: bool, levels: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    x, numel, levels = x.contiguous(), x.numel(), contiguous(levels)[0]
    block = min(block, max(numel, 1))  # one block is one block, however long
    meta = torch.bfloat16 if bf16_meta else F32
    codes = memory.empty([num_bytes(numel, block, bits)], torch.uint8)
    zero, spread = (memory.empty([num_blocks(numel, block)], meta) for _ in range(2))
    library.pack(
        at(x),
        numel,
        block,
        bits,
        bf16_meta,
        at(codes),
        at(zero),
        at(spread),
        at(levels),
        *noise(seed),
        num_threads(),
    )
    return codes, zero, spread


implement(pack_op, "cpu", _pack)
