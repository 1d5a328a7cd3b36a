"""Random numbers of a loader: functions of its seed, the epoch and the batch."""

from __future__ import annotations

import torch
from torch import Tensor

from ..ops.random import splitmix64


def derive(seed: int, *numbers: int) -> int:
    """A seed for what the numbers stand for, as PyTorch takes it: 64 bits with a sign."""
    word = splitmix64(seed % 2**64)
    for number in numbers:
        word = splitmix64((word + number) % 2**64)
    return word - 2**64 if word >= 2**63 else word


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def permutation(count: int, seed: int) -> Tensor:
    return torch.randperm(count, generator=generator(seed))
