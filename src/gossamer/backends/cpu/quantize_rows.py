"""Native kernels of ops/quantize_rows.py."""

from __future__ import annotations

import torch
from torch import Tensor

from ... import memory
from ...native import library, num_threads
from ...ops._library import implement
from ...ops.quantize_rows import dequantize_rows, quantize_rows_op
from ._arguments import F32, at, noise


def _quantize_rows(x: Tensor, seed: int | None) -> tuple[Tensor, Tensor]:
    x = x.contiguous()
    codes, scale = memory.empty(x.shape, torch.int8), memory.empty([x.size(0)], F32)
    library.quantize_rows(at(x), at(codes), at(scale), x.size(0), x.size(1), *noise(seed), num_threads())
    return codes, scale


def _dequantize_rows(codes: Tensor, scale: Tensor) -> Tensor:
    codes, scale = codes.contiguous(), scale.contiguous()
    out = memory.empty(codes.shape, F32)
    library.dequantize_rows(at(codes), at(scale), at(out), codes.size(0), codes.size(1), num_threads())
    return out


implement(quantize_rows_op, "cpu", _quantize_rows)
implement(dequantize_rows, "cpu", _dequantize_rows)
