"""What the kernels of the integer engine share: the result, and how it is made from sums."""

from __future__ import annotations

import torch
from torch import Tensor

from ... import memory
from ...ops.requantize import FLOATS, Requantize, code_bytes
from ._arguments import F32, at, contiguous


class Result:
    """A new tensor of codes or floats, and the arguments by which kernels fill it."""

    def __init__(self, rows: int, columns: int, to: Requantize) -> None:
        self.held = contiguous(to.row, to.shift, to.add)
        if to.bits == FLOATS:
            self.out: Tensor = memory.empty([rows, columns], F32)
        else:
            self.out = memory.empty([rows, code_bytes(columns, to.bits)], torch.uint8)
        self.arguments = (*map(at, self.held), to.slope, to.zero, to.bits, at(self.out))
