"""Shared by the bindings: addresses, weights as kernels expect them, seeds, and scratch."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ... import memory
from ...native import library

F32 = torch.float32
MASK64 = 2**64 - 1


def at(tensor: Tensor | None) -> int:
    return 0 if tensor is None else tensor.data_ptr()


def as_float(tensor: Tensor | None) -> Tensor | None:
    """What kernels expect of a weight: float32, contiguous."""
    return None if tensor is None else tensor.to(F32).contiguous()


def stepped(diagonal: Tensor | None, num_dst: int) -> tuple[Tensor | None, int]:
    """What kernels expect of a diagonal: contiguous with step 1, or expanded from one element with step 0.

    Destinations that are no sources get a zero, for which a kernel reads no row.
    """
    if diagonal is not None and diagonal.size(0) < num_dst:
        return torch.nn.functional.pad(diagonal, (0, num_dst - diagonal.size(0))), 1
    if diagonal is None or diagonal.stride(0) == 0:
        return diagonal, 0
    return diagonal.contiguous(), 1


def contiguous(*tensors: Tensor | None) -> list[Any]:
    """Each tensor contiguous; None stays None."""
    return [None if tensor is None else tensor.contiguous() for tensor in tensors]


def noise(seed: int | None) -> tuple[bool, int]:
    return seed is not None, (seed or 0) & MASK64


def row_sums_scratch(rows: int, cols: int, pairs: int = 1) -> Tensor:
    """Scratch for kernels that compute pairs of sums over rows; never empty, since they clear it."""
    return memory.empty([pairs * library.scratch_floats(rows, cols)], F32)


def enough(done: bool) -> None:
    """Raise if a kernel, which allocates scratch for each thread itself, says that there was no memory for it."""
    if not done:
        raise MemoryError("no memory left for the scratch of a kernel")
