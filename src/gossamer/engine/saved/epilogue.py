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
from ...ops._structure import take, tensors_of, without_tensors
from ...ops.activation import derivative
from ...ops.dropout import pack_bits, relu_dropout_op
from ...ops.linear import remember_sums
from ...ops.norm_act import Epilogue, Over, affine, normalised_by
from ...ops.save_epilogue import Packing
from ...ops.saved_epilogue import LEAKY, RELU, SavedEpilogue, factor_of, is_smooth, marks_alone, slope_range
from ...ops.saved_epilogue_backward import gradient
from ..gradient import Request, whole
from ..noise import draw_seed, refuse_nan, refuse_twice, seed_beside
from .policy import Saving, packing_of
from .products import sum_of_products
from .source import Dropped, SavedResult, note_saved, packed, saved_of

LARGE = 2**23
"""Elements from which an epilogue's gradients, beside what the loss left in malloc's hands, would raise the peak."""


def noise_beside(epilogue: Epilogue, x: Tensor) -> int:
    """A seed for the rounding noise of what an epilogue saves."""
    return seed_beside(epilogue.seed) if epilogue.p > 0 else draw_seed(x)


class _Made(NamedTuple):
    """An epilogue that has run: results (or products), own statistics, what is saved, and the variance in use."""

    outs: list[Tensor]
    mean: Tensor
    var: Tensor
    saved: SavedEpilogue
    used_var: Tensor


@torch.no_grad()
def _make(
    x: Tensor, epilogue: Epilogue, packing: Packing, weights: Sequence[Tensor] = (),
    biases: Sequence[Tensor | None] = (),
) -> _Made:  # fmt: skip
    if packing.bits or is_smooth(epilogue.act):
        packing = packing._replace(noise=noise_beside(epilogue, x))
    made = ops.save_epilogue(x, epilogue, packing, list(weights), list(biases))
    refuse_nan(made.zero)
    saved = made.packed.saved(x.shape, epilogue, packing)
    return _Made(made.outs, made.mean, made.var, saved, made.var if epilogue.var is None else epilogue.var)


def _result(saved: SavedEpilogue, epilogue: Epilogue) -> SavedResult:
    return SavedResult(saved, epilogue.weight, epilogue.bias, epilogue.over == Over.NOTHING)


def handed_on(dx: Tensor, sums: Tensor, asked: Request | None) -> Tensor:
    """dx as the maker of x asks for it; its sums by column, if they are known, go with it."""
    if asked is not None:
        return asked.quantise(dx, sums if sums.numel() else ops.column_sums(dx))
    if sums.numel():
        remember_sums(dx, sums)
    return dx


class _Epilogue(torch.autograd.Function):
    """Backward by the kernel of ops.saved_epilogue_backward."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor | None, bias: Tensor | None, epilogue: Epilogue, made: _Made,
        asked: Request | None, *params: Tensor | None,
    ) -> tuple[Tensor, ...]:  # fmt: skip
        weights, used, ctx.asked = params[::2], epilogue._replace(mean=None, var=made.used_var), asked
        ctx.epilogue, ctx.saved, ctx.count = without_tensors(used), without_tensors(made.saved), len(weights)
        ctx.save_for_backward(*weights, *tensors_of(used), *tensors_of(made.saved))
        ctx.mark_non_differentiable(made.mean, made.var)
        return (*made.outs, made.mean, made.var)

    @staticmethod
    def backward(ctx: Any, *douts: Tensor) -> tuple[Tensor | None, ...]:
        tensors = ctx.saved_tensors  # once: checkpointing unpacks a tensor only once
        weights, tensors = tensors[: ctx.count], tensors[ctx.count :]
        epilogue, saved, _ = take(tensors, ctx.epilogue, ctx.saved)
        needs_x, needs_weight, needs_bias, _, _, _, *needs = ctx.needs_input_grad
        params: list[Tensor | None] = []
        if saved.rows * saved.columns >= LARGE:
            memory.trim_heap()
        with torch.no_grad():
            if ctx.count:
                given = [whole(dout) for dout in douts[: ctx.count]]
                source = packed(_result(saved, epilogue))
                dweights = source.products(source.tensors, given)
                for dout, dw, needs_w, needs_b in zip(given, dweights, needs[::2], needs[1::2], strict=True):
                    params += [dw if needs_w else None, ops.column_sums(dout) if needs_b else None]
                dx = dout = sum_of_products(given, weights)
            else:
                dout = whole(douts[0])
                dx = memory.empty(dout.shape, dout.dtype)
            norm = (epilogue.weight, epilogue.var, epilogue.over, epilogue.eps)
            dweight, dbias, sums = ops.saved_epilogue_backward(dx, dout, saved, *norm)
            dx = handed_on(dx, sums, ctx.asked)
        own = (dweight if needs_weight else None, dbias if needs_bias else None)
        return refuse_twice(dx if needs_x else None, *own, None, None, None, *params)


class _PlainEpilogue(torch.autograd.Function):
    """By the formulas, for any codec and dtype; `raw` saves x itself, as published, and not x_hat."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor | None, bias: Tensor | None, epilogue: Epilogue, codec: Codec, raw: bool,
        slope_bits: int,
    ) -> tuple[Tensor, ...]:  # fmt: skip
        out, mean, var = ops.norm_act(x, epilogue)
        used, hat = epilogue.using(mean, var), x
        codes: tuple[Tensor, ...] = ()
        if used.over != Over.NOTHING:
            hat = normalised_by(x, used)
            codes = codec.encode(x if raw else hat, noise_beside(used, x)).tensors
        marks = _marks(affine(hat, used.weight, used.bias), used, slope_bits)
        used = used._replace(bias=None)
        ctx.epilogue, ctx.codec, ctx.raw, ctx.meta = without_tensors(used), codec, raw, (x.shape, x.dtype)
        ctx.slope_bits = slope_bits
        ctx.save_for_backward(marks, *tensors_of(used), *codes)
        ctx.mark_non_differentiable(mean, var)
        return out, mean, var

    @staticmethod
    def backward(ctx: Any, dout: Tensor, *unused: Tensor) -> tuple[Tensor | None, ...]:
        marks, *tensors = ctx.saved_tensors
        epilogue, codes = take(tensors, ctx.epilogue)
        dout, (needs_x, needs_weight, needs_bias, *_) = whole(dout), ctx.needs_input_grad
        with torch.no_grad():
            f = _factor(marks, epilogue, ctx.slope_bits, dout)
            hat = None
            if epilogue.over != Over.NOTHING:
                hat = ctx.codec.decode(Codes(tuple(codes), *ctx.meta))
                hat = normalised_by(hat, epilogue) if ctx.raw else hat
            norm = (epilogue.weight, epilogue.var, epilogue.over, epilogue.eps)
            dx, dweight, dbias = gradient(dout, hat, f, *norm)
        own = (dweight if needs_weight else None, dbias if needs_bias else None)
        return refuse_twice(dx if needs_x else None, *own, *[None] * 4)


def _marks(z: Tensor, epilogue: Epilogue, slope_bits: int) -> Tensor | None:
    """A bit per element, or the derivative: what the gradient is multiplied by, dropout apart."""
    act, slope = epilogue.act, epilogue.slope
    if act in (RELU, LEAKY):
        return pack_bits((z > 0) | (z.isnan() if act == RELU else False))
    if not is_smooth(act):
        return None
    slopes = derivative(z, act, slope)
    if z.dtype != torch.float32:  # only float32 has a codec
        return slopes
    return ops.pack_fixed(slopes, slope_bits, *slope_range(act, slope), noise_beside(epilogue, z))


def _factor(marks: Tensor | None, epilogue: Epilogue, slope_bits: int, like: Tensor) -> Tensor:
    exact = marks if marks is not None and marks.is_floating_point() else None
    slope, bits = 0.0 if epilogue.act == RELU else epilogue.slope, None if exact is not None else marks
    saved = marks_alone(like.shape, bits, epilogue.act, slope, p=epilogue.p, seed=epilogue.seed)
    f = factor_of(saved._replace(slope_bits=slope_bits), like)
    return f if exact is None else f * exact


def fits(x: Tensor, over: int, saving: Saving) -> bool:
    """Whether the kernels know the codecs that such an epilogue and the products behind it are saved by."""
    codecs = (saving.values, saving.rows) if over == Over.NOTHING else (saving.values,)
    known = all(packing_of(codec, x.size(1), x.device) is not None for codec in codecs)
    return x.dtype == torch.float32 and x.dim() == 2 and known


def plain_epilogue(x: Tensor, epilogue: Epilogue, saving: Saving, raw: bool = False) -> tuple[Tensor, Tensor, Tensor]:
    """As ops.norm_act, for any codec."""
    return _PlainEpilogue.apply(x, epilogue.weight, epilogue.bias, epilogue, saving.values, raw, saving.slopes)


def run_epilogue(x: Tensor, epilogue: Epilogue, saving: Saving) -> tuple[Tensor, Tensor, Tensor]:
    """As ops.norm_act; what was saved is a fact about the result."""
    packing = packing_of(saving.values, x.size(1), x.device)
    if packing is None or x.dtype != torch.float32:
        return plain_epilogue(x, epilogue, saving)
    if epilogue.over == Over.NOTHING:  # a product that follows packs the result by itself
        packing = Packing()
    made = _make(x, epilogue, packing._replace(slope_bits=saving.slopes))
    out, mean, var = _Epilogue.apply(x, epilogue.weight, epilogue.bias, epilogue, made, None)
    if not is_smooth(epilogue.act):
        _note_both(x, out, _result(made.saved, epilogue), epilogue.over)
    return out, mean, var


def _note_both(x: Tensor, out: Tensor, own: SavedResult, over: int = Over.NOTHING) -> None:
    """Note what is saved of the result of an epilogue, or of an activation or dropout after one, altogether."""
    if over != Over.NOTHING:
        note_saved(out, own)
        return
    known, later = saved_of(x), own.saved
    if not isinstance(known, SavedResult) or known.saved.p > 0:
        return
    if later.marks is not None and known.saved.marks is not None:
        return
    both = known.saved._replace(p=later.p, seed=later.seed)
    if later.marks is not None:
        both = both._replace(marks=later.marks, act=later.act, slope=later.slope, merged=later.merged)
    note_saved(out, known._replace(saved=both))


def relu_dropout(x: Tensor, p: float, seed: int) -> Tensor:
    """dropout(relu(x)), saving one bit per element."""
    out, bits = relu_dropout_op(x.contiguous(), p, seed)
    _note_both(x, out, SavedResult(marks_alone(x.shape, bits, RELU, merged=p)))
    return out


def dropout(x: Tensor, p: float, seed: int) -> Tensor:
    """Dropout that saves nothing: the mask is recomputed. Of input without gradient a product saves nothing either."""
    out = ops.dropout(x, p, seed)
    if not x.requires_grad and saved_of(x) is None:
        return note_saved(out, Dropped(x.detach(), p, seed))
    if x.dim() == 2:
        _note_both(x, out, SavedResult(marks_alone(x.shape, None, p=p, seed=seed)))
    return out


def epilogue_products(
    x: Tensor, epilogue: Epilogue, saving: Saving, weights: Sequence[Tensor], biases: Sequence[Tensor | None],
    asked: Request | None = None,
) -> tuple[Tensor, ...]:  # fmt: skip
    """The products of the epilogue's result, which is never made as a whole; then mean and variance."""
    codec = saving.rows if epilogue.over == Over.NOTHING else saving.values
    packing = packing_of(codec, x.size(1), x.device)
    assert packing is not None, "engines ask `fits` first"
    made = _make(x, epilogue, packing._replace(slope_bits=saving.slopes), weights, biases)
    params = [tensor for pair in zip(weights, biases, strict=True) for tensor in pair]
    return _Epilogue.apply(x, epilogue.weight, epilogue.bias, epilogue, made, asked, *params)
