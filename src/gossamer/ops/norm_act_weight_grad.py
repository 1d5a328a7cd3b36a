"""Weight gradients of the products of a chain's result, which is made again from x, a few rows at a time.

    out = dropout(act(norm(x)))  (ops/norm_act.py)        dW_k = g_k^T out

So that neither a chain nor the product behind it keeps `out`. Statistics by column, fixed, or none.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from . import _checks
from ._library import OPS, define
from .norm_act import Over, check_norm_act
from .norm_act_backward_rows import COLUMNWISE


def _check(
    gs: list[Tensor], x: Tensor, weight: Tensor | None, bias: Tensor | None, mean: Tensor, var: Tensor,
    over: int, eps: float, act: int, slope: float, p: float, seed: int,
) -> None:  # fmt: skip
    fixed = over == Over.FIXED
    check_norm_act(x, weight, bias, mean if fixed else None, var if fixed else None, over, eps, act, slope, p, seed)
    _checks.dtype_of("x", x, (torch.float32,))
    if over not in COLUMNWISE:
        raise ValueError(f"`over` must be one of {[o.name for o in COLUMNWISE]} (got {Over(over).name})")
    expected = 0 if over == Over.NOTHING else x.size(1)
    for name, tensor in (("mean", mean), ("var", var)):
        _checks.dtype_of(name, tensor, (torch.float32,))
        _checks.shape_of(name, tensor, (expected,), f"[{expected}]")
    for k, g in enumerate(gs):
        _checks.dtype_of(f"gs[{k}]", g, (torch.float32,))
        _checks.shape_of(f"gs[{k}]", g, (x.size(0), None), f"[{x.size(0)}, outputs], a row for each of `x`")


def _reference(
    gs: list[Tensor], x: Tensor, weight: Tensor | None, bias: Tensor | None, mean: Tensor, var: Tensor,
    over: int, *rest: Any,
) -> list[Tensor]:  # fmt: skip
    known = over if over == Over.NOTHING else Over.FIXED
    used = (None, None) if over == Over.NOTHING else (mean, var)
    out = OPS["norm_act"].reference(x, weight, bias, *used, known, *rest)[0]
    return [torch.mm(g.t(), out) for g in gs]


norm_act_weight_grad = define(
    "norm_act_weight_grad(Tensor[] gs, Tensor x, Tensor? weight, Tensor? bias, Tensor mean, Tensor var, int over, "
    "float eps, int act, float slope, float p, int seed) -> Tensor[]",
    check=_check,
    reference=_reference,
    fake=lambda gs, x, *rest: [g.new_empty(g.size(1), x.size(1)) for g in gs],
)
