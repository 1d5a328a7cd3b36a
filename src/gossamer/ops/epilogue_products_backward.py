"""The backward of products of an epilogue's result, which is recomputed from x, a few rows at a time.

    z = norm(x)      out = dropout(act(z))  (ops/norm_act.py)      y_k = out W_k^T + b_k

    dW_k = g_k^T out      dz = (sum_k g_k W_k) * d out / d z      g_k the gradient of y_k

So neither the epilogue nor the product behind it saves `out`. After ReLU and dropout most of `out` is zero, and so is
its derivative: nothing is multiplied there. dx follows from dz as from the gradient of a norm alone. Statistics by
column, fixed, or none.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from . import _checks
from ._library import define
from ._structure import structure
from .norm_act import Epilogue, affine, check_epilogue, check_statistics, norm_act, norm_act_backward, normalised_by
from .norm_act_backward_rows import check_columnwise


@structure
class ProductsGradient(NamedTuple):
    """dW_k for each k; dz."""

    dweights: list[Tensor]
    dz: Tensor


def _check(gs: list[Tensor], weights: list[Tensor], x: Tensor, e: Epilogue) -> None:
    check_epilogue(x, e.given)
    _checks.dtype_of("x", x, (torch.float32,))
    check_columnwise(e.over)
    check_statistics(x, e)
    if len(gs) != len(weights):
        raise ValueError(f"`gs` must be as many as `weights` (got {len(gs)} and {len(weights)})")
    for k, (g, w) in enumerate(zip(gs, weights, strict=True)):
        _checks.dtype_of(f"gs[{k}]", g, (torch.float32,))
        _checks.dtype_of(f"weights[{k}]", w, (torch.float32,))
        _checks.shape_of(f"gs[{k}]", g, (x.size(0), None), f"[{x.size(0)}, outputs], a row for each of `x`")
        outputs = f"[{g.size(1)}, {x.size(1)}], outputs of `gs[{k}]` by columns of `x`"
        _checks.shape_of(f"weights[{k}]", w, (g.size(1), x.size(1)), outputs)


def _reference(gs: list[Tensor], weights: list[Tensor], x: Tensor, e: Epilogue) -> ProductsGradient:
    z = affine(normalised_by(x, e), e.weight, e.bias)
    out, none, _ = norm_act.reference(z, e.pointwise)
    dout = torch.zeros_like(x)
    for g, w in zip(gs, weights, strict=True):
        dout += g @ w
    dz, *_ = norm_act_backward.reference(dout, z, e.pointwise.using(none, none))
    return ProductsGradient([torch.mm(g.t(), out) for g in gs], dz)


epilogue_products_backward = define(
    "epilogue_products_backward(Tensor[] gs, Tensor[] weights, Tensor x, Epilogue) -> ProductsGradient",
    check=_check,
    reference=_reference,
    fake=lambda gs, weights, x, e: ProductsGradient(
        [g.new_empty(g.size(1), x.size(1)) for g in gs], torch.empty_like(x)
    ),
)
