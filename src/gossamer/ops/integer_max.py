"""The largest code of each column over a node's neighbours: a maximum of the integer engine.

    out_ic = max over edges (i, j) of q_jc        the zero point for a node without edges

Codes grow with what they stand for, so the largest code is that of the largest number, of the same scale.
"""

from __future__ import annotations

import torch
from torch import Tensor

from . import _checks
from ._library import define
from .csr import row_of_edge
from .requantize import check_code, check_codes, packed, unpacked


def _check(rowptr: Tensor, col: Tensor, x: Tensor, x_bits: int, x_zero: int) -> None:
    check_codes("x", x, x_bits)
    check_code("x_zero", x_zero, x_bits)
    _checks.csr(rowptr, col, x.size(0))


def _reference(rowptr: Tensor, col: Tensor, x: Tensor, x_bits: int, x_zero: int) -> Tensor:
    codes = unpacked(x, x_bits)
    num_dst = rowptr.numel() - 1
    place = row_of_edge(rowptr).unsqueeze(1).expand(-1, codes.size(1))
    best = codes.new_zeros(num_dst, codes.size(1)).scatter_reduce(0, place, codes[col.long()], "amax")
    best = torch.where((rowptr.diff() == 0).unsqueeze(1), torch.full_like(best, x_zero), best)
    return packed(best, x_bits)


integer_max = define(
    "integer_max(Tensor rowptr, Tensor col, Tensor x, int x_bits, int x_zero) -> Tensor",
    check=_check,
    reference=_reference,
    fake=lambda rowptr, col, x, x_bits, x_zero: x.new_empty(rowptr.numel() - 1, x.size(1)),
)
