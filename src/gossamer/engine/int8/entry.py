"""Quantise the input of an int8 product, optionally fused with the epilogue before it; and the backward of that step.

    alone          x is quantised                                              d x = d rows
    by epilogue    dropout(act(norm(x))) is quantised as it is made            d x by ops.norm_act's backward, from x

What is saved for dW is the int8 rows, and x for the epilogue's backward, or a bit per element if there is no norm.
Where the recipe's `activations` has a codec, its few bits take the place of all that (saved/epilogue.py): dW then
multiplies what they decode to.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ... import ops
from ...ops.chain_keep import kept_of
from ...ops.kept_chain import Kept, is_smooth
from ...ops.linear import remember_sums
from ...ops.norm_act import Over, Settings
from ...ops.quantize_rows import QRows
from ...state.location import layer_here
from ..gradient import NO_CODES, Request
from ..noise import draw_seed, seed_beside
from ..noise import refuse_nan as refuse_saved_nan
from ..saved.epilogue import Norm
from ..saved.policy import Saving, layout_of
from ..saved.source import pack_rows
from ..settings import Int8
from .qrows import Seeds, quantised

NO_NORM: Norm = (None, None, None, None)


class Entry(NamedTuple):
    """How rows come in: the epilogue before them, how activations are saved, what the maker of x asks of d x."""

    setting: Int8
    settings: Settings | None = None
    saving: Saving | None = None
    asked: Request | None = None
    watch: Any = None
    """Measures the rounding of this call (precision.py)."""


class Entered(NamedTuple):
    """Quantised rows, what backward needs of them, and the epilogue's own statistics."""

    rows: QRows
    saved: SavedInput
    mean: Tensor
    var: Tensor


class SavedInput(NamedTuple):
    """What is saved of a product's input: int8 rows and what the epilogue's backward needs, or its few bits."""

    rows: QRows | None = None
    kept: Kept | None = None
    result: bool = False
    """Whether the few bits are of the epilogue's result, not of x_hat."""
    marks: Tensor | None = None
    x: Tensor | None = None
    weight: Tensor | None = None
    bias: Tensor | None = None
    mean: Tensor | None = None
    var: Tensor | None = None

    def flatten(self) -> tuple[list[Tensor | None], SavedInput]:
        """The tensors, and the rest, which `unflatten` puts them into."""
        kept = self.kept and self.kept._replace(codes=None, zero=None, spread=None, levels=None, marks=None)
        rows = None if self.rows is None else QRows(*[None] * 2)  # type: ignore[arg-type]
        own = [self.marks, self.x, self.weight, self.bias, self.mean, self.var]
        tensors = [*(self.rows or ()), *(() if self.kept is None else self.kept.tensors), *own]
        return tensors, SavedInput(rows, kept, self.result)

    def unflatten(self, tensors: Sequence[Tensor | None]) -> SavedInput:
        given: Any = iter(tensors)
        rows = None if self.rows is None else QRows(next(given), next(given))
        kept = None if self.kept is None else Kept(*(next(given) for _ in range(5)), *self.kept.settings)
        return SavedInput(rows, kept, self.result, *given)

    def operand(self) -> QRows:
        """The rows that dW multiplies: those of forward, or what the saved bits decode to."""
        if self.rows is not None:
            return self.rows
        assert self.kept is not None
        return QRows(*ops.kept_codes(*self.kept, self.weight, self.bias, self.result))


BEFORE = "in a layer that ran before anomaly mode was on"
"""The layer of gradients, where nobody asked for its name."""


def refuse_nan(what: str, x: Tensor, layer: str = "") -> None:
    """In torch's anomaly mode: an error that names the layer if x holds NaN or infinity. Else its results show it."""
    if torch.is_anomaly_enabled() and not bool(x.isfinite().all()):
        raise ValueError(
            f"{layer or layer_here()}, {what} of an int8 product hold NaN or infinity; look for the step that diverged "
            "and lower the learning rate, clean the input with torch.nan_to_num, or use the recipe 'float32'"
        )


def enter(x: Tensor, norm: Norm, entry: Entry, seeds: Seeds) -> Entered:
    """Quantise x, or the result of the epilogue on x."""
    entered = _enter(x, norm, entry, seeds)
    refuse_nan("the rows", entered.rows.scale)
    if entry.watch is not None:
        whole = x if entry.settings is None else ops.norm_act(x, *norm, *entry.settings)[0]
        entry.watch.see("x", whole, entered.rows)
    return entered


def _enter(x: Tensor, norm: Norm, entry: Entry, seeds: Seeds) -> Entered:
    none, settings, saving = x.new_empty(0), entry.settings, entry.saving
    if settings is None:
        rows = quantised(x, entry.setting)
        if saving is None or not x.requires_grad:
            return Entered(rows, SavedInput(rows), none, none)
        layout = layout_of(saving.rows, x.size(1), x.device) or (8, x.size(1), False, None)
        return Entered(rows, SavedInput(kept=pack_rows(x, layout), result=True), none, none)
    if saving is not None:
        return _enter_saving(x, norm, settings, saving, seeds)
    if _by_marks(settings):
        codes, scale, mean, var, _, _, _, marks = ops.chain_keep_rows(
            x, *norm, *settings, *NO_CODES, seeds.of_activation()
        )
        rows = QRows(codes, scale)
        return Entered(rows, SavedInput(rows, marks=marks), mean, var)
    codes, scale, mean, var = ops.chain_rows(x, *norm, *settings, seeds.of_activation())
    weight, bias, fixed_mean, fixed_var = norm
    used = (mean, var) if fixed_mean is None else (fixed_mean, fixed_var)
    rows = QRows(codes, scale)
    return Entered(rows, SavedInput(rows, None, False, None, x, weight, bias, *used), mean, var)


def _by_marks(settings: Settings) -> bool:
    """Whether a bit per element is all that backward needs: no norm, and an activation that is linear on each side."""
    return settings.over == Over.NOTHING and not is_smooth(settings.act)


def _enter_saving(x: Tensor, norm: Norm, settings: Settings, saving: Saving, seeds: Seeds) -> Entered:
    alone = settings.over == Over.NOTHING
    layout = layout_of(saving.rows if alone else saving.values, x.size(1), x.device)
    assert layout is not None, "engines ask `saved.epilogue.fits` first"
    bits, block, bf16_meta, levels = layout
    noise = seed_beside(settings.seed) if settings.p > 0 else draw_seed(x)
    codec = (bits, block, bf16_meta, levels, noise, saving.slopes)
    codes, scale, mean, var, *found = ops.chain_keep_rows(x, *norm, *settings, *codec, seeds.of_activation())
    refuse_saved_nan(found[1])
    tail = (settings.act, settings.slope, settings.p, settings.seed, saving.slopes)
    kept = kept_of(tuple(found), x.shape, (bits, block, levels), *tail)
    weight, bias, _, fixed_var = norm
    saved = SavedInput(kept=kept, result=alone, weight=weight, bias=bias, var=var if fixed_var is None else fixed_var)
    return Entered(QRows(codes, scale), saved, mean, var)


def leave(drows: Tensor, entry: Entry, saved: SavedInput) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """d x, and the gradients of the norm's weight and bias; the buffer of `drows` may be written."""
    settings = entry.settings
    if settings is None:
        return drows, None, None
    if saved.marks is not None:
        bits, block, _, levels, _, slope_bits = NO_CODES
        tail = (settings.act, settings.slope, settings.p, settings.seed, slope_bits)
        marks = (saved.marks,) * 4
        alone = kept_of(marks, drows.shape, (bits, block, levels), *tail)
        ops.chain_backward(drows, drows, *alone, None, None, settings.over, settings.eps)
        return drows, None, None
    if saved.kept is not None:
        given = (*saved.kept, saved.weight, saved.var, settings.over, settings.eps)
        dweight, dbias, sums = ops.chain_backward(drows, drows, *given)
        if sums.numel():
            remember_sums(drows, sums)
        return drows, dweight, dbias
    norm = (saved.x, saved.weight, saved.bias, saved.mean, saved.var)
    if entry.asked is not None:
        return entry.asked.fill((drows, *norm), settings)
    return ops.OPS["norm_act_backward"](drows, *norm, *settings)
