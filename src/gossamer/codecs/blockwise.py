"""Block-wise b-bit codec: `block` consecutive elements share one range (EXACT, block-wise EXACT).

    z = down(min x)    r = up(max x - z)    q = min(floor((x - z)(2^b - 1)/r + u), 2^b - 1)    x^ = z + r/(2^b - 1) q

Stochastic rounding is unbiased (up to float32 rounding), because encoder and decoder use the same outward-rounded z and
r; either way |x^ - x| <= r/(2^b - 1). Keeps b bits per value and four bytes per block (eight with meta="float32":
choose it when offsets dwarf spreads, where bfloat16's z would widen the range). Blocks may cross rows, and the last may
be shorter.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, final

import torch
from torch import Tensor

from ..ops.pack import BITS, num_blocks, num_bytes, pack, unpack
from .codec import Codec, Codes, as_dtype, as_float32, refuse_non_finite, refuse_too_wide


@final
@dataclass(frozen=True)
class Blockwise(Codec):
    bits: int = 2
    block: int = 256
    meta: Literal["bfloat16", "float32"] = "bfloat16"

    def __post_init__(self) -> None:
        if self.bits not in BITS:
            raise ValueError(f"`bits` must be 1, 2, 4 or 8 so that codes fill whole bytes (got {self.bits})")
        if not isinstance(self.block, int) or self.block < 1:
            raise ValueError(f"`block` must be a positive number of elements (got {self.block})")
        if self.meta not in ("bfloat16", "float32"):
            raise ValueError(f"`meta` must be 'bfloat16' or 'float32' (got {self.meta!r})")

    def encode(self, x: Tensor, seed: int | None = None) -> Codes:
        flat = as_float32(x)
        codes, zero, spread = pack(flat, self.bits, self._span(x.numel()), seed, self.meta == "bfloat16")
        refuse_non_finite(x, zero)
        refuse_too_wide(zero, spread)
        return Codes((codes, zero, spread), x.shape, x.dtype)

    def decode(self, codes: Codes) -> Tensor:
        numel = codes.shape.numel()
        flat = unpack(*codes.tensors, numel, self.bits, self._span(numel))
        return as_dtype(flat.view(codes.shape), codes.dtype)

    def nbytes(self, shape: torch.Size | tuple[int, ...]) -> int:
        numel = torch.Size(shape).numel()
        meta = 2 * (2 if self.meta == "bfloat16" else 4)
        return num_bytes(numel, self.block, self.bits) + meta * num_blocks(numel, self.block)

    def error_bound(self, codes: Codes) -> Tensor:
        step = codes.tensors[2].float() / (2**self.bits - 1)
        numel = codes.shape.numel()
        return step.repeat_interleave(self._span(numel))[:numel].view(codes.shape)

    def _span(self, numel: int) -> int:
        """Elements that share a range: no more than there are."""
        return max(1, min(self.block, numel))
