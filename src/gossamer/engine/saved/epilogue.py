"""Epilogues (norm, activation, dropout), alone or with the products that follow, saving few bits for backward.

    out = dropout(act(norm(x)))        y_k = out W_k^T + b_k

Saved: the codes of x_hat (or of out where there is no norm but a product follows) and a bit per element. x itself is
free as soon as its last product is made; with products, out never exists as a whole. Backward writes dx over d out.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ... import memory, ops
from ...codecs import Codec
from ...codecs.codec import Codes
from ...ops.activation import derivative
from ...ops.chain_backward import gradient
from ...ops.chain_keep import kept_of
from ...ops.dropout import pack_bits
from ...ops.kept_chain import LEAKY, RELU, Kept, factor_of, is_smooth, marks_alone, slope_range
from ...ops.linear import remember_sums
from ...ops.norm_act import Over, Settings, affine, normalised, rstd_of
from ..gradient import whole
from ..noise import draw_seed, refuse_nan, refuse_twice, seed_beside
from .policy import Saving, layout_of
from .products import sum_of_products
from .source import Dropped, Epilogue, note_saved, packed, saved_of

LARGE = 2**23
"""Elements from which an epilogue's gradients, beside what the loss left in malloc's hands, would raise the peak."""
Norm = tuple[Tensor | None, Tensor | None, Tensor | None, Tensor | None]
"""Weight, bias, mean and variance of a norm; the latter two where they are fixed."""


def _noise(how: Settings, x: Tensor) -> int:
    return seed_beside(how.seed) if how.p > 0 else draw_seed(x)


class _Made(NamedTuple):
    """An epilogue that has run: results (or products), own statistics, what is saved, and the variance in use."""

    outs: list[Tensor]
    mean: Tensor
    var: Tensor
    saved: Epilogue
    used_var: Tensor


@torch.no_grad()
def _make(
    x: Tensor, norm: Norm, settings: Settings, layout: Any, slope_bits: int, weights: Sequence[Tensor] = (),
    biases: Sequence[Tensor | None] = (),
) -> _Made:  # fmt: skip
    bits, block, bf16_meta, levels = layout
    noise = _noise(settings, x) if bits or is_smooth(settings.act) else None
    codec = (bits, block, bf16_meta, levels, noise, slope_bits)
    outs, mean, var, *found = ops.chain_keep(x, *norm, *settings, *codec, list(weights), list(biases))
    refuse_nan(found[1])
    tail = (settings.act, settings.slope, settings.p, settings.seed, slope_bits)
    kept = kept_of(tuple(found), x.shape, (bits, block, levels), *tail)
    weight, bias, _, fixed_var = norm
    saved = Epilogue(kept, weight, bias, settings.over == Over.NOTHING)
    return _Made(outs, mean, var, saved, var if fixed_var is None else fixed_var)


class _Epilogue(torch.autograd.Function):
    """Backward by the kernel of ops.chain_backward."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor | None, bias: Tensor | None, settings: Settings, made: _Made,
        *params: Tensor | None,
    ) -> tuple[Tensor, ...]:  # fmt: skip
        weights, kept = params[::2], made.saved.kept
        ctx.settings, ctx.kept, ctx.count = settings, kept.settings, len(weights)
        ctx.save_for_backward(*weights, weight, bias, made.used_var, *kept.tensors)
        ctx.mark_non_differentiable(made.mean, made.var)
        return (*made.outs, made.mean, made.var)

    @staticmethod
    def backward(ctx: Any, *douts: Tensor) -> tuple[Tensor | None, ...]:
        saved = ctx.saved_tensors  # once: checkpointing unpacks a tensor only once
        weights, (weight, bias, var, *kept) = saved[: ctx.count], saved[ctx.count :]
        settings, k = ctx.settings, Kept(*kept, *ctx.kept)
        needs_x, needs_weight, needs_bias, _, _, *needs = ctx.needs_input_grad
        params: list[Tensor | None] = []
        if k.rows * k.columns >= LARGE:
            memory.trim_heap()
        with torch.no_grad():
            if ctx.count:
                given = [whole(dout) for dout in douts[: ctx.count]]
                source = packed(Epilogue(k, weight, bias, settings.over == Over.NOTHING))
                dweights = source.products(source.tensors, given)
                for dout, dw, needs_w, needs_b in zip(given, dweights, needs[::2], needs[1::2], strict=True):
                    params += [dw if needs_w else None, ops.column_sums(dout) if needs_b else None]
                dx = dout = sum_of_products(given, weights)
            else:
                dout = whole(douts[0])
                dx = memory.empty(dout.shape, dout.dtype)
            dweight, dbias, sums = ops.chain_backward(dx, dout, *k, weight, var, settings.over, settings.eps)
            if sums.numel():
                remember_sums(dx, sums)
        own = (dweight if needs_weight else None, dbias if needs_bias else None)
        return refuse_twice(dx if needs_x else None, *own, None, None, *params)


class _PlainEpilogue(torch.autograd.Function):
    """By the formulas, for any codec and dtype; `raw` saves x itself, as published, and not x_hat."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor | None, bias: Tensor | None, mean: Tensor | None, var: Tensor | None,
        settings: Settings, codec: Codec, raw: bool, slope_bits: int,
    ) -> tuple[Tensor, ...]:  # fmt: skip
        out, own_mean, own_var = ops.norm_act(x, weight, bias, mean, var, *settings)
        used = (own_mean, own_var) if mean is None or var is None else (mean, var)
        ctx.settings, ctx.codec, ctx.raw, ctx.meta = settings, codec, raw, (x.shape, x.dtype)
        hat = x
        codes: tuple[Tensor, ...] = ()
        if settings.over != Over.NOTHING:
            hat = normalised(x, used[0], rstd_of(used[1], settings.over, settings.eps), settings.over)
            codes = codec.encode(x if raw else hat, _noise(settings, x)).tensors
        ctx.slope_bits = slope_bits
        ctx.save_for_backward(weight, *used, _marks(affine(hat, weight, bias), settings, slope_bits), *codes)
        ctx.mark_non_differentiable(own_mean, own_var)
        return out, own_mean, own_var

    @staticmethod
    def backward(ctx: Any, dout: Tensor, *unused: Tensor) -> tuple[Tensor | None, ...]:
        weight, mean, var, marks, *tensors = ctx.saved_tensors
        settings, dout = ctx.settings, whole(dout)
        needs_x, needs_weight, needs_bias, *_ = ctx.needs_input_grad
        with torch.no_grad():
            f = _factor(marks, settings, ctx.slope_bits, dout)
            hat = None
            if settings.over != Over.NOTHING:
                hat = ctx.codec.decode(Codes(tuple(tensors), *ctx.meta))
                rstd = rstd_of(var, settings.over, settings.eps)
                hat = normalised(hat, mean, rstd, settings.over) if ctx.raw else hat
            dx, dweight, dbias = gradient(dout, hat, f, weight, var, settings.over, settings.eps)
        own = (dweight if needs_weight else None, dbias if needs_bias else None)
        return refuse_twice(dx if needs_x else None, *own, *[None] * 6)


def _marks(z: Tensor, settings: Settings, slope_bits: int) -> Tensor | None:
    """A bit per element, or the derivative: what the gradient is multiplied by, dropout apart."""
    if settings.act in (RELU, LEAKY):
        return pack_bits((z > 0) | (z.isnan() if settings.act == RELU else False))
    if not is_smooth(settings.act):
        return None
    slopes = derivative(z, settings.act, settings.slope)
    if z.dtype != torch.float32:  # only float32 has a codec
        return slopes
    return ops.pack_fixed(slopes, slope_bits, *slope_range(settings.act, settings.slope), _noise(settings, z))


def _factor(marks: Tensor | None, settings: Settings, slope_bits: int, like: Tensor) -> Tensor:
    exact = marks if marks is not None and marks.is_floating_point() else None
    slope, bits = 0.0 if settings.act == RELU else settings.slope, None if exact is not None else marks
    kept = marks_alone(like.shape, bits, settings.act, slope, p=settings.p, seed=settings.seed)
    f = factor_of(kept._replace(slope_bits=slope_bits), like)
    return f if exact is None else f * exact


def fits(x: Tensor, over: int, saving: Saving) -> bool:
    """Whether the kernels know the codecs that such an epilogue and the products behind it are saved by."""
    codecs = (saving.values, saving.rows) if over == Over.NOTHING else (saving.values,)
    known = all(layout_of(codec, x.size(1), x.device) is not None for codec in codecs)
    return x.dtype == torch.float32 and x.dim() == 2 and known


def plain_epilogue(
    x: Tensor, norm: Norm, settings: Settings, saving: Saving, raw: bool = False
) -> tuple[Tensor, Tensor, Tensor]:
    """As ops.norm_act, for any codec."""
    return _PlainEpilogue.apply(x, *norm, settings, saving.values, raw, saving.slopes)


def epilogue(x: Tensor, norm: Norm, settings: Settings, saving: Saving) -> tuple[Tensor, Tensor, Tensor]:
    """As ops.norm_act; what was saved is a fact about the result."""
    layout = layout_of(saving.values, x.size(1), x.device)
    if layout is None or x.dtype != torch.float32:
        return plain_epilogue(x, norm, settings, saving)
    if settings.over == Over.NOTHING:  # a product that follows packs the result by itself
        layout = (0, 1, True, None)
    made = _make(x, norm, settings, layout, saving.slopes)
    out, mean, var = _Epilogue.apply(x, *norm[:2], settings, made)
    if not is_smooth(settings.act):
        _note_both(x, out, made.saved, settings.over)
    return out, mean, var


def _note_both(x: Tensor, out: Tensor, own: Epilogue, over: int) -> None:
    """Note what is saved of the result of an epilogue, or of an activation or dropout after one, altogether."""
    if over != Over.NOTHING:
        note_saved(out, own)
        return
    known, later = saved_of(x), own.kept
    if not isinstance(known, Epilogue) or known.kept.p > 0:
        return
    if later.marks is not None and known.kept.marks is not None:
        return
    both = known.kept._replace(p=later.p, seed=later.seed)
    if later.marks is not None:
        both = both._replace(marks=later.marks, act=later.act, slope=later.slope, merged=later.merged)
    note_saved(out, known._replace(kept=both))


def relu_dropout(x: Tensor, p: float, seed: int) -> Tensor:
    """dropout(relu(x)), saving one bit per element."""
    out, bits = ops.OPS["relu_dropout"](x.contiguous(), p, seed)
    own = marks_alone(x.shape, bits, RELU, merged=p)
    _note_both(x, out, Epilogue(own, None, None, False), Over.NOTHING)
    return out


def dropout(x: Tensor, p: float, seed: int) -> Tensor:
    """Dropout that saves nothing: the mask is recomputed. Of input without gradient a product saves nothing either."""
    out = ops.dropout(x, p, seed)
    if not x.requires_grad and saved_of(x) is None:
        return note_saved(out, Dropped(x.detach(), p, seed))
    if x.dim() == 2:
        own = marks_alone(x.shape, None, p=p, seed=seed)
        _note_both(x, out, Epilogue(own, None, None, False), Over.NOTHING)
    return out


def epilogue_products(
    x: Tensor, norm: Norm, settings: Settings, saving: Saving, weights: Sequence[Tensor],
    biases: Sequence[Tensor | None],
) -> tuple[Tensor, ...]:  # fmt: skip
    """The products of the epilogue's result, which is never made as a whole; then mean and variance."""
    codec = saving.rows if settings.over == Over.NOTHING else saving.values
    made = _make(x, norm, settings, layout_of(codec, x.size(1), x.device), saving.slopes, weights, biases)
    params = [tensor for pair in zip(weights, biases, strict=True) for tensor in pair]
    return _Epilogue.apply(x, *norm[:2], settings, made, *params)
