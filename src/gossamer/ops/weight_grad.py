"""The weight gradient of a product: dW = g^T x, in float32.

Summed in slabs of rows whose number depends on the sizes alone, so that the result, unlike that of a library's
product, does not depend on the number of threads. It takes as long as torch's product of the same operands.
"""

from __future__ import annotations

import torch
from torch import Tensor

from . import _checks
from ._library import define


def _check(g: Tensor, x: Tensor) -> None:
    _checks.dtype_of("x", x, (torch.float32, torch.float64))
    _checks.shape_of("x", x, (None, None), "[rows, columns]")
    _checks.dtype_of("g", g, (x.dtype,))
    _checks.shape_of("g", g, (x.size(0), None), f"[{x.size(0)}, outputs], a row for each of `x`")


weight_grad = define(
    "weight_grad(Tensor g, Tensor x) -> Tensor",
    check=_check,
    reference=lambda g, x: torch.mm(g.t(), x),
    fake=lambda g, x: x.new_empty(g.size(1), x.size(1)),
)
