"""Tensors that tests draw: the same for the same seed, and of every layout."""

from __future__ import annotations

import torch
from torch import Tensor

from gossamer.engine import noise

SEEDS = (None, 5)
LARGEST = torch.finfo(torch.float32).max


def seeded(seed: int = 0) -> None:
    """The generator's state of `seed`, and noise as in a new process: asked for the same twice, it would differ."""
    torch.manual_seed(seed)
    noise.stream.reset()


def rand(*shape, seed=0, dtype=torch.float32):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def tensors(*shapes: tuple[int, ...], dtype: torch.dtype = torch.float32, seed: int = 0) -> list[Tensor]:
    """Leaves that require grad."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(s, generator=generator, dtype=torch.float64).to(dtype).requires_grad_() for s in shapes]


def codes_of(rows: int, columns: int, seed: int = 0):
    rng = torch.Generator().manual_seed(seed)
    return torch.randint(-127, 128, (rows, columns), generator=rng, dtype=torch.int8)


def special_rows():
    rows = torch.zeros(10, 37)
    rows[1] = 2.0**-101  # below 2^-100: flushed to zero
    rows[2] = 2.0**-100
    rows[3] = 1e-45
    rows[4, 3], rows[4, 5] = LARGEST, -LARGEST
    rows[5, 36] = torch.nan  # in the tail of the vector loop
    rows[6, 0] = torch.inf
    rows[7, 20] = -torch.inf
    rows[8] = rand(37)
    rows[9] = -0.0
    return rows


def strided(value):
    return torch.stack([value, value], -1)[..., 0]


def unaligned(value):
    """Contiguous, from an address that is a multiple of nothing but the element's size."""
    flat = value.reshape(-1)
    return torch.cat([flat[:1], flat])[1:].view(value.shape)
