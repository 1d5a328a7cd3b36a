"""Batch norm whose rows are spread over ranks: statistics of all rows, in forward and in backward.

    mean, var      from each rank's count, mean and sum of squares, combined in float64 in the order of ranks
    out            weight x_hat + bias with these as fixed statistics, by whatever engine runs the epilogue
    d mean = -rstd weight dbias        d var = -1/2 rstd^2 weight dweight          (dweight, dbias: sums over own rows)
    dx    += (sum of d mean + 2 (x - mean) sum of d var) / rows                    sums over the ranks

So no engine knows of it: the gradients of weight and bias, which each makes anyway, carry all that the gradient of the
statistics needs. Where activations are saved in few bits, x is, too: dx is linear in it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ..codecs import Codec
from ..codecs.codec import Codes
from ..ranks import Ranks
from ..state import state_of
from . import rules
from .noise import draw_seed

ROWS_AT_A_TIME = 2**16


def ranks_of(module: Any) -> Ranks | None:
    """The ranks that hold the rows of a lightened norm's input; None if they are all here."""
    state = state_of(module)
    return None if state is None or torch.compiler.is_compiling() else state.model.ranks


@torch.no_grad()
def moments(x: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and sum of squared deviations by column, float64; a part of the rows at a time."""
    total = torch.zeros(x.size(1), dtype=torch.float64)
    for rows in x.split(ROWS_AT_A_TIME):
        total += rows.double().sum(0)
    mean = total / max(1, len(x))
    squares = torch.zeros_like(total)
    for rows in x.split(ROWS_AT_A_TIME):
        squares += (rows.double() - mean).square_().sum(0)
    return mean, squares


def combined(x: Tensor, ranks: Ranks) -> tuple[int, Tensor, Tensor]:
    """The number of rows of all ranks, their mean and their biased variance."""
    own_mean, own_squares = moments(x)
    count = torch.tensor([len(x)], dtype=torch.float64)
    rows = ranks.gather(torch.cat([count, own_mean, own_squares]))
    counts, (means, squares) = rows[:, :1], rows[:, 1:].chunk(2, dim=1)
    total = counts.sum()
    mean = (counts * means).sum(0) / total
    var = (squares + counts * (means - mean).square()).sum(0) / total
    return int(total), mean.to(x.dtype), var.to(x.dtype)


class _Statistics(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, ranks: Ranks, codec: Codec | None, rows: Sequence[int]) -> tuple[Tensor, Tensor]:
        count, mean, var = combined(x, ranks)
        rows.append(count)  # type: ignore[attr-defined]
        ctx.ranks, ctx.rows, ctx.codec = ranks, count, codec
        saved: tuple[Tensor, ...] = (x,)
        if codec is not None and ctx.needs_input_grad[0]:
            codes = codec.encode(x, draw_seed(x))
            saved, ctx.like = codes.tensors, (codes.shape, codes.dtype)
        if ctx.needs_input_grad[0]:
            ctx.save_for_backward(mean, *saved)
        return mean, var

    @staticmethod
    def backward(ctx: Any, dmean: Tensor, dvar: Tensor) -> tuple[Tensor | None, ...]:
        mean, *saved = ctx.saved_tensors
        dmean, dvar = (ctx.ranks.sum(torch.stack([dmean, dvar])) / ctx.rows).to(mean.dtype)
        x = saved[0] if ctx.codec is None else ctx.codec.decode(Codes(tuple(saved), *ctx.like))
        return torch.addcmul(dmean - 2 * dvar * mean, x, 2 * dvar), None, None, None


class _Parameters(torch.autograd.Function):
    """Weight and bias as they are, whose gradients also give those of mean and variance."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, bias: Tensor, mean: Tensor, var: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        ctx.eps = eps
        ctx.save_for_backward(weight, var)
        return weight.view_as(weight), bias.view_as(bias)

    @staticmethod
    def backward(ctx: Any, dweight: Tensor, dbias: Tensor) -> tuple[Tensor | None, ...]:
        weight, var = ctx.saved_tensors
        rstd = (var + ctx.eps).rsqrt()
        return dweight, dbias, -rstd * weight * dbias, -0.5 * rstd.square() * weight * dweight, None


def statistics(module: Any, x: Tensor, ranks: Ranks) -> tuple[Tensor, Tensor, Tensor, Tensor, int]:
    """Weight and bias to use with the mean and variance of all rows, and how many rows there are."""
    rows: list[int] = []
    mean, var = _Statistics.apply(x, ranks, _codec_of(module, x), rows)
    weight = torch.ones_like(mean) if module.weight is None else module.weight
    bias = torch.zeros_like(mean) if module.bias is None else module.bias
    weight, bias = _Parameters.apply(weight, bias, mean, var, module.eps)
    return weight, bias, mean.detach(), var.detach(), rows[0]


def _codec_of(module: Any, x: Tensor) -> Codec | None:
    """What saves x in few bits, where activations are saved so."""
    state = state_of(module)
    engine = None if state is None else state.engine.floats
    saving = getattr(getattr(engine, "shared", engine), "saving", None)
    return saving.values if saving is not None and rules.saves_rows(x) else None
