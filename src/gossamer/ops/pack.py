"""Blocks of 1, 2, 4 or 8-bit codes: how tensors are kept in few bits (EXACT, block-wise EXACT).

The tensor is flattened; `block` consecutive elements share a zero z and a range r (the last block may be shorter):

    z = down(min x)      r = up(max x - z)      B = 2^bits - 1      inv = B / r  (0 if r = 0)
    q = min(floor((x - z) inv + u), B)          x^ = z + (r / B) q

down and up round outward to bfloat16 (or not at all with float32 metadata), and both sides use the rounded numbers, so
stochastic rounding, u uniform in [0, 1), is unbiased up to float32 rounding; u = 1/2 is rounding to nearest. Element e
of a block occupies bits (e bits) mod 8 upward of byte e bits / 8; blocks start on bytes. Ranges below 2^-100 count as
0. A block with NaN or infinity gets z = NaN, codes 0, and decodes to NaN. Bytes: ceil(block bits / 8) per block, and 4
(or 8) for its metadata.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from . import _checks, random
from ._library import define

BITS = (1, 2, 4, 8)
TINY = 2.0**-100  # smaller ranges count as none, so that their inverses stay finite
LARGEST_BF16 = float(torch.finfo(torch.bfloat16).max)


def num_blocks(numel: int, block: int) -> int:
    return -(-numel // block)


def num_bytes(numel: int, block: int, bits: int) -> int:
    """Bytes of the codes alone."""
    tail = numel % block
    return numel // block * -(-block * bits // 8) + -(-tail * bits // 8)


def bf16_down(x: Tensor) -> Tensor:
    """The largest bfloat16 not above each finite float32, clamped to the finite ones."""
    u = x.view(torch.int32)
    kept = u & ~0xFFFF
    kept = torch.where((u < 0) & (u != kept), kept + 0x10000, kept)
    return kept.view(torch.float32).clamp(-LARGEST_BF16, LARGEST_BF16)


def bf16_up(x: Tensor) -> Tensor:
    return -bf16_down(-x)


def check_layout(numel: int, bits: int, block: int) -> None:
    if bits not in BITS:
        raise ValueError(f"`bits` must be 1, 2, 4 or 8 so that codes fill whole bytes (got {bits})")
    if block < 1:
        raise ValueError(f"`block` must be at least 1 element (got {block})")


def _check(x: Tensor, bits: int, block: int, seed: int | None, bf16_meta: bool) -> None:
    _checks.dtype_of("x", x, (torch.float32,))
    check_layout(x.numel(), bits, block)


def _padded(x: Tensor, block: int) -> Tensor:
    """[blocks, block]; the tail is filled with its last element, which leaves minimum and maximum alone."""
    short = -x.numel() % block
    return torch.cat([x, x[-1:].expand(short)]).view(-1, block) if short else x.view(-1, block)


def _reference(x: Tensor, bits: int, block: int, seed: int | None, bf16_meta: bool) -> tuple[Tensor, Tensor, Tensor]:
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
    if seed is None:
        u: Tensor | float = 0.5
    else:
        u = random.unit(seed, torch.arange(rows.numel(), device=x.device)).view_as(rows)
    t = (rows - zero.unsqueeze(1)) * inverse.unsqueeze(1) + u
    codes = t.where(finite.unsqueeze(1), 0.0).clamp(0, top).to(torch.uint8)
    packed = _squeeze(codes, x.numel(), bits)
    return packed, zero.where(finite, torch.nan).to(dtype), spread.where(finite, 0.0).to(dtype)


def _squeeze(codes: Tensor, numel: int, bits: int) -> Tensor:
    """[blocks, block] codes of one byte each -> packed bytes, each block from a byte of its own."""
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


def _fake(x: Tensor, bits: int, block: int, seed: int | None, bf16_meta: bool) -> tuple[Tensor, Tensor, Tensor]:
    blocks = num_blocks(x.numel(), block)
    meta = x.new_empty(blocks, dtype=torch.bfloat16 if bf16_meta else torch.float32)
    return x.new_empty(num_bytes(x.numel(), block, bits), dtype=torch.uint8), meta, torch.empty_like(meta)


pack_op = define(
    "pack(Tensor x, int bits, int block, int? seed, bool bf16_meta) -> (Tensor, Tensor, Tensor)",
    check=_check,
    reference=_reference,
    fake=_fake,
)


def pack(
    x: Tensor, bits: int, block: int, seed: int | None = None, bf16_meta: bool = True
) -> tuple[Tensor, Tensor, Tensor]:
    """Codes (uint8), zeros and ranges (one per block) of x; stochastic rounding with a seed, to nearest without."""
    return pack_op(x.contiguous(), bits, block, seed, bf16_meta)


def _check_packed(codes: Tensor, zero: Tensor, spread: Tensor, numel: int, bits: int, block: int) -> None:
    _checks.at_least("numel", numel, 0)
    check_layout(numel, bits, block)
    _checks.dtype_of("codes", codes, (torch.uint8,))
    _checks.shape_of("codes", codes, (num_bytes(numel, block, bits),), f"[{num_bytes(numel, block, bits)}] bytes")
    check_meta(zero, spread, num_blocks(numel, block))


def check_meta(zero: Tensor, spread: Tensor, blocks: int) -> None:
    _checks.dtype_of("zero", zero, (torch.bfloat16, torch.float32))
    _checks.dtype_of("spread", spread, (zero.dtype,))
    for name, meta in (("zero", zero), ("spread", spread)):
        _checks.shape_of(name, meta, (blocks,), f"[{blocks}], one number per block")


def _unpack_reference(codes: Tensor, zero: Tensor, spread: Tensor, numel: int, bits: int, block: int) -> Tensor:
    block = max(min(block, numel), 1)
    blocks, block_bytes = num_blocks(numel, block), -(-block * bits // 8)
    padded = torch.nn.functional.pad(codes, (0, blocks * block_bytes - codes.numel())).view(blocks, block_bytes)
    return decode(spread_codes(padded, bits, block), zero, spread, bits).reshape(-1)[:numel].clone()


def decode(codes: Tensor, zero: Tensor, spread: Tensor, bits: int) -> Tensor:
    """z + (r / B) q, with one zero and range per row of codes."""
    step = spread.to(torch.float32) / (2**bits - 1)
    return codes.to(torch.float32) * step.unsqueeze(1) + zero.to(torch.float32).unsqueeze(1)


def _unpack_fake(codes: Tensor, zero: Tensor, spread: Tensor, numel: int, bits: int, block: int) -> Tensor:
    return codes.new_empty(numel, dtype=torch.float32)


def _unpack_setup(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    codes, _, spread, numel, bits, block = inputs
    ctx.save_for_backward(codes, spread)
    ctx.layout = numel, bits, max(min(block, numel), 1)


def _unpack_backward(ctx: Any, dout: Tensor) -> tuple[Tensor | None, ...]:
    """d zero = sum of dout over the block; d spread = sum of dout * code / B."""
    codes, spread = ctx.saved_tensors
    numel, bits, block = ctx.layout
    blocks = spread.numel()
    unit = _unpack_reference(codes, torch.zeros_like(spread), torch.ones_like(spread), numel, bits, block)
    pad = (0, blocks * block - numel)
    dzero = torch.nn.functional.pad(dout, pad).view(blocks, block).sum(1)
    dspread = torch.nn.functional.pad(dout * unit, pad).view(blocks, block).sum(1)
    return None, dzero.to(spread.dtype), dspread.to(spread.dtype), None, None, None


unpack = define(
    "unpack(Tensor codes, Tensor zero, Tensor spread, int numel, int bits, int block) -> Tensor",
    check=_check_packed,
    reference=_unpack_reference,
    fake=_unpack_fake,
    backward=_unpack_backward,
    setup_context=_unpack_setup,
)
