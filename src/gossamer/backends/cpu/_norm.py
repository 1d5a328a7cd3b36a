"""A norm as kernels take it: statistics, a scale and shift per column, and the statistics' part of the gradient."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ...native import library, num_threads
from ...ops.norm_act import Epilogue, Over, rstd_of
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


class Columns(NamedTuple):
    """A norm by columns: z = x * scale + shift. All None without one."""

    scale: Tensor | None = None
    shift: Tensor | None = None
    mean: Tensor | None = None
    rstd: Tensor | None = None


def own_statistics(x: Tensor, over: int) -> tuple[Tensor, Tensor]:
    """Mean and variance of x; those of rows are to be filled by the kernel that reads the rows."""
    if over in (Over.COLUMNS, Over.ALL):
        return moments(x, over)
    count = x.size(0) if over == Over.ROWS else 0
    return x.new_empty(count), x.new_empty(count)


def column_affine(x: Tensor, e: Epilogue) -> Columns:
    """The norm of an epilogue with the statistics in use; none where they are those of rows."""
    if e.over in (Over.NOTHING, Over.ROWS) or e.mean is None or e.var is None:
        return Columns()
    mean, rstd = e.mean.expand(x.size(1)).contiguous(), rstd_of(e.var, e.over, e.eps).expand(x.size(1)).contiguous()
    scale = rstd if e.weight is None else rstd * e.weight
    shift = -mean * scale if e.bias is None else e.bias - mean * scale
    return Columns(scale, shift, mean, rstd)


class ColumnGradient(NamedTuple):
    """The first pass of backward: what dx is made with, column by column, and the gradients of weight and bias."""

    columns: Columns
    by_x: Tensor | None
    constant: Tensor | None
    dweight: Tensor
    dbias: Tensor


def column_gradient(dout: Tensor, x: Tensor, e: Epilogue) -> ColumnGradient:
    dweight, dbias = x.new_zeros(x.size(1)), x.new_zeros(x.size(1))
    columns = column_affine(x, e)
    if e.over == Over.NOTHING or e.var is None:
        return ColumnGradient(columns, None, None, dweight, dbias)
    scratch = row_sums_scratch(*x.shape)
    where, sums = [at(t) for t in columns], (at(scratch), at(dbias), at(dweight))
    library.affine_sums(at(dout), at(x), *where, *pointwise(e), *sums, *x.shape, num_threads())
    extra = correction(x.size(0), e.weight, e.var, columns.scale, columns.rstd, e.over, e.eps, dweight, dbias)
    return ColumnGradient(columns, *extra, dweight, dbias)


def pointwise(e: Epilogue) -> tuple[int, float, float, int]:
    """Activation and dropout as kernels take them."""
    return e.act, e.slope, e.p, e.seed & MASK64


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
