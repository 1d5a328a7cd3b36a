"""How far norm_act and its gradients may be from the definition: one rounding is UNIT, the rest follows step by step.

All in float64, from the inputs that the kernel got. A sum takes at most SUM roundings: within a block of 8 rows, over
the 32 blocks of a chunk, and a few for its terms; sums of chunks are taken in float64.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from gossamer.ops.activation import activate, derivative
from gossamer.ops.dropout import kept, survivor_scale
from gossamer.ops.norm_act import Over, rstd_of

from .compare import UNIT

SUM = 8 + 32 + 8
POINTWISE = 24  # an activation: the exponential's 2 units in the last place, a polynomial of degree 8, two products
DIMS = {Over.COLUMNS: (0,), Over.ROWS: (1,), Over.ALL: (0, 1)}


class Bounds(NamedTuple):
    z: Tensor  # before the activation; a kink within reach of it gives either derivative
    out: Tensor
    mean: Tensor | None = None
    var: Tensor | None = None


class Settings(NamedTuple):
    over: int
    eps: float
    act: int
    slope: float
    p: float
    seed: int


class Normal(NamedTuple):
    """x_hat, what multiplies it, and how far the kernel's own may be from it."""

    x_hat: Tensor
    rstd: Tensor
    error: Tensor
    rstd_error: Tensor  # relative
    mean_error: Tensor
    var_error: Tensor


def normal(x: Tensor, mean: Tensor | None, var: Tensor | None, s: Settings) -> Normal:
    """Differences to a first row are summed: errors grow with the range, those of the mean's rounding with its size."""
    if s.over == Over.NOTHING or x.numel() == 0:
        zero = torch.zeros_like(x)
        return Normal(x, torch.ones_like(x), zero, zero, zero, zero)
    mean_error = var_error = torch.zeros(1, dtype=x.dtype)
    if mean is None or var is None:
        dims = DIMS[Over(s.over)]
        mean, var = x.mean(dims, keepdim=True), x.var(dims, correction=0, keepdim=True)
        spread = x.amax(dims, keepdim=True) - x.amin(dims, keepdim=True)
        whole = SUM if s.over == Over.ROWS else 2  # a row is summed as it is
        mean_error = UNIT * (SUM * spread + whole * x.abs().amax(dims, keepdim=True))
        var_error = UNIT * SUM * spread**2 + mean_error**2
    rstd = rstd_of(var, s.over, s.eps)
    room = var if s.over == Over.ALL else var + s.eps
    rstd_error = 4 * UNIT + torch.where(var > 0, var_error / room, 0.0)  # a constant is seen as one
    x_hat = (x - mean) * rstd
    size = (x.abs() + mean.abs()) * rstd
    error = mean_error * rstd + 4 * UNIT * size + rstd_error * x_hat.abs()
    return Normal(x_hat, rstd, error, rstd_error, mean_error, var_error)


def steepness(s: Settings) -> float:
    """The largest derivative of an activation, and of its derivative where it has one; gelu's are below 1.2."""
    return max(1.2, abs(s.slope))


def forward_bounds(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, mean: Tensor | None, var: Tensor | None, s: Settings
) -> Bounds:
    n = normal(x, mean, var, s)
    w, b = (torch.full_like(x[:1], v) if t is None else t.unsqueeze(0) for t, v in ((weight, 1.0), (bias, 0.0)))
    z = n.x_hat * w + b
    affine = 0 if s.over == Over.NOTHING else 1
    z_error = affine * (n.error * w.abs() + 4 * UNIT * (z.abs() + b.abs()))
    pointwise = 0 if s.act <= 1 else POINTWISE * UNIT * (z.abs() + abs(s.slope))
    out = (steepness(s) * z_error + pointwise + 2 * UNIT * activate(z, s.act, s.slope).abs()) * survivor_scale(s.p)
    own = (n.mean_error + UNIT, n.var_error + UNIT) if s.over in DIMS else (None, None)
    return Bounds(z_error, torch.where(kept(x, s.p, s.seed), out, 0.0), *own)


def gradient_bounds(
    dout: Tensor, x: Tensor, weight: Tensor | None, bias: Tensor | None, mean: Tensor | None, var: Tensor | None,
    s: Settings,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Of dx, dweight and dbias: g = dropout'(dout) act'(z), h = weight g, each with its error."""
    n, z_error = normal(x, mean, var, s), forward_bounds(x, weight, bias, mean, var, s).z
    w, b = (torch.full_like(x[:1], v) if t is None else t.unsqueeze(0) for t, v in ((weight, 1.0), (bias, 0.0)))
    arrives = torch.where(kept(x, s.p, s.seed), dout.abs() * survivor_scale(s.p), 0.0)
    g = arrives * derivative(n.x_hat * w + b, s.act, s.slope).abs()
    g_error = arrives * (steepness(s) * z_error + POINTWISE * UNIT * max(1.2, abs(s.slope)))
    h, h_error, size = g * w.abs(), (g_error + UNIT * g) * w.abs(), n.x_hat.abs()
    dx, error = h, h_error
    if s.over in DIMS:
        dims = DIMS[Over(s.over)]
        deviation = (n.rstd.reciprocal() - s.eps).clamp(min=0)
        stretch = 1.0 if s.over != Over.ALL else torch.where(deviation > 0, 1 / (deviation * n.rstd), 0.0)
        along = (h * size).mean(dims, keepdim=True)
        along_error = (h_error * size + h * n.error).mean(dims, keepdim=True) + SUM * UNIT * along
        dx = h + h.mean(dims, keepdim=True) + size * along * stretch
        error = h_error + h_error.mean(dims, keepdim=True) + SUM * UNIT * h.mean(dims, keepdim=True)
        error = error + (n.error * along + size * along_error + 2 * n.rstd_error * size * along) * stretch
    error = n.rstd * (error + (n.rstd_error + 8 * UNIT) * dx)
    dweight = (g_error * size + g * n.error + SUM * UNIT * g * size).sum(0)
    return error, dweight, (g_error + SUM * UNIT * g).sum(0)
