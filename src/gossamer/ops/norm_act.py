"""Normalisation, activation and dropout in as few memory passes as the mathematics allows.

    z = weight * x_hat + bias        x_hat = (x - mean) rstd        out = dropout(act(z))

`over` says what mean and variance are taken over: columns (batch norm), rows (layer norm), everything (PyG's layer norm
of a graph, with rstd = 1 / (sqrt(var) + eps)); or they are fixed (batch norm in evaluation), or there is no norm.

    g = dropout'(dout) act'(z)       dbias = sum over rows of g        dweight = sum over rows of g x_hat
    dx = rstd (h - mean h - x_hat mean(h x_hat))                       h = weight g, means as `over` says

Only x is saved: backward recomputes z and the mask. Over columns that is two passes over x forward and two over
(x, dout) backward, over rows one each; separate modules take six and seven, and save three tensors.
"""

from __future__ import annotations

import math
from enum import IntEnum
from typing import Any, NamedTuple

import torch
from torch import Tensor

from . import _checks
from ._library import define
from ._structure import structure, tensors_of, with_tensors, without_tensors
from .activation import activate, check_activation, check_slope, derivative
from .dropout import check_probability, kept, survivor_scale


class Over(IntEnum):
    NOTHING = 0
    FIXED = 1
    COLUMNS = 2
    ROWS = 3
    ALL = 4


@structure
class Epilogue(NamedTuple):
    """dropout(act(norm(x))), in the arguments of the ops that run it or its backward.

    `mean` and `var` are those of fixed statistics; for a backward, those that forward used.
    """

    weight: Tensor | None = None
    bias: Tensor | None = None
    mean: Tensor | None = None
    var: Tensor | None = None
    over: int = 0
    eps: float = 0.0
    act: int = 0
    slope: float = 0.0
    p: float = 0.0
    seed: int = 0

    def using(self, mean: Tensor, var: Tensor) -> Epilogue:
        """With the statistics in use: its own if they are fixed, else those given."""
        return self._replace(mean=mean, var=var) if self.mean is None or self.var is None else self

    @property
    def given(self) -> Epilogue:
        """As forward takes it: with statistics only where they are fixed."""
        return self if self.over == Over.FIXED else self._replace(mean=None, var=None)

    @property
    def norm(self) -> Epilogue:
        """The norm alone."""
        return self._replace(act=0, slope=0.0, p=0.0, seed=0)

    @property
    def pointwise(self) -> Epilogue:
        """Activation and dropout alone."""
        return self._replace(weight=None, bias=None, mean=None, var=None, over=int(Over.NOTHING))


@structure
class EpilogueResult(NamedTuple):
    """The result, and the mean and variance of x that it was made with; empty if they were fixed, or without a norm."""

    out: Tensor
    mean: Tensor
    var: Tensor


@structure
class EpilogueGradient(NamedTuple):
    dx: Tensor
    dweight: Tensor
    dbias: Tensor


def check_over(over: int) -> None:
    if over not in list(Over):
        raise ValueError(f"`over` must be one of {[f'{o.name} = {o.value}' for o in Over]} (got {over})")


def check_epilogue(x: Tensor, e: Epilogue) -> None:
    _checks.dtype_of("x", x, (torch.float32, torch.float64))
    _checks.shape_of("x", x, (None, None), "[rows, columns]")
    check_over(e.over)
    fixed = e.over == Over.FIXED
    for name, tensor in (("weight", e.weight), ("bias", e.bias), ("mean", e.mean), ("var", e.var)):
        if tensor is not None:
            _checks.dtype_of(name, tensor, (x.dtype,))
            _checks.shape_of(name, tensor, (x.size(1),), f"[{x.size(1)}], one number per column")
    if (e.mean is not None) != fixed or (e.var is not None) != fixed:
        raise ValueError("`mean` and `var` must be given if statistics are FIXED, and only then")
    if e.over == Over.NOTHING and (e.weight is not None or e.bias is not None):
        raise ValueError("`weight` and `bias` need a normalisation; pass none, or another `over`")
    if e.over in (Over.COLUMNS, Over.ALL) and x.numel() == 0:
        raise ValueError(f"`x` must not be empty when its statistics are asked for (got {tuple(x.shape)})")
    if not 0 <= e.eps < math.inf:
        raise ValueError(f"`eps` must be a finite number, 0 or more (got {e.eps})")
    check_activation(e.act)
    check_slope(e.slope)
    check_probability(e.p)


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


def normalised_by(x: Tensor, e: Epilogue) -> Tensor:
    """x_hat by the statistics in use; x itself without a norm."""
    if e.over == Over.NOTHING or e.mean is None or e.var is None:
        return x
    return normalised(x, e.mean, rstd_of(e.var, e.over, e.eps), e.over)


def _reference(x: Tensor, e: Epilogue) -> EpilogueResult:
    mean, var = statistics(x, e.over)
    x_hat = normalised_by(x, e.using(mean, var))
    out = _dropped(activate(affine(x_hat, e.weight, e.bias), e.act, e.slope), e.p, e.seed)
    return EpilogueResult(out.clone() if out is x else out, mean, var)


def count_of_statistics(x: Tensor, over: int) -> int:
    """How many means a norm computes of x."""
    return {Over.COLUMNS: x.size(1), Over.ROWS: x.size(0), Over.ALL: 1}.get(Over(over), 0)


def fake_norm_act(x: Tensor, e: Epilogue) -> EpilogueResult:
    count = count_of_statistics(x, e.over)
    out = torch.empty_like(x, memory_format=torch.contiguous_format)
    return EpilogueResult(out, x.new_empty(count), x.new_empty(count))


def _setup_context(ctx: Any, inputs: tuple[Tensor, Epilogue], output: tuple[Tensor, Tensor, Tensor]) -> None:
    x, e = inputs
    for name, fixed in (("mean", e.mean), ("var", e.var)):
        if fixed is not None and fixed.requires_grad:
            raise ValueError(f"`{name}` must not require grad: fixed statistics have no gradient here. Detach it")
    _, mean, var = output
    ctx.mark_non_differentiable(mean, var)
    used = e.using(mean, var)
    ctx.epilogue = without_tensors(used)
    ctx.save_for_backward(x, *tensors_of(used))


NO_GRADIENTS: Any = Epilogue(*[None] * len(Epilogue._fields))  # type: ignore[arg-type]
"""For each field its gradient: that of weight and bias is to be put in."""


def _backward(ctx: Any, dout: Tensor, *unused: Tensor | None) -> tuple[Tensor | None, Epilogue]:
    x, *tensors = ctx.saved_tensors
    e: Epilogue = with_tensors(ctx.epilogue, tensors)
    if torch.is_grad_enabled() and e.over not in (Over.NOTHING, Over.FIXED):
        mean, var = statistics(x, e.over)  # a second derivative goes through them too
        e = e._replace(mean=mean, var=var)
    dx, dweight, dbias = norm_act_backward.followed(dout.contiguous(), x, e)
    own = NO_GRADIENTS._replace(weight=None if e.weight is None else dweight, bias=None if e.bias is None else dbias)
    needs_x, _ = ctx.needs
    return dx if needs_x else None, own


def check_statistics(x: Tensor, e: Epilogue) -> None:
    """What a backward asks of the statistics that forward used."""
    count = x.size(1) if e.over == Over.FIXED else count_of_statistics(x, e.over)
    for name, tensor in (("mean", e.mean), ("var", e.var)):
        if tensor is None:
            raise ValueError(f"`{name}` must be that which forward used, [{count}] (got None)")
        _checks.dtype_of(name, tensor, (x.dtype,))
        _checks.shape_of(name, tensor, (count,), f"[{count}]")


def check_backward(dout: Tensor, x: Tensor, e: Epilogue) -> None:
    check_epilogue(x, e.given)
    _checks.dtype_of("dout", dout, (x.dtype,))
    _checks.shape_of("dout", dout, tuple(x.shape), f"of x, {tuple(x.shape)}")
    check_statistics(x, e)


def _backward_reference(dout: Tensor, x: Tensor, e: Epilogue) -> EpilogueGradient:
    x_hat = normalised_by(x, e)
    g = _dropped(dout * derivative(affine(x_hat, e.weight, e.bias), e.act, e.slope), e.p, e.seed)
    if e.over == Over.NOTHING or e.var is None:
        return EpilogueGradient(g.clone() if g is dout else g, x.new_zeros(x.size(1)), x.new_zeros(x.size(1)))
    h, rstd = g if e.weight is None else g * e.weight, rstd_of(e.var, e.over, e.eps)
    dims = {Over.COLUMNS: (0,), Over.ROWS: (1,), Over.ALL: (0, 1)}.get(Over(e.over))
    if dims:
        stretch = 1.0 / (e.var.sqrt() * rstd).clamp(min=torch.finfo(x.dtype).tiny) if e.over == Over.ALL else 1.0
        h = h - h.mean(dims, keepdim=True) - x_hat * (h * x_hat).mean(dims, keepdim=True) * stretch
    dx = h * (rstd.unsqueeze(1) if e.over == Over.ROWS else rstd)
    return EpilogueGradient(dx, (g * x_hat).sum(0), g.sum(0))


def _backward_fake(dout: Tensor, x: Tensor, e: Epilogue) -> EpilogueGradient:
    dx = torch.empty_like(x, memory_format=torch.contiguous_format)
    return EpilogueGradient(dx, x.new_empty(x.size(1)), x.new_empty(x.size(1)))


norm_act_backward = define(
    "norm_act_backward(Tensor dout, Tensor x, Epilogue) -> EpilogueGradient",
    check=check_backward,
    reference=_backward_reference,
    fake=_backward_fake,
)
norm_act = define(
    "norm_act(Tensor x, Epilogue) -> EpilogueResult",
    check=check_epilogue,
    reference=_reference,
    fake=fake_norm_act,
    backward=_backward,
    setup_context=_setup_context,
)
