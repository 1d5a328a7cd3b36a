"""Codes with a fixed scale and zero point, and how integer sums become them: what the integer engine is made of.

    x ~ s (q - z)        q = 0 .. 2^b - 1        z the code of 0.0        b = 8, or 4: two codes to a byte, low first

A sum of codes is multiplied by one float32 factor per column and becomes a code of the next scale, rounded once:

    t = float32(sum) * mult_c       then, where given,   t * row_i     t + shift_c     t + add_ic
    t = slope t  where t < 0        slope 1: as it is; 0: ReLU
    q = clamp(rne(t) + zero, 0, 2^b - 1)        or, with bits = 32, the float t itself

Every product and sum rounds for itself, in this order, so that plain PyTorch and all kernels agree to the bit. Biases
and norms are folded into `mult` and `shift`, activations into `slope`.

    quantize_affine   t from floats, x_ic * mult_c; columns that x does not have hold the zero point; NaN and infinity
                      count as 0, and `bad` is the first row that has any, -1 if none does
    requantize        t from codes, (q_ic - x_zero) * mult_c: other codes, or floats
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from . import _checks
from ._library import define
from ._structure import structure
from .encode_codes import EncodedRows, first_bad
from .fake_quantize import FAR_OUT

FLOATS = 32
"""Bits of a result that is no code."""


@structure
class Requantize(NamedTuple):
    """What becomes of a sum times its factor; zero and bits are those of the result."""

    row: Tensor | None = None
    shift: Tensor | None = None
    add: Tensor | None = None
    slope: float = 1.0
    zero: int = 0
    bits: int = 8


def code_bytes(columns: int, bits: int) -> int:
    """Bytes of a row of codes."""
    return -(-columns // 2) if bits == 4 else columns


def columns_of(codes: Tensor, bits: int) -> int:
    """How many codes a row has."""
    return codes.size(1) * (2 if bits == 4 else 1)


def unpacked(codes: Tensor, bits: int) -> Tensor:
    """Codes one to a byte."""
    if bits != 4:
        return codes
    return torch.stack([codes & 15, codes >> 4], dim=-1).flatten(1)


def packed(codes: Tensor, bits: int) -> Tensor:
    """Codes as they are stored."""
    return codes if bits != 4 else codes[:, ::2] | codes[:, 1::2] << 4


def requantized(t: Tensor, to: Requantize) -> Tensor:
    """Codes, or floats, from sums times their factors."""
    t = t if to.row is None else t * to.row.unsqueeze(1)
    t = t if to.shift is None else t + to.shift
    t = t if to.add is None else t + to.add
    if to.slope != 1:
        t = t.clamp(min=0) if to.slope == 0 else torch.where(t < 0, t * to.slope, t)
    if to.bits == FLOATS:
        return t
    codes = (t.clamp(-FAR_OUT, FAR_OUT).round() + to.zero).clamp(0, 2**to.bits - 1).to(torch.uint8)
    return packed(codes, to.bits)


def empty_like_requantized(like: Tensor, rows: int, columns: int, to: Requantize) -> Tensor:
    """For shape rules."""
    if to.bits == FLOATS:
        return like.new_empty(rows, columns, dtype=torch.float32)
    return like.new_empty(rows, code_bytes(columns, to.bits), dtype=torch.uint8)


def check_requantize(rows: int, columns: int, to: Requantize) -> None:
    for name, tensor, shape, meaning in (
        ("row", to.row, (rows,), f"[{rows}], one number per row"),
        ("shift", to.shift, (columns,), f"[{columns}], one number per column"),
        ("add", to.add, (rows, columns), f"[{rows}, {columns}], that of the result"),
    ):
        if tensor is not None:
            _checks.dtype_of(name, tensor, (torch.float32,))
            _checks.shape_of(name, tensor, shape, meaning)
    check_bits("bits", to.bits, (8, 4, FLOATS))
    if not 0 <= to.slope <= 1:
        raise ValueError(f"`slope` must be from 0, which is ReLU, to 1, which is no activation (got {to.slope})")
    check_code("zero", to.zero, min(to.bits, 8))
    if to.bits != FLOATS:
        check_even("mult", columns, to.bits)


def check_bits(name: str, bits: int, allowed: tuple[int, ...] = (8, 4)) -> None:
    if bits not in allowed:
        raise ValueError(f"`{name}` must be one of {', '.join(map(str, allowed))} (got {bits})")


def check_code(name: str, code: int, bits: int) -> None:
    if not 0 <= code < 2**bits:
        raise ValueError(f"`{name}` must be a code of {bits} bits, 0 to {2**bits - 1} (got {code})")


def check_even(name: str, columns: int, bits: int) -> None:
    if bits == 4 and columns % 2:
        raise ValueError(f"`{name}` must have an even number of columns where codes have four bits (got {columns})")


def check_codes(name: str, codes: Tensor, bits: int) -> None:
    check_bits("x_bits", bits)
    _checks.dtype_of(name, codes, (torch.uint8,))
    _checks.shape_of(name, codes, (None, None), "[rows, bytes]")


def check_factors(name: str, mult: Tensor) -> None:
    _checks.dtype_of(name, mult, (torch.float32,))
    _checks.shape_of(name, mult, (None,), "[columns], one number per column")


def _check_quantize(x: Tensor, mult: Tensor, to: Requantize) -> None:
    _checks.dtype_of("x", x, (torch.float32,))
    _checks.shape_of("x", x, (None, None), "[rows, columns]")
    check_factors("mult", mult)
    if mult.numel() < x.size(1):
        raise ValueError(f"`mult` must have a number for each of the {x.size(1)} columns of x (got {mult.numel()})")
    check_requantize(x.size(0), mult.numel(), to)


def _quantize_reference(x: Tensor, mult: Tensor, to: Requantize) -> EncodedRows:
    wide = torch.nn.functional.pad(x, (0, mult.numel() - x.size(1)))
    return EncodedRows(requantized(torch.where(wide.isfinite(), wide, 0.0) * mult, to), first_bad(x))


def _quantize_fake(x: Tensor, mult: Tensor, to: Requantize) -> EncodedRows:
    codes = empty_like_requantized(x, x.size(0), mult.numel(), to)
    return EncodedRows(codes, x.new_empty((), dtype=torch.int64))


quantize_affine = define(
    "quantize_affine(Tensor x, Tensor mult, Requantize) -> EncodedRows",
    check=_check_quantize,
    reference=_quantize_reference,
    fake=_quantize_fake,
)


def _check_codes_to(x: Tensor, x_bits: int, x_zero: int, mult: Tensor, to: Requantize) -> None:
    check_codes("x", x, x_bits)
    check_code("x_zero", x_zero, x_bits)
    check_factors("mult", mult)
    if mult.numel() > columns_of(x, x_bits):
        raise ValueError(
            f"`mult` must have at most {columns_of(x, x_bits)} numbers, one per column (got {mult.numel()})"
        )
    check_requantize(x.size(0), mult.numel(), to)


def _requantize_reference(x: Tensor, x_bits: int, x_zero: int, mult: Tensor, to: Requantize) -> Tensor:
    codes = unpacked(x, x_bits)[:, : mult.numel()].to(torch.int32)
    return requantized((codes - x_zero).float() * mult, to)


requantize = define(
    "requantize(Tensor x, int x_bits, int x_zero, Tensor mult, Requantize) -> Tensor",
    check=_check_codes_to,
    reference=_requantize_reference,
    fake=lambda x, x_bits, x_zero, mult, to: empty_like_requantized(x, x.size(0), mult.numel(), to),
)
