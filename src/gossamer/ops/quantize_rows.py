"""Symmetric int8 codes with one scale per row: the working format of quantised arithmetic.

    a = max|x| over the row        scale = a / 127        code = clamp(round(x * 127 / a), -127, 127)

round is to the nearest even integer, or floor(t + u) with u uniform in [0, 1): stochastic, unbiased up to 2^-16 of a
step (ops/random.py). Then |x^ - x| <= scale / 2, or < scale. Rows with a < 2^-100 become zeros with scale 0; a row with
NaN or infinity gets scale NaN, so that whatever uses it shows it. Takes one byte per value and four per row.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from . import _checks, random
from ._library import define
from ._structure import structure

CODE_MAX = 127


@structure
class QRows(NamedTuple):
    """Int8 codes [rows, columns] with a scale per row."""

    codes: Tensor
    scale: Tensor


def _check(x: Tensor, seed: int | None) -> None:
    _checks.dtype_of("x", x, (torch.float32,))
    _checks.shape_of("x", x, (None, None), "[rows, columns]")


def _reference(x: Tensor, seed: int | None) -> QRows:
    a = x.abs().amax(1) if x.size(1) else x.new_zeros(x.size(0))
    a = torch.where(a.isfinite(), a, torch.nan)
    tiny = a < 2.0**-100
    scale = torch.where(tiny, 0.0, a / CODE_MAX)
    inverse = torch.full_like(a, CODE_MAX) / a  # `CODE_MAX / a` would multiply by a rounded reciprocal
    inverse = torch.where(tiny | a.isnan(), 0.0, inverse)
    t = torch.where(inverse.unsqueeze(1) == 0, 0.0, x * inverse.unsqueeze(1))
    if seed is None:
        t = t.round()
    else:
        index = torch.arange(x.numel(), device=x.device).view(x.shape)
        t = torch.where(inverse.unsqueeze(1) == 0, 0.0, random.floor_plus(t, seed, index))
    return QRows(t.clamp(-CODE_MAX, CODE_MAX).to(torch.int8), scale)


def _fake(x: Tensor, seed: int | None) -> QRows:
    return QRows(x.new_empty(x.shape, dtype=torch.int8), x.new_empty(x.size(0)))


quantize_rows_op = define("quantize_rows(Tensor x, int? seed) -> QRows", check=_check, reference=_reference, fake=_fake)


def quantize_rows(x: Tensor, seed: int | None = None) -> QRows:
    """Codes (int8, the shape of x) and scales ([rows]); stochastic rounding with a seed, to nearest without."""
    return quantize_rows_op(x.contiguous(), seed)


def _check_codes(codes: Tensor, scale: Tensor) -> None:
    _checks.dtype_of("codes", codes, (torch.int8,))
    _checks.shape_of("codes", codes, (None, None), "[rows, columns]")
    _checks.dtype_of("scale", scale, (torch.float32,))
    _checks.shape_of("scale", scale, (codes.size(0),), f"[{codes.size(0)}], one number per row")


def _decode_reference(codes: Tensor, scale: Tensor) -> Tensor:
    return codes.to(torch.float32) * scale.unsqueeze(1)


def _decode_fake(codes: Tensor, scale: Tensor) -> Tensor:
    return scale.new_empty(codes.shape)


def _decode_setup(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
    ctx.save_for_backward(inputs[0])


def _decode_backward(ctx: Any, dout: Tensor) -> tuple[None, Tensor]:
    (codes,) = ctx.saved_tensors
    return None, (dout * codes).sum(1)


dequantize_rows = define(
    "dequantize_rows(Tensor codes, Tensor scale) -> Tensor",
    check=_check_codes,
    reference=_decode_reference,
    fake=_decode_fake,
    backward=_decode_backward,
    setup_context=_decode_setup,
)
