"""Normalisation, activation and dropout in as few memory passes as the mathematics allows.

    z = weight * x_hat + bias        x_hat = (x - mean) rstd        out = dropout(act(z))

`over` says what mean and variance are taken over: columns (batch norm), rows (layer norm), everything (PyG's layer norm
of a graph, with rstd = 1 / (sqrt(var) + eps)); or they are fixed (batch norm in evaluation), or there is no norm.

    g = dropout'(dout) act'(z)       dbias = sum over rows of g        dweight = sum over rows of g x_hat
    dx = rstd (h - mean h - x_hat mean(h x_hat))                       h = weight g, means as `over` says

Only x is kept: backward makes z and the mask again. Over columns that is two passes over x forward and two over
(x, dout) backward, over rows one each; separate modules take six and seven, and keep three tensors.
"""

from __future__ import annotations

import math
from enum import IntEnum
from typing import Any, NamedTuple

import torch
from torch import Tensor

from . import _checks
from ._library import define
from .activation import activate, check_activation, check_slope, derivative
from .dropout import check_probability, kept, survivor_scale


class Over(IntEnum):
    NOTHING = 0
    FIXED = 1
    COLUMNS = 2
    ROWS = 3
    ALL = 4


class Settings(NamedTuple):
    """The arguments of `norm_act` after its tensors."""

    over: int
    eps: float
    act: int
    slope: float
    p: float
    seed: int


def check_over(over: int) -> None:
    if over not in list(Over):
        raise ValueError(f"`over` must be one of {[f'{o.name} = {o.value}' for o in Over]} (got {over})")


def check_norm_act(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, mean: Tensor | None, var: Tensor | None,
    over: int, eps: float, act: int, slope: float, p: float, seed: int,
) -> None:  # fmt: skip
    _checks.dtype_of("x", x, (torch.float32, torch.float64))
    _checks.shape_of("x", x, (None, None), "[rows, columns]")
    check_over(over)
    fixed = over == Over.FIXED
    for name, tensor in (("weight", weight), ("bias", bias), ("mean", mean), ("var", var)):
        if tensor is not None:
            _checks.dtype_of(name, tensor, (x.dtype,))
            _checks.shape_of(name, tensor, (x.size(1),), f"[{x.size(1)}], one number per column")
    if (mean is not None) != fixed or (var is not None) != fixed:
        raise ValueError("`mean` and `var` must be given if statistics are FIXED, and only then")
    if over == Over.NOTHING and (weight is not None or bias is not None):
        raise ValueError("`weight` and `bias` need a normalisation; pass none, or another `over`")
    if over in (Over.COLUMNS, Over.ALL) and x.numel() == 0:
        raise ValueError(f"`x` must not be empty when its statistics are asked for (got {tuple(x.shape)})")
    if not 0 <= eps < math.inf:
        raise ValueError(f"`eps` must be a finite number, 0 or more (got {eps})")
    check_activation(act)
    check_slope(slope)
    check_probability(p)


def statistics(x: Tensor, over: int) -> tuple[Tensor, Tensor]:
    """Mean and biased variance: [columns], [rows], [1], or empty."""
    if over == Over.COLUMNS or over == Over.ROWS:
        dim = 0 if over == Over.COLUMNS else 1
        return x.mean(dim), x.var(dim, correction=0) if x.numel() else x.mean(dim)
    if over == Over.ALL:
        return x.mean().reshape(1), x.var(correction=0).reshape(1)
    return x.new_empty(0), x.new_empty(0)


def rstd_of(var: Tensor, over: int, eps: float) -> Tensor:
    return 1 / (var.sqrt() + eps) if over == Over.ALL else 1 / (var + eps).sqrt()


def normalised(x: Tensor, mean: Tensor, rstd: Tensor, over: int) -> Tensor:
    if over == Over.NOTHING:
        return x
    return (x - mean.unsqueeze(1)) * rstd.unsqueeze(1) if over == Over.ROWS else (x - mean) * rstd


def affine(x_hat: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    z = x_hat if weight is None else x_hat * weight
    return z if bias is None else z + bias


def _dropped(y: Tensor, p: float, seed: int) -> Tensor:
    return torch.where(kept(y, p, seed), y * survivor_scale(p), 0.0) if p > 0 else y


def _reference(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, mean: Tensor | None, var: Tensor | None,
    over: int, eps: float, act: int, slope: float, p: float, seed: int,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    own_mean, own_var = statistics(x, over)
    used = (own_mean, own_var) if mean is None or var is None else (mean, var)
    x_hat = normalised(x, used[0], rstd_of(used[1], over, eps), over)
    out = _dropped(activate(affine(x_hat, weight, bias), act, slope), p, seed)
    return out.clone() if out is x else out, own_mean, own_var


def fake_norm_act(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, mean: Tensor | None, var: Tensor | None,
    over: int, eps: float, act: int, slope: float, p: float, seed: int,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    count = {Over.COLUMNS: x.size(1), Over.ROWS: x.size(0), Over.ALL: 1}.get(Over(over), 0)
    return torch.empty_like(x, memory_format=torch.contiguous_format), x.new_empty(count), x.new_empty(count)


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
    x, weight, bias, mean, var, *ctx.settings = inputs
    for name, fixed in (("mean", mean), ("var", var)):
        if fixed is not None and fixed.requires_grad:
            raise ValueError(f"`{name}` must not require grad: fixed statistics have no gradient here. Detach it")
    ctx.mark_non_differentiable(output[1], output[2])
    own = (output[1], output[2]) if mean is None else (mean, var)
    ctx.save_for_backward(x, weight, bias, *own)


def _backward(ctx: Any, dout: Tensor, *unused: Tensor | None) -> tuple[Tensor | None, ...]:
    x, weight, bias, mean, var = ctx.saved_tensors
    if torch.is_grad_enabled() and ctx.settings[0] not in (Over.NOTHING, Over.FIXED):
        mean, var = statistics(x, ctx.settings[0])  # a second derivative goes through them too
    dx, dweight, dbias = norm_act_backward_op.followed(dout.contiguous(), x, weight, bias, mean, var, *ctx.settings)
    wanted = (None if weight is None else dweight, None if bias is None else dbias)
    return (dx if ctx.needs_input_grad[0] else None, *wanted, *[None] * 8)


def _check_backward(
    dout: Tensor, x: Tensor, weight: Tensor | None, bias: Tensor | None, mean: Tensor, var: Tensor,
    over: int, eps: float, act: int, slope: float, p: float, seed: int,
) -> None:  # fmt: skip
    fixed = over == Over.FIXED
    check_norm_act(x, weight, bias, mean if fixed else None, var if fixed else None, over, eps, act, slope, p, seed)
    _checks.dtype_of("dout", dout, (x.dtype,))
    _checks.shape_of("dout", dout, tuple(x.shape), f"of x, {tuple(x.shape)}")
    own = fake_norm_act(x, None, None, None, None, over, eps, act, slope, p, seed)[1].numel()
    expected = x.size(1) if fixed else own
    for name, tensor in (("mean", mean), ("var", var)):
        _checks.shape_of(name, tensor, (expected,), f"[{expected}]")
        _checks.dtype_of(name, tensor, (x.dtype,))


def _backward_reference(
    dout: Tensor, x: Tensor, weight: Tensor | None, bias: Tensor | None, mean: Tensor, var: Tensor,
    over: int, eps: float, act: int, slope: float, p: float, seed: int,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    rstd = rstd_of(var, over, eps)
    x_hat = normalised(x, mean, rstd, over)
    g = _dropped(dout * derivative(affine(x_hat, weight, bias), act, slope), p, seed)
    h = g if weight is None else g * weight
    if over != Over.NOTHING:
        dims = {Over.COLUMNS: (0,), Over.ROWS: (1,), Over.ALL: (0, 1)}.get(Over(over))
        if dims:
            stretch = 1.0 / (var.sqrt() * rstd).clamp(min=torch.finfo(x.dtype).tiny) if over == Over.ALL else 1.0
            h = h - h.mean(dims, keepdim=True) - x_hat * (h * x_hat).mean(dims, keepdim=True) * stretch
        h = h * (rstd.unsqueeze(1) if over == Over.ROWS else rstd)
    if over == Over.NOTHING:
        return h.clone() if h is dout else h, x.new_zeros(x.size(1)), x.new_zeros(x.size(1))
    return h, (g * x_hat).sum(0), g.sum(0)


def _backward_fake(
    dout: Tensor, x: Tensor, weight: Tensor | None, bias: Tensor | None, mean: Tensor, var: Tensor,
    over: int, eps: float, act: int, slope: float, p: float, seed: int,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    return torch.empty_like(x, memory_format=torch.contiguous_format), x.new_empty(x.size(1)), x.new_empty(x.size(1))


_SETTINGS = "int over, float eps, int act, float slope, float p, int seed"
norm_act_backward_op = define(
    "norm_act_backward(Tensor dout, Tensor x, Tensor? weight, Tensor? bias, Tensor mean, Tensor var, "
    f"{_SETTINGS}) -> (Tensor, Tensor, Tensor)",
    check=_check_backward,
    reference=_backward_reference,
    fake=_backward_fake,
)
norm_act_op = define(
    f"norm_act(Tensor x, Tensor? weight, Tensor? bias, Tensor? mean, Tensor? var, {_SETTINGS})"
    " -> (Tensor, Tensor, Tensor)",
    check=check_norm_act,
    reference=_reference,
    fake=fake_norm_act,
    backward=_backward,
    setup_context=_setup_context,
)
