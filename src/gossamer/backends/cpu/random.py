"""Native kernel of ops/random.py."""

from __future__ import annotations

import torch
from torch import Tensor

from ... import memory
from ...native import library, num_threads
from ...ops._library import implement
from ...ops.random import random_bits_op
from ._arguments import MASK64, at


def _random_bits(seed: int, offset: int, numel: int, like: Tensor) -> Tensor:
    out = memory.empty([numel], torch.int32)
    library.random_bits(seed & MASK64, offset, at(out), numel, num_threads())
    return out


implement(random_bits_op, "cpu", _random_bits)
