"""Uniform b-bit codec, one range per row.

    step = (max x - min x) / (2^b - 1)
    q    = floor((x - min x) / step + u)     u = 1/2 (nearest)  or  u ~ U[0, 1) (stochastic)
    x^   = min x + step * q

Stochastic rounding is unbiased, E[x^] = x; either way |x^ - x| <= step. A row is what the last dimension holds.
Keeps b bits per value and two floats per row, or two bfloat16 with meta="bfloat16", rounded outward: EXACT's layout is
Uniform(bits=2, meta="bfloat16"). Single rows can be decoded (`decode_rows`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, final

import torch
from torch import Tensor

from ..ops._few_bits import BITS, num_bytes
from ..ops.gather_rows import gather_packed_rows
from ..ops.pack import pack
from ..ops.unpack import unpack
from .codec import Codec, Codes, as_dtype, as_float32, refuse_non_finite, refuse_too_wide


@final
@dataclass(frozen=True)
class Uniform(Codec):
    bits: int = 8
    per: Literal["row"] = "row"
    meta: Literal["float32", "bfloat16"] = "float32"

    def __post_init__(self) -> None:
        if self.bits not in BITS:
            raise ValueError(f"`bits` must be 1, 2, 4 or 8 so that codes fill whole bytes (got {self.bits})")
        if self.per != "row":
            raise ValueError(f"`per` must be 'row' (got {self.per!r}); for other ranges use Blockwise(block=...)")
        if self.meta not in ("bfloat16", "float32"):
            raise ValueError(f"`meta` must be 'bfloat16' or 'float32' (got {self.meta!r})")

    def encode(self, x: Tensor, seed: int | None = None) -> Codes:
        codes, zero, spread = pack(as_float32(x), self.bits, _columns(x.shape), seed, self.meta == "bfloat16")
        refuse_non_finite(x, zero)
        refuse_too_wide(zero, spread)
        return Codes((codes, zero, spread), x.shape, x.dtype)

    def decode(self, codes: Codes) -> Tensor:
        packed, zero, spread = codes.tensors
        flat = unpack(packed, zero, spread, codes.shape.numel(), self.bits, _columns(codes.shape))
        return as_dtype(flat.view(codes.shape), codes.dtype)

    def decode_rows(self, codes: Codes, ids: Tensor) -> Tensor:
        """Rows `ids` of a matrix, without decoding the others."""
        packed, zero, spread = codes.tensors
        columns = _columns(codes.shape)
        rows = packed.view(-1, -(-columns * self.bits // 8))
        return as_dtype(gather_packed_rows(rows, zero, spread, ids, columns, self.bits), codes.dtype)

    def nbytes(self, shape: torch.Size | tuple[int, ...]) -> int:
        numel, columns = torch.Size(shape).numel(), _columns(shape)
        meta = 2 * (2 if self.meta == "bfloat16" else 4)
        return num_bytes(numel, columns, self.bits) + meta * (numel // columns)

    def error_bound(self, codes: Codes) -> Tensor:
        step = codes.tensors[2].float() / (2**self.bits - 1)
        return step.view(*codes.shape[:-1], 1) if codes.shape.numel() and len(codes.shape) else step.view(codes.shape)


def _columns(shape: torch.Size | tuple[int, ...]) -> int:
    return max(shape[-1], 1) if len(shape) else 1
