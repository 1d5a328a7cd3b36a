"""The gradient of an epilogue (norm, activation, dropout) from what was saved of it (ops/saved_epilogue.py).

    g = f dout        dbias = sum over rows of g        dweight = sum over rows of g x_hat
    dx = rstd (h - mean h - x_hat mean(h x_hat))        h = weight g, means as `over` says

and the sums of dx by column, which follow from sums by column where the statistics are not those of rows (else empty).
x_hat is decoded, f exact (or, for smooth activations, decoded): E[dx] is the exact gradient up to a bias of relative
size 1/N in the last term, which is quadratic in x_hat. The result may take the place of dout.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from . import _checks
from ._library import define
from ._structure import structure
from .norm_act import EpilogueGradient, Over, check_over, rstd_of
from .saved_epilogue import SavedEpilogue, check_codes, check_columns, check_saved, factor_of, hat_of, through


@structure
class SavedEpilogueGradient(NamedTuple):
    """Beside dx; the sums of dx by column are empty where they do not follow from others."""

    dweight: Tensor
    dbias: Tensor
    sums: Tensor


def _check(
    dx: Tensor, dout: Tensor, k: SavedEpilogue, weight: Tensor | None, var: Tensor | None, over: int, eps: float
) -> None:
    check_saved(k)
    check_over(over)
    check_columns(k.columns, weight=weight)
    if over != Over.NOTHING:
        check_codes(k)
        _check_var(k, var, over)
    if not 0 <= eps < math.inf:
        raise ValueError(f"`eps` must be a finite number, 0 or more (got {eps})")
    shape = (k.rows, k.columns)
    for name, tensor in (("dx", dx), ("dout", dout)):
        _checks.dtype_of(name, tensor, (torch.float32,))
        _checks.shape_of(name, tensor, shape, f"{shape}, as was saved")
    if not dx.is_contiguous():
        raise ValueError(f"`dx` must be contiguous, as it is written in place (got strides {dx.stride()})")


def _check_var(k: SavedEpilogue, var: Tensor | None, over: int) -> None:
    if var is None:
        raise ValueError("`var` must be given where there is a norm (got None)")
    count = {Over.ROWS: k.rows, Over.ALL: 1}.get(Over(over), k.columns)
    _checks.dtype_of("var", var, (torch.float32,))
    _checks.shape_of("var", var, (count,), f"[{count}]")


def gradient(
    dout: Tensor, hat: Tensor | None, f: Tensor, weight: Tensor | None, var: Tensor | None, over: int, eps: float
) -> EpilogueGradient:
    """By the formula, from x_hat and f as they are (hat: None if there is no norm)."""
    g = through(f, dout)
    if over == Over.NOTHING or hat is None or var is None:
        return EpilogueGradient(g, dout.new_zeros(dout.size(1)), dout.new_zeros(dout.size(1)))
    rstd = rstd_of(var, over, eps)
    h = g if weight is None else g * weight
    dims = {Over.COLUMNS: (0,), Over.ROWS: (1,), Over.ALL: (0, 1)}.get(Over(over))
    if dims:
        stretch = 1.0 / (var.sqrt() * rstd).clamp(min=torch.finfo(hat.dtype).tiny) if over == Over.ALL else 1.0
        h = h - h.mean(dims, keepdim=True) - hat * (h * hat).mean(dims, keepdim=True) * stretch
    dx = h * (rstd.unsqueeze(1) if over == Over.ROWS else rstd)
    return EpilogueGradient(dx, (g * hat).sum(0), g.sum(0))


def _has_sums(over: int) -> bool:
    return over not in (Over.NOTHING, Over.ROWS)


def _reference(
    dx: Tensor, dout: Tensor, k: SavedEpilogue, weight: Tensor | None, var: Tensor | None, over: int, eps: float
) -> SavedEpilogueGradient:
    hat = hat_of(k) if over != Over.NOTHING else None
    found, dweight, dbias = gradient(dout, hat, factor_of(k, dout), weight, var, over, eps)
    dx.copy_(found)
    return SavedEpilogueGradient(dweight, dbias, found.sum(0) if _has_sums(over) else found.new_empty(0))


def _fake(
    dx: Tensor, dout: Tensor, k: SavedEpilogue, weight: Tensor | None, var: Tensor | None, over: int, eps: float
) -> SavedEpilogueGradient:
    columns = dx.size(1)
    sums = dx.new_empty(columns if _has_sums(over) else 0)
    return SavedEpilogueGradient(dx.new_empty(columns), dx.new_empty(columns), sums)


saved_epilogue_backward = define(
    "saved_epilogue_backward(Tensor(a!) dx, Tensor dout, SavedEpilogue, Tensor? weight, Tensor? var, int over, "
    "float eps) -> SavedEpilogueGradient",
    check=_check,
    reference=_reference,
    fake=_fake,
)
