"""What the tests of SpMM in float32 and in int8 share."""

from __future__ import annotations

import functools
import itertools

import torch
from torch import Tensor

from .tensors import rand

NO_TRANSPOSE = (None, None, None, None, None, None, None)  # nor bias, diagonal, rows
ENDS = [set(names) for count in range(4) for names in itertools.combinations(("bias", "diagonal", "rows"), count)]


def constant(number: float, nodes: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """One number for every node, expanded from one element."""
    return torch.full((), number, dtype=dtype).expand(nodes)


def varying(nodes: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """A number for each node, every third of them 0, with a stride."""
    diagonal = rand(nodes, 2, seed=9).to(dtype)[:, 0]
    diagonal[::3] = 0
    return diagonal


DIAGONALS = {"constant": functools.partial(constant, 1.7), "varying": varying}
