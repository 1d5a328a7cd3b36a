"""Codes, weights and results for tests of the integer engine's ops."""

from __future__ import annotations

import torch
from torch import Tensor

from gossamer.ops.requantize import Requantize, packed

from .tensors import rand


def codes(rows: int, columns: int, bits: int = 8, seed: int = 0) -> Tensor:
    """Random codes as they are stored."""
    rng = torch.Generator().manual_seed(seed)
    return packed(torch.randint(0, 2**bits, (rows, columns), generator=rng, dtype=torch.uint8), bits)


def weights(outs: int, columns: int, seed: int = 1, most: int = 127) -> Tensor:
    rng = torch.Generator().manual_seed(seed)
    return torch.randint(-most, most + 1, (outs, columns), generator=rng, dtype=torch.int8)


def factors(columns: int, largest: float, seed: int = 2) -> Tensor:
    return torch.rand(columns, generator=torch.Generator().manual_seed(seed)) * largest


def results(rows: int, columns: int, bits: int) -> list[Requantize]:
    """Codes and floats, with and without each of what may be added."""
    row, shift = rand(rows, seed=3).abs(), rand(columns, seed=4) * 9
    return [
        Requantize(zero=3, bits=bits),
        Requantize(bits=32),
        Requantize(row, shift, None, 0.0, 5, bits),
        Requantize(row, None, None, 1.0, 0, 32),
        Requantize(None, shift, rand(rows, columns, seed=5) * 5, 0.25, 7, bits),
        Requantize(None, shift, rand(rows, columns, seed=5), 0.0, 0, 32),
    ]
