"""Native kernels of ops/fake_quantize.py."""

from __future__ import annotations

import torch
from torch import Tensor

from ... import memory
from ...native import library, num_threads
from ...ops._library import implement
from ...ops.fake_quantize import fake_quantize_backward, fake_quantize_op, histogram, per_unit, word_bytes
from ._arguments import F32, at, contiguous, enough


def _fake_quantize(
    x: Tensor, scale: Tensor, zero: Tensor, row: Tensor | None, keep: Tensor | None, top: int, rule: int
) -> tuple[Tensor, Tensor]:
    if x.dtype != F32:
        return fake_quantize_op.reference(x, scale, zero, row, keep, top, rule)
    x, scale, row, keep = contiguous(x, scale, row, keep)
    inverse, (rows, columns) = scale.reciprocal(), x.shape
    out, bits = memory.empty(x.shape, F32), memory.empty([rows, word_bytes(columns)], torch.uint8)
    library.fake_quantize(
        at(x), at(scale), at(inverse), scale.numel() > 1, float(zero), float(top), rule, at(row), at(keep), at(out),
        at(bits), rows, columns, num_threads(),
    )  # fmt: skip
    return out, bits


def _fake_quantize_backward(dout: Tensor, row: Tensor | None, bits: Tensor | None) -> Tensor:
    if dout.dtype != F32:
        return fake_quantize_backward.reference(dout, row, bits)
    dout, row, bits = contiguous(dout, row, bits)
    dx = memory.empty(dout.shape, F32)
    library.fake_quantize_backward(at(dout), at(row), at(bits), at(dx), *dout.shape, num_threads())
    return dx


def _histogram(x: Tensor, row: Tensor | None, keep: Tensor | None, low: float, high: float, bins: int) -> Tensor:
    x, row, keep = contiguous(x, row, keep)
    counts = torch.zeros(bins + 2, dtype=torch.int64)
    step = per_unit(low, high, bins)
    enough(library.histogram(at(x), at(row), at(keep), low, step, bins, at(counts), *x.shape, num_threads()))
    return counts


implement(fake_quantize_op, "cpu", _fake_quantize)
implement(fake_quantize_backward, "cpu", _fake_quantize_backward)
implement(histogram, "cpu", _histogram)
