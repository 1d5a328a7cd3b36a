"""norm, activation and dropout, alone or with the products that follow, keeping few bits for backward.

    out = dropout(act(norm(x)))        y_k = out W_k^T + b_k

Kept: the codes of x_hat (or of out where there is no norm but a product follows) and a bit per element. x itself is
free as soon as its last product is made; with products, out never exists as a whole. Backward writes dx over d out.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .. import memory, ops
from ..codecs.codec import Codes
from ..ops.activation import derivative
from ..ops.chain_backward import gradient
from ..ops.chain_keep import kept_of
from ..ops.dropout import pack_bits
from ..ops.kept_chain import LEAKY, RELU, Kept, factor_of, is_smooth, marks_alone, slope_range
from ..ops.linear import remember_sums
from ..ops.norm_act import Over, affine, normalised, rstd_of
from .linear import sum_of_products
from .noise import draw_seed, refuse_nan, refuse_twice, seed_beside
from .plan import Plan
from .stash import Dropped, Stash, layout_of, mark, mark_of, packed

LARGE = 2**23
"""Elements of a chain beside whose gradients what the loss left in malloc's hands would raise the peak of a step."""


class Settings(NamedTuple):
    """The arguments of ops.norm_act after its tensors."""

    over: int
    eps: float
    act: int
    slope: float
    p: float
    seed: int


def _noise(how: Settings, x: Tensor) -> int:
    return seed_beside(how.seed) if how.p > 0 else draw_seed(x)


class _Chain(torch.autograd.Function):
    """By the kernels of ops.chain_keep and ops.chain_backward."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor | None, bias: Tensor | None, mean: Tensor | None, var: Tensor | None,
        how: Settings, layout: Any, slope_bits: int, hold: list[Stash], *params: Tensor | None,
    ) -> tuple[Tensor, ...]:  # fmt: skip
        bits, block, bf16_meta, levels = layout
        weights, biases = list(params[::2]), list(params[1::2])
        noise = _noise(how, x) if bits or is_smooth(how.act) else None
        codec = (bits, block, bf16_meta, levels, noise, slope_bits)
        outs, own_mean, own_var, *found = ops.chain_keep(x, weight, bias, mean, var, *how, *codec, weights, biases)
        refuse_nan(found[1])
        tail = (how.act, how.slope, how.p, how.seed, slope_bits)
        k = kept_of(tuple(found), x.shape, (bits, block, levels), *tail)
        stash = Stash(k, weight, bias, how.over == Over.NOTHING)
        hold.append(stash)
        ctx.how, ctx.settings, ctx.count = how, k.settings, len(weights)
        ctx.save_for_backward(*weights, weight, bias, own_var if var is None else var, *k.tensors)
        ctx.mark_non_differentiable(own_mean, own_var)
        return (*outs, own_mean, own_var)

    @staticmethod
    def backward(ctx: Any, *douts: Tensor) -> tuple[Tensor | None, ...]:
        saved = ctx.saved_tensors  # once: checkpointing unpacks a tensor only once
        weights, (weight, bias, var, *kept) = saved[: ctx.count], saved[ctx.count :]
        needs, how, k = ctx.needs_input_grad, ctx.how, Kept(*kept, *ctx.settings)
        grads: list[Tensor | None] = []
        if k.rows * k.columns >= LARGE:
            memory.trim_heap()
        with torch.no_grad():
            if ctx.count:
                given = [dout.contiguous() for dout in douts[: ctx.count]]
                source = packed(Stash(k, weight, bias, how.over == Over.NOTHING))
                dweights = source.products(source.tensors, given)
                for n, dout in enumerate(given):
                    db = ops.column_sums(dout) if needs[10 + 2 * n] else None
                    grads += [dweights[n] if needs[9 + 2 * n] else None, db]
                dx = dout = sum_of_products(given, weights)
            else:
                dout = douts[0].contiguous()
                dx = memory.empty(dout.shape, dout.dtype)
            dweight, dbias, sums = ops.chain_backward(dx, dout, *k, weight, var, how.over, how.eps)
            if sums.numel():
                remember_sums(dx, sums)
        own = (dweight if needs[1] else None, dbias if needs[2] else None)
        return refuse_twice(dx if needs[0] else None, *own, *[None] * 6, *grads)


class _PlainChain(torch.autograd.Function):
    """By the formulas, for any codec, dtype and device; `raw` keeps x itself, as published, and not x_hat."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor | None, bias: Tensor | None, mean: Tensor | None, var: Tensor | None,
        how: Settings, codec: Any, raw: bool, slope_bits: int,
    ) -> tuple[Tensor, ...]:  # fmt: skip
        out, own_mean, own_var = ops.norm_act(x, weight, bias, mean, var, *how)
        used = (own_mean, own_var) if mean is None or var is None else (mean, var)
        ctx.how, ctx.codec, ctx.raw, ctx.meta = how, codec, raw, (x.shape, x.dtype)
        hat = x
        codes: tuple[Tensor, ...] = ()
        if how.over != Over.NOTHING:
            hat = normalised(x, used[0], rstd_of(used[1], how.over, how.eps), how.over)
            codes = codec.encode(x if raw else hat, _noise(how, x)).tensors
        ctx.slope_bits = slope_bits
        ctx.save_for_backward(weight, *used, _marks(affine(hat, weight, bias), how, slope_bits), *codes)
        ctx.mark_non_differentiable(own_mean, own_var)
        return out, own_mean, own_var

    @staticmethod
    def backward(ctx: Any, dout: Tensor, *unused: Tensor) -> tuple[Tensor | None, ...]:
        weight, mean, var, marks, *tensors = ctx.saved_tensors
        needs, how = ctx.needs_input_grad, ctx.how
        with torch.no_grad():
            f = _factor(marks, how, ctx.slope_bits, dout)
            hat = None
            if how.over != Over.NOTHING:
                hat = ctx.codec.decode(Codes(tuple(tensors), *ctx.meta))
                hat = normalised(hat, mean, rstd_of(var, how.over, how.eps), how.over) if ctx.raw else hat
            dx, dweight, dbias = gradient(dout, hat, f, weight, var, how.over, how.eps)
        own = (dweight if needs[1] else None, dbias if needs[2] else None)
        return refuse_twice(dx if needs[0] else None, *own, *[None] * 6)


def _marks(z: Tensor, how: Settings, slope_bits: int) -> Tensor | None:
    """A bit per element, or the derivative: what the gradient is multiplied by, dropout apart."""
    if how.act in (RELU, LEAKY):
        return pack_bits((z > 0) | (z.isnan() if how.act == RELU else False))
    if not is_smooth(how.act):
        return None
    slopes = derivative(z, how.act, how.slope)
    if z.dtype != torch.float32:  # only float32 has a codec
        return slopes
    return ops.pack_fixed(slopes, slope_bits, *slope_range(how.act, how.slope), _noise(how, z))


def _factor(marks: Tensor | None, how: Settings, slope_bits: int, like: Tensor) -> Tensor:
    whole = marks if marks is not None and marks.is_floating_point() else None
    slope = 0.0 if how.act == RELU else how.slope
    kept = marks_alone(like.shape, None if whole is not None else marks, how.act, slope, p=how.p, seed=how.seed)
    f = factor_of(kept._replace(slope_bits=slope_bits), like)
    return f if whole is None else f * whole


def fits(x: Tensor, plan: Plan) -> bool:
    """Whether the kernels know the plan's codec."""
    return x.dtype == torch.float32 and x.dim() == 2 and layout_of(plan.values, x.size(1), x.device) is not None


def chain(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, mean: Tensor | None, var: Tensor | None, how: Settings,
    plan: Plan,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """As ops.norm_act; the result is marked with what was kept of it."""
    if not fits(x, plan) or not plan.shared:
        return _PlainChain.apply(x, weight, bias, mean, var, how, plan.values, not plan.shared, plan.slopes)
    layout = layout_of(plan.values, x.size(1), x.device)
    if how.over == Over.NOTHING:  # a product that follows packs the result by itself
        layout = (0, 1, True, None)
    hold: list[Stash] = []
    out, mean, var = _Chain.apply(x, weight, bias, mean, var, how, layout, plan.slopes, hold)
    if not is_smooth(how.act):
        follow_mark(x, out, hold[0], how)
    return out, mean, var


def follow_mark(x: Tensor, out: Tensor, own: Stash, how: Settings) -> None:
    """Mark the result of a chain, or of an activation or dropout after one, with what is kept of it altogether."""
    if how.over != Over.NOTHING:
        mark(out, own)
        return
    known = mark_of(x)
    if (
        not isinstance(known, Stash)
        or known.kept.p > 0
        or (own.kept.marks is not None and known.kept.marks is not None)
    ):
        return
    later = own.kept
    both = known.kept._replace(p=later.p, seed=later.seed)
    if later.marks is not None:
        both = both._replace(marks=later.marks, act=later.act, slope=later.slope, merged=later.merged)
    mark(out, known._replace(kept=both))


def relu_dropout(x: Tensor, p: float, seed: int) -> Tensor:
    """dropout(relu(x)), keeping one bit per element."""
    out, bits = ops.OPS["relu_dropout"](x.contiguous(), p, seed)
    own = marks_alone(x.shape, bits, RELU, merged=p)
    follow_mark(x, out, Stash(own, None, None, False), Settings(Over.NOTHING, 0.0, RELU, 0.0, p, seed))
    return out


def dropout(x: Tensor, p: float, seed: int) -> Tensor:
    """Dropout that keeps nothing: the mask is made again. Of data, a product that follows keeps nothing either."""
    out = ops.dropout(x, p, seed)
    if not x.requires_grad and mark_of(x) is None:
        return mark(out, Dropped(x.detach(), p, seed))
    if x.dim() == 2:
        own = marks_alone(x.shape, None, p=p, seed=seed)
        follow_mark(x, out, Stash(own, None, None, False), Settings(Over.NOTHING, 0.0, 0, 0.0, p, seed))
    return out


def chain_products(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, mean: Tensor | None, var: Tensor | None, how: Settings,
    plan: Plan, weights: Sequence[Tensor], biases: Sequence[Tensor | None],
) -> tuple[Tensor, ...]:  # fmt: skip
    """The products of the chain's result, which is never made as a whole; then mean and variance."""
    layout = layout_of(plan.rows if how.over == Over.NOTHING else plan.values, x.size(1), x.device)
    params = [tensor for pair in zip(weights, biases, strict=True) for tensor in pair]
    return _Chain.apply(x, weight, bias, mean, var, how, layout, plan.slopes, [], *params)
