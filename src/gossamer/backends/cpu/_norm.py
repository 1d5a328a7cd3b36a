"""A norm as kernels take it: statistics, a scale and shift per column, and the statistics' part of the gradient."""

from __future__ import annotations

import torch
from torch import Tensor

from ...native import library, num_threads
from ...ops.norm_act import Over, rstd_of
from ._arguments import F32, MASK64, at, row_sums_scratch


def moments(x: Tensor, over: int) -> tuple[Tensor, Tensor]:
    """Mean and biased variance over columns, or over everything from those."""
    mean, var = x.new_empty(x.size(1)), x.new_empty(x.size(1))
    scratch = row_sums_scratch(*x.shape)
    library.column_moments(at(x), at(scratch), at(mean), at(var), *x.shape, num_threads())
    if over == Over.COLUMNS:
        return mean, var
    centre = mean.double().mean()
    return centre.float().reshape(1), (var.double() + (mean.double() - centre) ** 2).mean().float().reshape(1)


def column_affine(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, mean: Tensor, var: Tensor, over: int, eps: float
) -> tuple[Tensor | None, ...]:
    """scale, shift, mean and rstd of each column, so that z = x * scale + shift."""
    if over == Over.NOTHING:
        return None, None, None, None
    mean, rstd = mean.expand(x.size(1)).contiguous(), rstd_of(var, over, eps).expand(x.size(1)).contiguous()
    scale = rstd if weight is None else rstd * weight
    shift = -mean * scale if bias is None else bias - mean * scale
    return scale, shift, mean, rstd


def column_gradient(
    dout: Tensor, x: Tensor, weight: Tensor | None, bias: Tensor | None, mean: Tensor, var: Tensor,
    over: int, eps: float, act: int, slope: float, p: float, seed: int,
) -> tuple[tuple[Tensor | None, ...], Tensor | None, Tensor | None, Tensor, Tensor]:  # fmt: skip
    """The first pass of backward: the coefficients of dx per column, and the gradients of weight and bias."""
    dweight, dbias = x.new_zeros(x.size(1)), x.new_zeros(x.size(1))
    columns = column_affine(x, weight, bias, mean, var, over, eps)
    scale, _, _, rstd = columns
    if over != Over.NOTHING:
        scratch = row_sums_scratch(*x.shape)
        where, tail = [at(t) for t in columns], (act, slope, p, seed & MASK64)
        sums = (at(scratch), at(dbias), at(dweight))
        library.affine_sums(at(dout), at(x), *where, *tail, *sums, *x.shape, num_threads())
    return columns, *correction(x.size(0), weight, var, scale, rstd, over, eps, dweight, dbias), dweight, dbias


def correction(
    rows: int, weight: Tensor | None, var: Tensor, scale: Tensor | None, rstd: Tensor | None, over: int, eps: float,
    dweight: Tensor, dbias: Tensor,
) -> tuple[Tensor | None, Tensor | None]:  # fmt: skip
    """What the statistics' own dependence on x adds to dx: by_x (x - mean) + constant, per column."""
    if over not in (Over.COLUMNS, Over.ALL) or scale is None or rstd is None:
        return None, None
    if over == Over.COLUMNS:
        return -scale * rstd * dweight / rows, -scale * dbias / rows
    numel = rows * dbias.numel()
    sum_h = (dbias if weight is None else dbias * weight).double().sum() / numel
    sum_hx = (dweight if weight is None else dweight * weight).double().sum() / numel
    deviation = var.sqrt().clamp(min=torch.finfo(F32).tiny)
    stretch = (deviation + eps) / deviation
    return (-rstd * rstd * sum_hx * stretch).float(), (-rstd * sum_h).float()
