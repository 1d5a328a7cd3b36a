"""Native kernel of ops/integer_max.py."""

from __future__ import annotations

import torch
from torch import Tensor

from ... import memory
from ...native import library, num_threads
from ...ops._library import implement
from ...ops.integer_max import integer_max
from ._arguments import at, contiguous


def _integer_max(rowptr: Tensor, col: Tensor, x: Tensor, x_bits: int, x_zero: int) -> Tensor:
    rowptr, col, x = contiguous(rowptr, col, x)
    num_dst = rowptr.numel() - 1
    out = memory.empty([num_dst, x.size(1)], torch.uint8)
    library.integer_max(at(rowptr), at(col), num_dst, at(x), x_bits, x.size(1), x_zero, at(out), num_threads())
    return out


implement(integer_max, "cpu", _integer_max)
