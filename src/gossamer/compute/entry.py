"""How rows come into a product, and how the gradient of those rows leaves.

    alone        x is rounded                                            d x = d rows
    by a chain   dropout(act(norm(x))) is rounded as it is made          d x by ops.norm_act's backward, from x

What is kept for dW is the int8 rows, and x for the chain's backward, or a bit per element if there is no norm. Where
the recipe's `activations` has a codec, its few bits take the place of all that (activations/chain.py): dW then
multiplies what they decode to.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .. import ops
from ..activations.chain import Settings
from ..activations.noise import draw_seed, seed_beside
from ..activations.noise import refuse_nan as refuse_kept_nan
from ..activations.plan import Plan
from ..activations.stash import layout_of
from ..ops.chain_keep import kept_of
from ..ops.kept_chain import Kept, is_smooth
from ..ops.norm_act import Over
from ..state.location import layer_here
from .box import NO_CODES, Box
from .plan import Int8
from .rows import Rows, Seeds, quantised
from .watch import Watch

Norm = tuple[Tensor | None, Tensor | None, Tensor | None, Tensor | None]
"""Weight, bias, mean and variance of a norm."""


class Entry(NamedTuple):
    """What was told of the rows' way in: the chain before them, how activations are kept, where d x goes (box.py)."""

    how: Int8
    chain: Settings | None = None
    plan: Plan | None = None
    box: Box | None = None

    @property
    def watch(self) -> Watch | None:
        """Who measures the rounding of this call, if anybody still does."""
        watch = self.how.watch
        return None if watch is None or watch.decided else watch

    def unwatched(self) -> Entry:
        return self if self.how.watch is None else self._replace(how=dataclasses.replace(self.how))


class Came(NamedTuple):
    """Rows that came in, with what backward needs: `tensors` are for autograd to save, `settings` are plain values."""

    rows: Rows
    tensors: tuple[Tensor | None, ...]
    settings: tuple[Any, ...] | None
    mean: Tensor
    var: Tensor


BEFORE = "in a layer that ran before anomaly mode was on"
"""The layer of gradients, where nobody asked for its name."""


def refuse_nan(what: str, x: Tensor, layer: str = "") -> None:
    """In torch's anomaly mode: an error that names the layer if x holds NaN or infinity. Else its results show it."""
    if torch.is_anomaly_enabled() and not bool(x.isfinite().all()):
        raise ValueError(
            f"{layer or layer_here()}, {what} of an int8 product hold NaN or infinity; look for the step that diverged "
            "and lower the learning rate, clean the input with torch.nan_to_num, or use the recipe 'float32'"
        )


def come_in(x: Tensor, norm: Norm, entry: Entry, seeds: Seeds) -> Came:
    came = _come_in(x, norm, entry, seeds)
    refuse_nan("the rows", came.rows.scale)
    if entry.watch is not None:
        whole = x if entry.chain is None else ops.norm_act(x, *norm, *entry.chain)[0]
        entry.watch.see("x", whole, came.rows)
    return came


def _come_in(x: Tensor, norm: Norm, entry: Entry, seeds: Seeds) -> Came:
    none = x.new_empty(0)
    if entry.chain is None:
        rows = quantised(x, entry.how)
        if entry.plan is None or not x.requires_grad:
            return Came(rows, rows, None, none, none)
        return Came(rows, *_packed(x, entry.plan), none, none)
    if entry.plan is None and _by_marks(entry.chain):
        *rows, mean, var, _, _, _, marks = ops.chain_keep_rows(
            x, *norm, *entry.chain, *NO_CODES, seeds.of_activation()
        )  # fmt: skip
        return Came(Rows(*rows), (*rows, marks), None, mean, var)
    if entry.plan is None:
        *rows, mean, var = ops.chain_rows(x, *norm, *entry.chain, seeds.of_activation())
        used = (mean, var) if norm[2] is None else norm[2:]
        return Came(Rows(*rows), (*rows, x, norm[0], norm[1], *used), None, mean, var)
    return _come_in_keeping(x, norm, entry, entry.plan, seeds)


def _by_marks(how: Settings) -> bool:
    """Whether a bit per element is all that backward needs: no norm, and an activation that is linear on each side."""
    return how.over == Over.NOTHING and not is_smooth(how.act)


def _packed(x: Tensor, plan: Plan) -> tuple[tuple[Tensor | None, ...], tuple[Any, ...]]:
    """Few bits of x itself."""
    bits, block, bf16_meta, levels = layout_of(plan.rows, x.size(1), x.device) or (8, x.size(1), False, None)
    codes, zero, spread = ops.pack(x.detach(), bits, block, draw_seed(x), bf16_meta, levels)
    refuse_kept_nan(zero)
    rows, columns = x.shape
    kept = Kept(codes, zero, spread, levels, None, rows, columns, bits, block)
    return (*kept.tensors, None, None, None), (*kept.settings, True)


def _come_in_keeping(x: Tensor, norm: Norm, entry: Entry, plan: Plan, seeds: Seeds) -> Came:
    how = entry.chain
    assert how is not None
    alone = how.over == Over.NOTHING
    layout = layout_of(plan.rows if alone else plan.values, x.size(1), x.device)
    assert layout is not None, "layers ask `chain.fits` first"
    bits, block, bf16_meta, levels = layout
    noise = seed_beside(how.seed) if how.p > 0 else draw_seed(x)
    codec = (bits, block, bf16_meta, levels, noise, plan.slopes)
    *rows, mean, var, codes, zero, spread, marks = ops.chain_keep_rows(
        x, *norm, *how, *codec, seeds.of_activation()
    )  # fmt: skip
    refuse_kept_nan(zero)
    tail = (how.act, how.slope, how.p, how.seed, plan.slopes)
    kept = kept_of((codes, zero, spread, marks), x.shape, (bits, block, levels), *tail)
    used = var if norm[3] is None else norm[3]
    return Came(Rows(*rows), (*kept.tensors, norm[0], norm[1], used), (*kept.settings, alone), mean, var)


def operand(tensors: Sequence[Tensor | None], settings: tuple[Any, ...] | None) -> Rows:
    """The rows that dW multiplies: those of forward, or what the kept bits decode to."""
    if settings is None:
        codes, scale = tensors[:2]
        assert codes is not None and scale is not None
        return Rows(codes, scale)
    *kept_settings, result = settings
    *kept, weight, bias, _ = tensors
    return Rows(*ops.kept_codes(*kept, *kept_settings, weight, bias, result))


def leave(
    drows: Tensor, entry: Entry, tensors: Sequence[Tensor | None], settings: tuple[Any, ...] | None
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """d x, and the gradients of the norm's weight and bias; the buffer of `drows` may be written."""
    how = entry.chain
    if how is None:
        return drows, None, None
    if settings is None and _by_marks(how):
        _, _, marks = tensors
        assert marks is not None
        bits, block, _, levels, _, slope_bits = NO_CODES
        tail = (how.act, how.slope, how.p, how.seed, slope_bits)
        alone = kept_of((marks, marks, marks, marks), drows.shape, (bits, block, levels), *tail)
        ops.chain_backward(drows, drows, *alone, None, None, how.over, how.eps)
        return drows, None, None
    if settings is None:
        _, _, x, weight, bias, mean, var = tensors
        if entry.box is not None:
            return entry.box.fill((drows, x, weight, bias, mean, var), how)
        return ops.OPS["norm_act_backward"](drows, x, weight, bias, mean, var, *how)
    *kept, weight, _, var = tensors
    dweight, dbias, _ = ops.chain_backward(drows, drows, *kept, *settings[:-1], weight, var, how.over, how.eps)
    return drows, dweight, dbias
