"""Native kernels of the ops that make, read or multiply codes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .. import memory
from ..ops._library import OPS
from ..ops.pack import num_blocks, num_bytes
from . import native, num_threads
from ._arguments import F32, at, contiguous, noise


def _quantize_rows(x: Tensor, seed: int | None) -> tuple[Tensor, Tensor]:
    x = x.contiguous()
    codes, scale = memory.empty(x.shape, torch.int8), memory.empty([x.size(0)], F32)
    native.quantize_rows(at(x), at(codes), at(scale), x.size(0), x.size(1), *noise(seed), num_threads())
    return codes, scale


def _dequantize_rows(codes: Tensor, scale: Tensor) -> Tensor:
    codes, scale = codes.contiguous(), scale.contiguous()
    out = memory.empty(codes.shape, F32)
    native.dequantize_rows(at(codes), at(scale), at(out), codes.size(0), codes.size(1), num_threads())
    return out


def _pack(
    x: Tensor, bits: int, block: int, seed: int | None, bf16_meta: bool, levels: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    x, numel, levels = x.contiguous(), x.numel(), contiguous(levels)[0]
    block = min(block, max(numel, 1))  # one block is one block, however long
    meta = torch.bfloat16 if bf16_meta else F32
    codes = memory.empty([num_bytes(numel, block, bits)], torch.uint8)
    zero, spread = (memory.empty([num_blocks(numel, block)], meta) for _ in range(2))
    native.pack(
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


def _unpack(
    codes: Tensor, zero: Tensor, spread: Tensor, numel: int, bits: int, block: int, levels: Tensor | None
) -> Tensor:
    codes, zero, spread, levels = codes.contiguous(), zero.contiguous(), spread.contiguous(), contiguous(levels)[0]
    block = min(block, max(numel, 1))
    out = memory.empty([numel], F32)
    native.unpack(
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


def _pack_fixed(x: Tensor, bits: int, low: float, high: float, seed: int | None) -> Tensor:
    x = x.contiguous()
    codes = memory.empty([-(-x.numel() * bits // 8)], torch.uint8)
    native.pack_fixed(at(x), x.numel(), bits, low, high - low, *noise(seed), at(codes), num_threads())
    return codes


def _unpack_fixed(codes: Tensor, numel: int, bits: int, low: float, high: float) -> Tensor:
    codes, out = codes.contiguous(), memory.empty([numel], F32)
    native.unpack_fixed(at(codes), numel, bits, low, high - low, at(out), num_threads())
    return out


def _gather_rows(x: Tensor, ids: Tensor) -> Tensor:
    x, ids = x.contiguous(), ids.contiguous()
    if x.dtype not in memory.POOLED_DTYPES:
        return OPS["gather_rows"].reference(x, ids)
    out = memory.empty([ids.numel(), *x.shape[1:]], x.dtype)
    row_bytes = x.element_size() * x[:1].numel()
    native.gather_rows(at(x), at(ids), at(out), ids.numel(), row_bytes, num_threads())
    return out


def _gather_rows_int8(codes: Tensor, scale: Tensor, ids: Tensor) -> Tensor:
    codes, scale, ids = codes.contiguous(), scale.contiguous(), ids.contiguous()
    out = memory.empty([ids.numel(), codes.size(1)], F32)
    native.gather_rows_int8(at(codes), at(scale), at(ids), at(out), ids.numel(), codes.size(1), num_threads())
    return out


def _gather_packed_rows(codes: Tensor, zero: Tensor, spread: Tensor, ids: Tensor, columns: int, bits: int) -> Tensor:
    codes, zero, spread, ids = codes.contiguous(), zero.contiguous(), spread.contiguous(), ids.contiguous()
    out = memory.empty([ids.numel(), columns], F32)
    native.gather_packed(
        at(codes), at(zero), at(spread), at(ids), at(out), ids.numel(), columns, bits,
        zero.dtype == torch.bfloat16, num_threads(),
    )  # fmt: skip
    return out


KERNELS: dict[str, Callable[..., Any]] = {
    "quantize_rows": _quantize_rows,
    "dequantize_rows": _dequantize_rows,
    "pack": _pack,
    "unpack": _unpack,
    "pack_fixed": _pack_fixed,
    "unpack_fixed": _unpack_fixed,
    "gather_rows": _gather_rows,
    "gather_rows_int8": _gather_rows_int8,
    "gather_packed_rows": _gather_packed_rows,
}
