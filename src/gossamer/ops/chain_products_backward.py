"""The backward of products of a chain's result, which is made again from x, a few rows at a time.

    z = norm(x)      out = dropout(act(z))  (ops/norm_act.py)      y_k = out W_k^T + b_k

    dW_k = g_k^T out      dz = (sum_k g_k W_k) * d out / d z      g_k the gradient of y_k

So that neither a chain nor the product behind it keeps `out`. After ReLU and dropout most of `out` is zero, and so is
its derivative: nothing is multiplied there. dx follows from dz as from the gradient of a norm alone. Statistics by
column, fixed, or none.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from . import _checks
from ._library import OPS, define
from .norm_act import Over, check_norm_act
from .norm_act_backward_rows import COLUMNWISE

Result = tuple[list[Tensor], Tensor]


def _check(
    gs: list[Tensor], weights: list[Tensor], x: Tensor, weight: Tensor | None, bias: Tensor | None, mean: Tensor,
    var: Tensor, over: int, eps: float, act: int, slope: float, p: float, seed: int,
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
    if len(gs) != len(weights):
        raise ValueError(f"`gs` must be as many as `weights` (got {len(gs)} and {len(weights)})")
    for k, (g, w) in enumerate(zip(gs, weights, strict=True)):
        _checks.dtype_of(f"gs[{k}]", g, (torch.float32,))
        _checks.dtype_of(f"weights[{k}]", w, (torch.float32,))
        _checks.shape_of(f"gs[{k}]", g, (x.size(0), None), f"[{x.size(0)}, outputs], a row for each of `x`")
        outputs = f"[{g.size(1)}, {x.size(1)}], outputs of `gs[{k}]` by columns of `x`"
        _checks.shape_of(f"weights[{k}]", w, (g.size(1), x.size(1)), outputs)


def _reference(
    gs: list[Tensor], weights: list[Tensor], x: Tensor, weight: Tensor | None, bias: Tensor | None, mean: Tensor,
    var: Tensor, over: int, eps: float, *pointwise: Any,
) -> Result:  # fmt: skip
    known = over if over == Over.NOTHING else Over.FIXED
    used = (None, None) if over == Over.NOTHING else (mean, var)
    norm_act, none = OPS["norm_act"].reference, x.new_empty(0)
    z = norm_act(x, weight, bias, *used, known, eps, 0, 0.0, 0.0, 0)[0]
    out = norm_act(z, None, None, None, None, Over.NOTHING, eps, *pointwise)[0]
    dout = torch.zeros_like(x)
    for g, w in zip(gs, weights, strict=True):
        dout += g @ w
    dz = OPS["norm_act_backward"].reference(dout, z, None, None, none, none, Over.NOTHING, eps, *pointwise)[0]
    return [torch.mm(g.t(), out) for g in gs], dz


chain_products_backward = define(
    "chain_products_backward(Tensor[] gs, Tensor[] weights, Tensor x, Tensor? weight, Tensor? bias, Tensor mean, "
    "Tensor var, int over, float eps, int act, float slope, float p, int seed) -> (Tensor[], Tensor)",
    check=_check,
    reference=_reference,
    fake=lambda gs, weights, x, *rest: ([g.new_empty(g.size(1), x.size(1)) for g in gs], torch.empty_like(x)),
)
"""dW_k for each k; dz."""
