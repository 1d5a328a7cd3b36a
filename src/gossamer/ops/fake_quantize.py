"""Fake quantisation: floats rounded to the levels that integer inference will have, and how a gradient passes that.

    y = row_i x        q = clamp(rne(y * (1 / scale)) + zero, 0, top)        out = scale (q - zero)

rne rounds to nearest, ties to even. `scale` is one number, or one per column; `zero` is the code of 0.0, a whole
number in float32; top = 2^bits - 1; without `row`, y = x. In rows with `keep` set, out = y. NaN stays NaN, so that a
divergence stays visible. The gradient of y by `rule`:

    STRAIGHT_THROUGH   dout
    CLIPPED            dout where the code is in range, 0 <= rne(y / scale) + zero <= top, else 0
    INCLUSIVE          dout where the code is strictly inside of the range: the end codes pass nothing, too

One pass over x; one bit per element is saved for backward, rows in whole words of 16. `histogram` counts the elements
of y, without rows that have `keep` set, in `bins` equal parts of [low, high): before, in each, and behind; NaN nowhere.
"""

from __future__ import annotations

import math
from enum import IntEnum
from typing import Any

import torch
from torch import Tensor

from . import _checks
from ._library import define
from .dropout import pack_bits, unpack_bits

FAR_OUT = 2.0**21
"""Codes have at most eight bits: what is farther than this from zero is out of range, and integers are exact."""
WORD = 16


class Rule(IntEnum):
    STRAIGHT_THROUGH = 0
    CLIPPED = 1
    INCLUSIVE = 2


def word_bytes(columns: int) -> int:
    """Bytes of one bit per column, in whole words."""
    return -(-columns // WORD) * 2


def check_keep(x: Tensor, keep: Tensor | None) -> None:
    if keep is not None:
        _checks.dtype_of("keep", keep, (torch.bool,))
        _checks.shape_of("keep", keep, (x.size(0),), f"[{x.size(0)}], one truth value per row")


def check_row(x: Tensor, row: Tensor | None) -> None:
    if row is not None:
        _checks.dtype_of("row", row, (torch.float32,))
        _checks.shape_of("row", row, (x.size(0),), f"[{x.size(0)}], one number per row")


def _check(
    x: Tensor, scale: Tensor, zero: Tensor, row: Tensor | None, keep: Tensor | None, top: int, rule: int
) -> None:
    _checks.dtype_of("x", x, (torch.float32, torch.float64))
    _checks.shape_of("x", x, (None, None), "[rows, columns]")
    _checks.dtype_of("scale", scale, (torch.float32,))
    wide = x.size(1) if scale.numel() != 1 else 1
    _checks.shape_of("scale", scale, (wide,), f"[1], or [{x.size(1)}], one number per column")
    _checks.dtype_of("zero", zero, (torch.float32,))
    _checks.shape_of("zero", zero, (1,), "[1]")
    check_row(x, row)
    check_keep(x, keep)
    if not 1 <= top <= 255:
        raise ValueError(f"`top` must be from 1 to 255, the largest code of at most eight bits (got {top})")
    if rule not in list(Rule):
        raise ValueError(f"`rule` must be one of {[f'{r.name} = {r.value}' for r in Rule]} (got {rule})")


def _reference(
    x: Tensor, scale: Tensor, zero: Tensor, row: Tensor | None, keep: Tensor | None, top: int, rule: int
) -> tuple[Tensor, Tensor]:
    x = x if row is None else (x * row.unsqueeze(1)).to(x.dtype)
    code = (x * scale.reciprocal()).clamp(-FAR_OUT, FAR_OUT).round() + zero
    out = ((code.clamp(0, top) - zero) * scale).to(x.dtype)
    inside = torch.ones_like(x, dtype=torch.bool)
    if rule == Rule.CLIPPED:
        inside = (code >= 0) & (code <= top)
    elif rule == Rule.INCLUSIVE:
        inside = (code > 0) & (code < top)
    inside = inside | x.isnan()
    if keep is not None:
        out, inside = torch.where(keep.unsqueeze(1), x, out), inside | keep.unsqueeze(1)
    return out, _to_words(inside)


def _to_words(inside: Tensor) -> Tensor:
    rows, columns = inside.shape
    padded = torch.nn.functional.pad(inside, (0, -columns % WORD))
    return pack_bits(padded).view(rows, word_bytes(columns))


def _fake(
    x: Tensor, scale: Tensor, zero: Tensor, row: Tensor | None, keep: Tensor | None, top: int, rule: int
) -> tuple[Tensor, Tensor]:
    bits = x.new_empty(x.size(0), word_bytes(x.size(1)), dtype=torch.uint8)
    return torch.empty_like(x, memory_format=torch.contiguous_format), bits


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    row, rule = inputs[3], inputs[6]
    ctx.mark_non_differentiable(output[1])
    ctx.save_for_backward(row, None if rule == Rule.STRAIGHT_THROUGH else output[1])


def _backward(ctx: Any, dout: Tensor, _: Tensor | None) -> tuple[Tensor | None, ...]:
    row, bits = ctx.saved_tensors
    dx = dout if row is None and bits is None else fake_quantize_backward(dout.contiguous(), row, bits)
    return dx, None, None, None, None, None, None


fake_quantize_op = define(
    "fake_quantize(Tensor x, Tensor scale, Tensor zero, Tensor? row, Tensor? keep, int top, int rule) "
    "-> (Tensor, Tensor)",
    check=_check,
    reference=_reference,
    fake=_fake,
    backward=_backward,
    setup_context=_setup_context,
)


def fake_quantize(
    x: Tensor,
    scale: Tensor,
    zero: Tensor,
    row: Tensor | None = None,
    keep: Tensor | None = None,
    top: int = 255,
    rule: int = Rule.CLIPPED,
) -> Tensor:
    """x, times `row`, rounded to the levels of a quantiser; rows with `keep` set are not rounded."""
    return fake_quantize_op(x.contiguous(), scale, zero, row, keep, top, int(rule))[0]


def _check_backward(dout: Tensor, row: Tensor | None, bits: Tensor | None) -> None:
    _checks.dtype_of("dout", dout, (torch.float32, torch.float64))
    _checks.shape_of("dout", dout, (None, None), "[rows, columns]")
    check_row(dout, row)
    if bits is not None:
        _checks.dtype_of("bits", bits, (torch.uint8,))
        shape = (dout.size(0), word_bytes(dout.size(1)))
        _checks.shape_of("bits", bits, shape, f"{list(shape)}, one bit per element of dout")


def _backward_reference(dout: Tensor, row: Tensor | None, bits: Tensor | None) -> Tensor:
    dx = dout.clone() if row is None else (dout * row.unsqueeze(1)).to(dout.dtype)
    if bits is None:
        return dx
    rows, columns = dout.shape
    inside = unpack_bits(bits.reshape(-1), bits.numel() * 8).view(rows, 8 * bits.size(1))
    return torch.where(inside[:, :columns], dx, 0.0)


def _setup_again(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs[1:])


def _backward_again(ctx: Any, dout: Tensor) -> tuple[Tensor | None, ...]:
    return fake_quantize_backward(dout.contiguous(), *ctx.saved_tensors), None, None


fake_quantize_backward = define(
    "fake_quantize_backward(Tensor dout, Tensor? row, Tensor? bits) -> Tensor",
    check=_check_backward,
    reference=_backward_reference,
    fake=lambda dout, row, bits: torch.empty_like(dout, memory_format=torch.contiguous_format),
    backward=_backward_again,
    setup_context=_setup_again,
)


def _check_histogram(x: Tensor, row: Tensor | None, keep: Tensor | None, low: float, high: float, bins: int) -> None:
    _checks.dtype_of("x", x, (torch.float32,))
    _checks.shape_of("x", x, (None, None), "[rows, columns]")
    check_row(x, row)
    check_keep(x, keep)
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise ValueError(f"`low` and `high` must be finite, the first below the second (got {low} and {high})")
    if not 1 <= bins <= 2**20:
        raise ValueError(f"`bins` must be from 1 to {2**20} (got {bins})")


def per_unit(low: float, high: float, bins: int) -> float:
    """Bins per unit of x, as float32 has it."""
    return float(torch.tensor(bins / (high - low), dtype=torch.float32).clamp(max=torch.finfo(torch.float32).max))


def _histogram_reference(
    x: Tensor, row: Tensor | None, keep: Tensor | None, low: float, high: float, bins: int
) -> Tensor:
    x = x if row is None else x * row.unsqueeze(1)
    rows = x if keep is None else x[~keep]
    start = torch.tensor(low, dtype=torch.float32, device=x.device)
    place = ((rows - start) * per_unit(low, high, bins)).clamp(-1.0, bins) + 1.0
    counted = place[~rows.isnan()].long()
    return torch.bincount(counted, minlength=bins + 2)


histogram = define(
    "histogram(Tensor x, Tensor? row, Tensor? keep, float low, float high, int bins) -> Tensor",
    check=_check_histogram,
    reference=_histogram_reference,
    fake=lambda x, row, keep, low, high, bins: x.new_empty(bins + 2, dtype=torch.int64),
)
