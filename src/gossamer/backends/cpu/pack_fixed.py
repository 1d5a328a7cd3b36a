"""Native kernels of ops/pack_fixed.py."""

from __future__ import annotations

import torch
from torch import Tensor

from ... import memory
from ...native import library, num_threads
from ...ops._library import implement
from ...ops.pack_fixed import pack_fixed_op, unpack_fixed
from ._arguments import F32, at, noise


def _pack_fixed(x: Tensor, bits: int, low: float, high: float, seed: int | None) -> Tensor:
    x = x.contiguous()
    codes = memory.empty([-(-x.numel() * bits // 8)], torch.uint8)
    library.pack_fixed(at(x), x.numel(), bits, low, high - low, *noise(seed), at(codes), num_threads())
    return codes


def _unpack_fixed(codes: Tensor, numel: int, bits: int, low: float, high: float) -> Tensor:
    codes, out = codes.contiguous(), memory.empty([numel], F32)
    library.unpack_fixed(at(codes), numel, bits, low, high - low, at(out), num_threads())
    return out


implement(pack_fixed_op, "cpu", _pack_fixed)
implement(unpack_fixed, "cpu", _unpack_fixed)
