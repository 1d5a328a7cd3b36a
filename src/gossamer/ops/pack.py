"""Blocks of 1, 2, 4 or 8-bit codes: how tensors are saved in few bits (EXACT, block-wise EXACT).

The tensor is flattened; `block` consecutive elements share a zero z and a range r (the last block may be shorter):

    z = down(min x)      r = up(max x - z)      B = 2^bits - 1      inv = B / r  (0 if r = 0)
    h = (x - z) inv      q = min(floor(h + u), B)                   x^ = (r / B) q + z

down and up round outward to bfloat16 (or not at all with float32 metadata), and both sides use the rounded numbers, so
stochastic rounding, u uniform in [0, 1), is unbiased up to float32 rounding; u = 1/2 is rounding to nearest. Codes may
stand for `levels` 0 = l_0 < l_1 < .. < l_B = B instead of 0, 1, .. B. Bins are then mapped to unit bins, which leaves
the mean alone and makes the variance (h - l_k)(l_{k+1} - h):

    t = (h - l_k) w_k + k      l_k <= h < l_{k+1}      w_k = 1 / (l_{k+1} - l_k)
    q = floor(min(max(t + u, 0), B))                   x^ = (r / B) l_q + z

Element e of a block occupies bits (e bits) mod 8 upward of byte e bits / 8; blocks start on bytes. Ranges below 2^-100
count as 0. A block with NaN or infinity gets z = NaN, codes 0, and decodes to NaN. Bytes: ceil(block bits / 8) per
block, and 4 (or 8) for its metadata.
"""

from __future__ import annotations

import itertools

import torch
from torch import Tensor

from . import _checks
from ._few_bits import check_bits, num_blocks, num_bytes, rounding, squeeze_codes
from ._library import define

TINY = 2.0**-100  # smaller ranges count as none, so that their inverses stay finite
LARGEST_BF16 = float(torch.finfo(torch.bfloat16).max)


def bf16_down(x: Tensor) -> Tensor:
    """The largest bfloat16 not above each finite float32, clamped to the finite ones."""
    u = x.view(torch.int32)
    kept = u & ~0xFFFF
    kept = torch.where((u < 0) & (u != kept), kept + 0x10000, kept)
    return kept.view(torch.float32).clamp(-LARGEST_BF16, LARGEST_BF16)


def bf16_up(x: Tensor) -> Tensor:
    return -bf16_down(-x)


def check_layout(numel: int, bits: int, block: int) -> None:
    check_bits(bits)
    if block < 1:
        raise ValueError(f"`block` must be at least 1 element (got {block})")


def check_levels(levels: Tensor | None, bits: int, device: torch.device) -> None:
    """Levels that bins can be mapped by: 0 = l_0 < .. < l_B = B."""
    if levels is None:
        return
    _checks.dtype_of("levels", levels, (torch.float32,))
    _checks.shape_of("levels", levels, (2**bits,), f"[{2**bits}], one number per code of {bits} bits")
    if levels.device != device:
        raise ValueError(f"`levels` must be on the same device as the tensor, {device} (got {levels.device})")
    numbers = levels.tolist()
    ascending = all(low < high for low, high in itertools.pairwise(numbers))
    if not ascending or numbers[0] != 0 or numbers[-1] != 2**bits - 1:
        raise ValueError(
            f"`levels` must ascend strictly from 0 to {2**bits - 1} (got {numbers[0]:g} .. {numbers[-1]:g}"
            f"{'' if ascending else ', not ascending'}); gossamer.codecs.optimal_bins.levels makes such levels"
        )


def _check(x: Tensor, bits: int, block: int, seed: int | None, bf16_meta: bool, levels: Tensor | None) -> None:
    _checks.dtype_of("x", x, (torch.float32,))
    check_layout(x.numel(), bits, block)
    check_levels(levels, bits, x.device)


def _padded(x: Tensor, block: int) -> Tensor:
    """[blocks, block]; the tail is filled with its last element, which leaves minimum and maximum alone."""
    short = -x.numel() % block
    return torch.cat([x, x[-1:].expand(short)]).view(-1, block) if short else x.view(-1, block)


def _unit_bins(h: Tensor, levels: Tensor | None) -> Tensor:
    """t: the number of whole bins below h, and the share of the bin that h is in."""
    if levels is None:
        return h
    widths = levels.diff()
    inverse, j = torch.ones_like(widths) / widths, torch.bucketize(h, levels[1:-1].contiguous(), right=True)
    return (h - levels[j]) * inverse[j] + j


def _reference(
    x: Tensor, bits: int, block: int, seed: int | None, bf16_meta: bool, levels: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    dtype = torch.bfloat16 if bf16_meta else torch.float32
    if x.numel() == 0:
        return x.new_empty(0, dtype=torch.uint8), x.new_empty(0, dtype=dtype), x.new_empty(0, dtype=dtype)
    top = 2**bits - 1
    rows = _padded(x.reshape(-1), min(block, x.numel()))
    finite = rows.isfinite().all(1)
    low, high = rows.amin(1).where(finite, 0.0), rows.amax(1).where(finite, 0.0)
    zero = bf16_down(low) if bf16_meta else low
    spread = (high - zero).clamp(max=LARGEST_BF16)
    spread = spread.where(spread >= TINY, 0.0)
    spread = bf16_up(spread) if bf16_meta else spread
    inverse = torch.full_like(spread, top) / spread  # `top / spread` would multiply by a rounded reciprocal
    inverse = torch.where(spread > 0, inverse, 0.0)
    t = _unit_bins((rows - zero.unsqueeze(1)) * inverse.unsqueeze(1), levels) + rounding(seed, rows)
    codes = t.where(finite.unsqueeze(1), 0.0).clamp(0, top).to(torch.uint8)
    packed = squeeze_codes(codes, x.numel(), bits)
    return packed, zero.where(finite, torch.nan).to(dtype), spread.where(finite, 0.0).to(dtype)


def _fake(
    x: Tensor, bits: int, block: int, seed: int | None, bf16_meta: bool, levels: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    blocks = num_blocks(x.numel(), block)
    meta = x.new_empty(blocks, dtype=torch.bfloat16 if bf16_meta else torch.float32)
    return x.new_empty(num_bytes(x.numel(), block, bits), dtype=torch.uint8), meta, torch.empty_like(meta)


pack_op = define(
    "pack(Tensor x, int bits, int block, int? seed, bool bf16_meta, Tensor? levels) -> (Tensor, Tensor, Tensor)",
    check=_check,
    reference=_reference,
    fake=_fake,
)


def pack(
    x: Tensor,
    bits: int,
    block: int,
    seed: int | None = None,
    bf16_meta: bool = True,
    levels: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Codes (uint8), zeros and ranges (one per block) of x; stochastic rounding with a seed, to nearest without."""
    return pack_op(x.contiguous(), bits, block, seed, bf16_meta, levels)
