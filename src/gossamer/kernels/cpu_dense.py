"""Native kernels of the ops on rows: dropout, normalisation with activation, and products in pooled buffers."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from .. import memory
from ..ops._library import OPS, Op
from ..ops.norm_act import Over, rstd_of
from . import native, num_threads
from ._arguments import F32, MASK64, at, contiguous, row_sums_scratch


def _random_bits(seed: int, offset: int, numel: int, like: Tensor) -> Tensor:
    out = memory.empty([numel], torch.int32)
    native.random_bits(seed & MASK64, offset, at(out), numel, num_threads())
    return out


def _dropout(x: Tensor, p: float, seed: int) -> Tensor:
    if x.dtype != F32:
        return OPS["dropout"].reference(x, p, seed)
    x, out = x.contiguous(), memory.empty(x.shape, F32)
    native.dropout(at(x), at(out), 0, x.numel(), p, seed & MASK64, num_threads())
    return out


def _dropout_with_mask(op: Op, kernel: Callable[..., None], x: Tensor, p: float, seed: int) -> tuple[Tensor, Tensor]:
    if x.dtype != F32:
        return op.reference(x, p, seed)
    x, out = x.contiguous(), memory.empty(x.shape, F32)
    mask = memory.empty([(x.numel() + 7) // 8], torch.uint8)
    kernel(at(x), at(out), at(mask), x.numel(), p, seed & MASK64, num_threads())
    return out, mask


def _masked_scale(x: Tensor, mask: Tensor, p: float) -> Tensor:
    if x.dtype != F32:
        return OPS["masked_scale"].reference(x, mask, p)
    x, mask, out = x.contiguous(), mask.contiguous(), memory.empty(x.shape, F32)
    native.masked_scale(at(x), at(mask), at(out), x.numel(), p, num_threads())
    return out


def _column_sums(x: Tensor) -> Tensor:
    if x.dtype != F32:
        return OPS["column_sums"].reference(x)
    x, sums, scratch = x.contiguous(), x.new_empty(x.size(1)), row_sums_scratch(*x.shape)
    native.column_sums(at(x), at(scratch), at(sums), *x.shape, num_threads())
    return sums


def _linear(x: Tensor, weight: Tensor, bias: Tensor | None, rows: Tensor | None) -> Tensor:
    if x.dtype != F32:
        return OPS["linear"].reference(x, weight, bias, rows)
    out = memory.empty([x.size(0), weight.size(0)], F32)
    if rows is None:
        return torch.mm(x, weight.t(), out=out) if bias is None else torch.addmm(bias, x, weight.t(), out=out)
    if bias is None:
        out.copy_(rows)
    else:
        torch.add(rows, bias, out=out)
    return out.addmm_(x, weight.t())


class WeightGrads:
    """Room for the weight gradients of products of the same rows, as native kernels take it."""

    def __init__(self, gs: list[Tensor], rows: int, columns: int) -> None:
        self._gs = [g.contiguous() for g in gs]
        self.outs = [g.size(1) for g in gs]
        slabs = native.grad_slabs(rows, max([1, *self.outs]), columns)
        self._partial = [memory.empty([slabs, outs, columns], F32) for outs in self.outs]
        self.dws = [memory.empty([outs, columns], F32) for outs in self.outs]

    @property
    def arguments(self) -> tuple[list[int], ...]:
        some = [k for k, outs in enumerate(self.outs) if outs]  # kernels get no empty tensors
        addresses = ([at(tensors[k]) for k in some] for tensors in (self._gs, self._partial, self.dws))
        return *addresses, [self.outs[k] for k in some]


def _weight_grad(g: Tensor, x: Tensor) -> Tensor:
    if x.dtype != F32 or min(*x.shape, g.size(1)) == 0:
        return OPS["weight_grad"].reference(g, x)
    x, wanted = x.contiguous(), WeightGrads([g], x.size(0), x.size(1))
    if not native.weight_grad(at(x), *wanted.arguments, *x.shape, num_threads()):
        raise MemoryError("no memory left for the scratch of a weight gradient")
    return wanted.dws[0]


def moments(x: Tensor, over: int) -> tuple[Tensor, Tensor]:
    """Mean and biased variance over columns, or over everything from those."""
    mean, var = x.new_empty(x.size(1)), x.new_empty(x.size(1))
    scratch = row_sums_scratch(*x.shape)
    native.column_moments(at(x), at(scratch), at(mean), at(var), *x.shape, num_threads())
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


def _norm_act(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, mean: Tensor | None, var: Tensor | None,
    over: int, eps: float, act: int, slope: float, p: float, seed: int,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    if x.dtype != F32:
        return OPS["norm_act"].reference(x, weight, bias, mean, var, over, eps, act, slope, p, seed)
    x, out = x.contiguous(), memory.empty(x.shape, F32)
    tail = (act, slope, p, seed & MASK64)
    if over == Over.ROWS:
        own_mean, own_var = x.new_empty(x.size(0)), x.new_empty(x.size(0))
        weight, bias = contiguous(weight, bias)
        affine = (at(weight), at(bias), eps)
        own = (at(own_mean), at(own_var))
        native.layer_norm(at(x), *affine, *tail, at(out), *own, *x.shape, num_threads())
        return out, own_mean, own_var
    own_mean, own_var = moments(x, over) if over in (Over.COLUMNS, Over.ALL) else (x.new_empty(0), x.new_empty(0))
    used = (own_mean, own_var) if mean is None or var is None else (mean, var)
    scale, shift, _, _ = column_affine(x, weight, bias, *used, over, eps)
    native.affine_forward(at(x), at(scale), at(shift), *tail, at(out), *x.shape, num_threads())
    return out, own_mean, own_var


def _norm_act_backward(
    dout: Tensor, x: Tensor, weight: Tensor | None, bias: Tensor | None, mean: Tensor, var: Tensor,
    over: int, eps: float, act: int, slope: float, p: float, seed: int,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    if x.dtype != F32:
        return OPS["norm_act_backward"].reference(dout, x, weight, bias, mean, var, over, eps, act, slope, p, seed)
    dout, x, dx = dout.contiguous(), x.contiguous(), memory.empty(x.shape, F32)
    dweight, dbias = x.new_zeros(x.size(1)), x.new_zeros(x.size(1))
    tail = (act, slope, p, seed & MASK64)
    ends = (*x.shape, num_threads())
    if over == Over.ROWS:
        (weight, bias), mean, var = contiguous(weight, bias), mean.contiguous(), var.contiguous()
        given = (at(dout), at(x), at(weight), at(bias), eps, *tail, at(mean), at(var))
        scratch = row_sums_scratch(*x.shape)
        native.layer_norm_backward(*given, at(scratch), at(dx), at(dweight), at(dbias), *ends)
        return dx, dweight, dbias
    columns, by_x, constant, dweight, dbias = column_gradient(
        dout, x, weight, bias, mean, var, over, eps, act, slope, p, seed
    )
    extra = (at(by_x), at(constant))
    native.affine_backward(at(dout), at(x), *(at(t) for t in columns[:3]), *extra, *tail, at(dx), *ends)
    return dx, dweight, dbias


def column_gradient(
    dout: Tensor, x: Tensor, weight: Tensor | None, bias: Tensor | None, mean: Tensor, var: Tensor,
    over: int, eps: float, act: int, slope: float, p: float, seed: int,
) -> tuple[tuple[Tensor | None, ...], Tensor | None, Tensor | None, Tensor, Tensor]:  # fmt: skip
    """The first pass of backward: what dx is made with, column by column, and the gradients of weight and bias."""
    dweight, dbias = x.new_zeros(x.size(1)), x.new_zeros(x.size(1))
    columns = column_affine(x, weight, bias, mean, var, over, eps)
    scale, _, _, rstd = columns
    if over != Over.NOTHING:
        scratch = row_sums_scratch(*x.shape)
        where, tail = [at(t) for t in columns], (act, slope, p, seed & MASK64)
        sums = (at(scratch), at(dbias), at(dweight))
        native.affine_sums(at(dout), at(x), *where, *tail, *sums, *x.shape, num_threads())
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


KERNELS: dict[str, Callable[..., Any]] = {
    "random_bits": _random_bits,
    "dropout": _dropout,
    "dropout_mask": partial(_dropout_with_mask, OPS["dropout_mask"], native.dropout),
    "relu_dropout": partial(_dropout_with_mask, OPS["relu_dropout"], native.relu_dropout),
    "masked_scale": _masked_scale,
    "column_sums": _column_sums,
    "linear": _linear,
    "weight_grad": _weight_grad,
    "norm_act": _norm_act,
    "norm_act_backward": _norm_act_backward,
}
