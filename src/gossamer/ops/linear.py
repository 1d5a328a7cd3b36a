"""x W^T + b (+ rows that are there already) in float32, with results in pooled buffers.

    dx = dout W        dW = dout^T x        db = column sums of dout        drows = dout

The product itself is torch's, dW ours (ops/weight_grad.py). A fresh result costs more in page faults than it need
(110 ms against 79 ms for 169,343 x 256 x 256 on two cores), so all three results of the size of x or out come from the
pool.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..state import facts
from . import _checks
from ._library import define
from .weight_grad import weight_grad


def _check(x: Tensor, weight: Tensor, bias: Tensor | None, rows: Tensor | None) -> None:
    _checks.dtype_of("x", x, (torch.float32, torch.float64))
    _checks.shape_of("x", x, (None, None), "[rows, in_features]")
    _checks.dtype_of("weight", weight, (x.dtype,))
    _checks.shape_of("weight", weight, (None, x.size(1)), f"[out_features, {x.size(1)}], as many columns as x")
    if bias is not None:
        _checks.dtype_of("bias", bias, (x.dtype,))
        _checks.shape_of("bias", bias, (weight.size(0),), f"[{weight.size(0)}], one number per output column")
    if rows is not None:
        shape = (x.size(0), weight.size(0))
        _checks.dtype_of("rows", rows, (x.dtype,))
        _checks.shape_of("rows", rows, shape, f"of the result, {shape}")


def _reference(x: Tensor, weight: Tensor, bias: Tensor | None, rows: Tensor | None) -> Tensor:
    out = torch.mm(x, weight.t()) if bias is None else torch.addmm(bias, x, weight.t())
    return out if rows is None else out + rows


def _fake(x: Tensor, weight: Tensor, bias: Tensor | None, rows: Tensor | None) -> Tensor:
    return x.new_empty(x.size(0), weight.size(0))


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, weight, bias, _ = inputs
    _, needs_weight, *_ = ctx.needs_input_grad
    ctx.save_for_backward(x if needs_weight else None, weight)
    ctx.has_bias = bias is not None


def _backward(ctx: Any, dout: Tensor) -> tuple[Tensor | None, ...]:
    x, weight = ctx.saved_tensors
    dout = dout.contiguous()
    needs_x, needs_weight, needs_bias, needs_rows = ctx.needs_input_grad
    dx = linear_op(dout, weight.t(), None, None) if needs_x else None
    dweight = weight_grad.followed(dout, x) if needs_weight else None
    dbias = bias_gradient(dout) if ctx.has_bias and needs_bias else None
    return dx, dweight, dbias, dout if needs_rows else None


linear_op = define(
    "linear(Tensor x, Tensor weight, Tensor? bias, Tensor? rows) -> Tensor",
    check=_check,
    reference=_reference,
    fake=_fake,
    backward=_backward,
    setup_context=_setup_context,
)


def _check_sums(x: Tensor) -> None:
    _checks.dtype_of("x", x, (torch.float32, torch.float64, torch.bfloat16))
    _checks.shape_of("x", x, (None, None), "[rows, columns]")


def _setup_sums(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
    ctx.shape = inputs[0].shape


column_sums = define(
    "column_sums(Tensor x) -> Tensor",
    check=_check_sums,
    reference=lambda x: x.sum(0),
    fake=lambda x: x.new_empty(x.size(1)),
    backward=lambda ctx, dsums: dsums.expand(ctx.shape),
    setup_context=_setup_sums,
)


def remember_sums(dout: Tensor, sums: Tensor) -> None:
    """`sums` are those of `dout` by column: a fact about the gradient, which autograd hands on as the same object."""
    facts.note(dout, "column_sums", sums)


def bias_gradient(dout: Tensor) -> Tensor:
    """The sums of a gradient by column: those that its maker remembered, else made now."""
    if not torch._C._are_functorch_transforms_active() and not torch.compiler.is_compiling():
        sums = facts.recall(dout, "column_sums")
        if sums is not None:
            return sums
    return column_sums(dout.contiguous())


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None, rows: Tensor | None = None) -> Tensor:
    """As `torch.nn.functional.linear`, for two-dimensional x; `rows` are added to the result."""
    return linear_op(x, weight, bias, rows)
