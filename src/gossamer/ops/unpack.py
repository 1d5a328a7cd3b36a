"""Few-bit codes back to numbers. Layout and levels l are those of `pack`; without levels l_q = q.

    x^ = (r / B) l_q + z      dz = sum of dout over the block      dr = sum of dout l_q / B over the block

z and r are float32 or bfloat16; a block whose z is NaN decodes to NaN.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from . import _checks
from ._few_bits import num_blocks, num_bytes, spread_codes
from ._library import define
from .pack import check_layout, check_levels


def _check(
    codes: Tensor, zero: Tensor, spread: Tensor, numel: int, bits: int, block: int, levels: Tensor | None
) -> None:
    _checks.at_least("numel", numel, 0)
    check_layout(numel, bits, block)
    _checks.dtype_of("codes", codes, (torch.uint8,))
    _checks.shape_of("codes", codes, (num_bytes(numel, block, bits),), f"[{num_bytes(numel, block, bits)}] bytes")
    check_meta(zero, spread, num_blocks(numel, block))
    check_levels(levels, bits, codes.device)


def check_meta(zero: Tensor, spread: Tensor, blocks: int) -> None:
    _checks.dtype_of("zero", zero, (torch.bfloat16, torch.float32))
    _checks.dtype_of("spread", spread, (zero.dtype,))
    for name, meta in (("zero", zero), ("spread", spread)):
        _checks.shape_of(name, meta, (blocks,), f"[{blocks}], one number per block")


def _reference(
    codes: Tensor, zero: Tensor, spread: Tensor, numel: int, bits: int, block: int, levels: Tensor | None = None
) -> Tensor:
    block = max(min(block, numel), 1)
    blocks, block_bytes = num_blocks(numel, block), -(-block * bits // 8)
    padded = torch.nn.functional.pad(codes, (0, blocks * block_bytes - codes.numel())).view(blocks, block_bytes)
    return decode(spread_codes(padded, bits, block), zero, spread, bits, levels).reshape(-1)[:numel].clone()


def decode(codes: Tensor, zero: Tensor, spread: Tensor, bits: int, levels: Tensor | None = None) -> Tensor:
    """(r / B) q + z, with one zero and range per row of codes."""
    step = spread.to(torch.float32) / (2**bits - 1)
    units = codes.to(torch.float32) if levels is None else levels[codes.long()]
    return units * step.unsqueeze(1) + zero.to(torch.float32).unsqueeze(1)


def _fake(
    codes: Tensor, zero: Tensor, spread: Tensor, numel: int, bits: int, block: int, levels: Tensor | None
) -> Tensor:
    return codes.new_empty(numel, dtype=torch.float32)


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    codes, _, spread, numel, bits, block, levels = inputs
    ctx.save_for_backward(codes, spread, levels)
    ctx.layout = numel, bits, max(min(block, numel), 1)


def _backward(ctx: Any, dout: Tensor) -> tuple[Tensor | None, ...]:
    codes, spread, levels = ctx.saved_tensors
    numel, bits, block = ctx.layout
    blocks = spread.numel()
    share = _reference(codes, torch.zeros_like(spread), torch.ones_like(spread), numel, bits, block, levels)  # l_q / B
    pad = (0, blocks * block - numel)
    dzero = torch.nn.functional.pad(dout, pad).view(blocks, block).sum(1)
    dspread = torch.nn.functional.pad(dout * share, pad).view(blocks, block).sum(1)
    return None, dzero.to(spread.dtype), dspread.to(spread.dtype), None, None, None, None


unpack_op = define(
    "unpack(Tensor codes, Tensor zero, Tensor spread, int numel, int bits, int block, Tensor? levels) -> Tensor",
    check=_check,
    reference=_reference,
    fake=_fake,
    backward=_backward,
    setup_context=_setup_context,
)


def unpack(
    codes: Tensor,
    zero: Tensor,
    spread: Tensor,
    numel: int,
    bits: int,
    block: int,
    levels: Tensor | None = None,
) -> Tensor:
    """The `numel` numbers that `pack` with the same bits, block and levels made into these codes."""
    return unpack_op(codes, zero, spread, numel, bits, block, levels)
