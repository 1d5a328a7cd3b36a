"""Codes of 1, 2, 4 or 8 bits in whole bytes: what `pack` and `pack_fixed` share.

Element e of a block occupies bits (e bits) mod 8 upward of byte e bits / 8, and every block starts on a byte.
"""

from __future__ import annotations

import torch
from torch import Tensor

from . import random

BITS = (1, 2, 4, 8)


def check_bits(bits: int, name: str = "bits") -> None:
    if bits not in BITS:
        raise ValueError(f"`{name}` must be 1, 2, 4 or 8 so that codes fill whole bytes (got {bits})")


def num_blocks(numel: int, block: int) -> int:
    return -(-numel // block)


def num_bytes(numel: int, block: int, bits: int) -> int:
    """Bytes of the codes alone."""
    tail = numel % block
    return numel // block * -(-block * bits // 8) + -(-tail * bits // 8)


def rounding(seed: int | None, like: Tensor) -> Tensor | float:
    """What is added before the floor: uniform in [0, 1), a hash of each element's index; without a seed 1/2."""
    if seed is None:
        return 0.5
    return random.unit(seed, torch.arange(like.numel(), device=like.device)).view_as(like)


def squeeze_codes(codes: Tensor, numel: int, bits: int) -> Tensor:
    """[blocks, block] codes of one byte each -> packed bytes; what lies beyond element `numel` becomes 0."""
    block, per_byte = codes.size(1), 8 // bits
    valid = torch.arange(codes.numel(), device=codes.device).view_as(codes) < numel
    codes = torch.nn.functional.pad(codes.where(valid, 0), (0, -block % per_byte))
    shifts = torch.arange(per_byte, device=codes.device, dtype=torch.uint8) * bits
    packed = (codes.view(codes.size(0), -1, per_byte) << shifts).sum(2, dtype=torch.uint8)
    return packed.reshape(-1)[: num_bytes(numel, block, bits)].clone()


def spread_codes(codes: Tensor, bits: int, columns: int) -> Tensor:
    """Packed bytes [rows, bytes] -> [rows, columns] codes of one byte each."""
    shifts = torch.arange(8 // bits, device=codes.device, dtype=torch.uint8) * bits
    apart = (codes.unsqueeze(2) >> shifts) & (2**bits - 1)
    return apart.flatten(1)[:, :columns]
