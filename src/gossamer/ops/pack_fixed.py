"""Few-bit codes of numbers whose range is known beforehand, such as derivatives of smooth activations.

    B = 2^bits - 1      r = float32(high - low)      inv = B / r      step = r / B
    q = floor(min(max((x - low) inv + u, 0), B))    x^ = step q + low

u is uniform in [0, 1) with a seed, which makes E[x^] = x for low <= x <= high; 1/2 without. Numbers outside the range
take its nearer end, NaN takes code 0: callers know what they store. No metadata and no blocks: element e occupies bits
(e bits) mod 8 upward of byte e bits / 8, so that n numbers take ceil(n bits / 8) bytes.
"""

from __future__ import annotations

import torch
from torch import Tensor

from . import _checks
from ._few_bits import check_bits, num_bytes, rounding, spread_codes, squeeze_codes
from ._library import define
from .pack import LARGEST_BF16, TINY


def check_range(low: float, high: float) -> None:
    """A range whose width and its inverse are normal float32 numbers."""
    if not (abs(low) <= LARGEST_BF16 and abs(high) <= LARGEST_BF16 and TINY <= high - low <= LARGEST_BF16):
        raise ValueError(
            f"`low` and `high` must be finite, with `high` above `low` by {TINY:.3g} to {LARGEST_BF16:.3g} "
            f"(got {low} and {high})"
        )


def _check(x: Tensor, bits: int, low: float, high: float, seed: int | None) -> None:
    _checks.dtype_of("x", x, (torch.float32,))
    check_bits(bits)
    check_range(low, high)


def _float32(value: float, like: Tensor) -> Tensor:
    """A number rounded to float32, as kernels get it."""
    return torch.tensor(value, dtype=torch.float32, device=like.device)


def _reference(x: Tensor, bits: int, low: float, high: float, seed: int | None) -> Tensor:
    if x.numel() == 0:
        return x.new_empty(0, dtype=torch.uint8)
    top, row = 2**bits - 1, x.reshape(1, -1)
    t = (row - _float32(low, x)) * (_float32(top, x) / _float32(high - low, x)) + rounding(seed, row)
    return squeeze_codes(t.nan_to_num(0.0).clamp(0, top).to(torch.uint8), x.numel(), bits)


def _fake(x: Tensor, bits: int, low: float, high: float, seed: int | None) -> Tensor:
    return x.new_empty(-(-x.numel() * bits // 8), dtype=torch.uint8)


pack_fixed_op = define(
    "pack_fixed(Tensor x, int bits, float low, float high, int? seed) -> Tensor",
    check=_check,
    reference=_reference,
    fake=_fake,
)


def pack_fixed(x: Tensor, bits: int, low: float, high: float, seed: int | None = None) -> Tensor:
    """Codes (uint8) of x, all in one range; stochastic rounding with a seed, to nearest without."""
    return pack_fixed_op(x.contiguous(), bits, low, high, seed)


def _check_packed(codes: Tensor, numel: int, bits: int, low: float, high: float) -> None:
    _checks.at_least("numel", numel, 0)
    check_bits(bits)
    check_range(low, high)
    _checks.dtype_of("codes", codes, (torch.uint8,))
    count = num_bytes(numel, max(numel, 1), bits)
    _checks.shape_of("codes", codes, (count,), f"[{count}] bytes, {numel} codes of {bits} bits")


def _unpack_reference(codes: Tensor, numel: int, bits: int, low: float, high: float) -> Tensor:
    units = spread_codes(codes.unsqueeze(0), bits, numel).view(-1).to(torch.float32)
    return units * (_float32(high - low, codes) / _float32(2**bits - 1, codes)) + _float32(low, codes)


def _unpack_fake(codes: Tensor, numel: int, bits: int, low: float, high: float) -> Tensor:
    return codes.new_empty(numel, dtype=torch.float32)


unpack_fixed = define(
    "unpack_fixed(Tensor codes, int numel, int bits, float low, float high) -> Tensor",
    check=_check_packed,
    reference=_unpack_reference,
    fake=_unpack_fake,
)
