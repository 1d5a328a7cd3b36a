"""Native kernels of ops/dropout.py."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from ... import memory
from ...native import library, num_threads
from ...ops._library import Op, implement
from ...ops.dropout import dropout_mask, dropout_op, masked_scale, relu_dropout_op
from ._arguments import F32, MASK64, at


def _dropout(x: Tensor, p: float, seed: int) -> Tensor:
    if x.dtype != F32:
        return dropout_op.reference(x, p, seed)
    x, out = x.contiguous(), memory.empty(x.shape, F32)
    library.dropout(at(x), at(out), 0, x.numel(), p, seed & MASK64, num_threads())
    return out


def _dropout_with_mask(op: Op, kernel: Callable[..., None], x: Tensor, p: float, seed: int) -> tuple[Tensor, Tensor]:
    if x.dtype != F32:
        return op.reference(x, p, seed)
    x, out = x.contiguous(), memory.empty(x.shape, F32)
    mask = memory.empty([(x.numel() + 7) // 8], torch.uint8)
    kernel(at(x), at(out), at(mask), x.numel(), p, seed & MASK64, num_threads())
    return out, mask


def _masked_scale(x: Tensor, mask: Tensor, p: float) -> Tensor:
    if x.dtype != F32:
        return masked_scale.reference(x, mask, p)
    x, mask, out = x.contiguous(), mask.contiguous(), memory.empty(x.shape, F32)
    library.masked_scale(at(x), at(mask), at(out), x.numel(), p, num_threads())
    return out


implement(dropout_op, "cpu", _dropout)
implement(relu_dropout_op, "cpu", partial(_dropout_with_mask, relu_dropout_op, library.relu_dropout))
implement(dropout_mask, "cpu", partial(_dropout_with_mask, dropout_mask, library.dropout))
implement(masked_scale, "cpu", _masked_scale)
