"""Quantise the input of an int8 product, optionally fused with the epilogue before it; and the backward of that step.

    alone          x is quantised                                              d x = d rows
    by epilogue    dropout(act(norm(x))) is quantised as it is made            d x by ops.norm_act's backward, from x

What is saved for dW is the int8 rows, and x for the epilogue's backward, or a bit per element if there is no norm.
Where the recipe's `activations` has a codec, its few bits take the place of all that (saved/epilogue.py): dW then
multiplies what they decode to.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ... import ops
from ...ops._structure import take, tensors_of, without_tensors
from ...ops.norm_act import Epilogue, Over
from ...ops.quantize_rows import QRows
from ...ops.save_epilogue import Packing
from ...ops.saved_epilogue import SavedEpilogue, is_smooth
from ...state.location import layer_here
from ..gradient import Request
from ..noise import refuse_nan as refuse_saved_nan
from ..saved.epilogue import handed_on, noise_beside
from ..saved.policy import Saving, packing_of
from ..saved.source import pack_rows
from ..settings import Int8
from .qrows import Seeds, quantised


class Entry(NamedTuple):
    """How rows come in: the epilogue before them, how activations are saved, what the maker of x asks of d x."""

    setting: Int8
    epilogue: Epilogue | None = None
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
    """What is saved of a product's input, and of the epilogue that made it: int8 rows and x, or few bits."""

    rows: QRows | None = None
    saved: SavedEpilogue | None = None
    result: bool = False
    """Whether the few bits are of the epilogue's result, not of x_hat."""
    x: Tensor | None = None
    epilogue: Epilogue | None = None
    """With what its backward needs of the statistics in use."""

    @property
    def _structures(self) -> list[Any]:
        return [each for each in (self.rows, self.saved, self.epilogue) if each is not None]

    def flatten(self) -> tuple[list[Tensor | None], SavedInput]:
        """The tensors, and the rest, which `unflatten` puts them into."""
        tensors = [self.x, *(tensor for each in self._structures for tensor in tensors_of(each))]
        return tensors, self._put(map(without_tensors, self._structures), None)

    def unflatten(self, tensors: Sequence[Tensor | None]) -> SavedInput:
        x, *others = tensors
        return self._put(take(others, *self._structures), x)

    def _put(self, structures: Iterable[Any], x: Tensor | None) -> SavedInput:
        given = iter(structures)
        rows, saved, epilogue = (None if own is None else next(given) for own in (self.rows, self.saved, self.epilogue))
        return SavedInput(rows, saved, self.result, x, epilogue)

    def operand(self) -> QRows | None:
        """The rows that dW multiplies: those of forward, or what the saved bits decode to; None if nothing is saved."""
        if self.rows is not None or self.saved is None:
            return self.rows
        weight, bias = (None, None) if self.epilogue is None else (self.epilogue.weight, self.epilogue.bias)
        return ops.saved_codes(self.saved, weight, bias, self.result)


BEFORE = "in a layer that ran before anomaly mode was on"
"""The layer of gradients, where nobody asked for its name."""


def refuse_nan(what: str, x: Tensor, layer: str = "") -> None:
    """In torch's anomaly mode: an error that names the layer if x holds NaN or infinity. Else its results show it."""
    if torch.is_anomaly_enabled() and not bool(x.isfinite().all()):
        raise ValueError(
            f"{layer or layer_here()}, {what} of an int8 product hold NaN or infinity; look for the step that diverged "
            "and lower the learning rate, clean the input with torch.nan_to_num, or use the recipe 'float32'"
        )


def enter(x: Tensor, entry: Entry, seeds: Seeds) -> Entered:
    """Quantise x, or the result of the epilogue on x."""
    entered = _enter(x, entry, seeds)
    refuse_nan("the rows", entered.rows.scale)
    if entry.watch is not None:
        whole = x if entry.epilogue is None else ops.norm_act(x, entry.epilogue).out
        entry.watch.see("x", whole, entered.rows)
    return entered


def _enter(x: Tensor, entry: Entry, seeds: Seeds) -> Entered:
    none, epilogue, saving = x.new_empty(0), entry.epilogue, entry.saving
    if epilogue is None:
        rows = quantised(x, entry.setting)
        if saving is None or not x.requires_grad:
            return Entered(rows, SavedInput(rows), none, none)
        packing = packing_of(saving.rows, x.size(1), x.device) or Packing(8, x.size(1), False)
        return Entered(rows, SavedInput(saved=pack_rows(x, packing), result=True), none, none)
    if saving is not None:
        return _enter_saving(x, epilogue, saving, seeds)
    if _by_marks(epilogue):
        made = ops.save_epilogue_rows(x, epilogue, Packing(), seeds.of_activation())
        saved = made.packed.saved(x.shape, epilogue, Packing())
        return Entered(made.rows, SavedInput(made.rows, saved, epilogue=epilogue), made.mean, made.var)
    ran = ops.epilogue_rows(x, epilogue, seeds.of_activation())
    used = epilogue.using(ran.mean, ran.var)
    return Entered(ran.rows, SavedInput(ran.rows, x=x, epilogue=used), ran.mean, ran.var)


def _by_marks(epilogue: Epilogue) -> bool:
    """Whether a bit per element is all that backward needs: no norm, and an activation that is linear on each side."""
    return epilogue.over == Over.NOTHING and not is_smooth(epilogue.act)


def _enter_saving(x: Tensor, epilogue: Epilogue, saving: Saving, seeds: Seeds) -> Entered:
    alone = epilogue.over == Over.NOTHING
    packing = packing_of(saving.rows if alone else saving.values, x.size(1), x.device)
    assert packing is not None, "engines ask `saved.epilogue.fits` first"
    packing = packing._replace(noise=noise_beside(epilogue, x), slope_bits=saving.slopes)
    made = ops.save_epilogue_rows(x, epilogue, packing, seeds.of_activation())
    refuse_saved_nan(made.zero)
    saved = made.packed.saved(x.shape, epilogue, packing)
    used = epilogue.using(made.mean, made.var)._replace(mean=None)
    return Entered(made.rows, SavedInput(saved=saved, result=alone, epilogue=used), made.mean, made.var)


def leave(drows: Tensor, asked: Request | None, saved: SavedInput) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """d x, and the gradients of the norm's weight and bias; the buffer of `drows` may be written."""
    epilogue = saved.epilogue
    if epilogue is None:
        return drows, None, None
    if saved.saved is not None:
        norm = (epilogue.weight, epilogue.var, epilogue.over, epilogue.eps)
        dweight, dbias, sums = ops.saved_epilogue_backward(drows, drows, saved.saved, *norm)
        return handed_on(drows, sums, asked), dweight, dbias
    assert saved.x is not None
    backward = ops.norm_act_backward if asked is None else asked.fill
    return backward(drows, saved.x, epilogue)
