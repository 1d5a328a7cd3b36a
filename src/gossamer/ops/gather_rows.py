"""Rows of a table in the order asked for, as they are or decoded from codes on the way.

    gather_rows:         out_k = x[ids_k]                              gradient: dx[ids_k] += dout_k
    gather_rows_int8:    out_k = scale[ids_k] * codes[ids_k]           (codes of quantize_rows)
    gather_packed_rows:  out_k = zero[ids_k] + step[ids_k] * codes[ids_k]   (codes of pack with one block per row)

Decoding reads a quarter (int8) to a thirty-second (1 bit) of the bytes that a float32 gather reads.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from . import _checks
from ._few_bits import check_bits, spread_codes
from ._library import define
from .unpack import check_meta, decode


def _check(x: Tensor, ids: Tensor) -> None:
    if x.dim() == 0:
        raise ValueError("`x` must have at least one dimension: rows to gather from (got a scalar)")
    _check_ids(ids, x.size(0))


def _check_ids(ids: Tensor, limit: int) -> None:
    _checks.dtype_of("ids", ids, (torch.int64,))
    _checks.shape_of("ids", ids, (None,), "[count]")
    _checks.ids_within("ids", ids, limit, "rows")


def _reference(x: Tensor, ids: Tensor) -> Tensor:
    return x.index_select(0, ids)


def _fake(x: Tensor, ids: Tensor) -> Tensor:
    return x.new_empty(ids.size(0), *x.shape[1:])


def _setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
    ctx.save_for_backward(inputs[1])
    ctx.shape = inputs[0].shape


def _backward(ctx: Any, dout: Tensor) -> tuple[Tensor, None]:
    (ids,) = ctx.saved_tensors
    return dout.new_zeros(ctx.shape).index_add(0, ids, dout), None


gather_rows = define(
    "gather_rows(Tensor x, Tensor ids) -> Tensor",
    check=_check,
    reference=_reference,
    fake=_fake,
    backward=_backward,
    setup_context=_setup_context,
)


def _check_int8(codes: Tensor, scale: Tensor, ids: Tensor) -> None:
    _checks.dtype_of("codes", codes, (torch.int8,))
    _checks.shape_of("codes", codes, (None, None), "[rows, columns]")
    _checks.dtype_of("scale", scale, (torch.float32,))
    _checks.shape_of("scale", scale, (codes.size(0),), f"[{codes.size(0)}], one number per row")
    _check_ids(ids, codes.size(0))


def _int8_reference(codes: Tensor, scale: Tensor, ids: Tensor) -> Tensor:
    return codes[ids].to(torch.float32) * scale[ids].unsqueeze(1)


def _int8_fake(codes: Tensor, scale: Tensor, ids: Tensor) -> Tensor:
    return scale.new_empty(ids.size(0), codes.size(1))


def _int8_setup(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor], output: Tensor) -> None:
    ctx.save_for_backward(inputs[0], inputs[2])


def _int8_backward(ctx: Any, dout: Tensor) -> tuple[None, Tensor, None]:
    codes, ids = ctx.saved_tensors
    of_row = (dout * codes[ids]).sum(1)
    return None, of_row.new_zeros(codes.size(0)).index_add(0, ids, of_row), None


gather_rows_int8 = define(
    "gather_rows_int8(Tensor codes, Tensor scale, Tensor ids) -> Tensor",
    check=_check_int8,
    reference=_int8_reference,
    fake=_int8_fake,
    backward=_int8_backward,
    setup_context=_int8_setup,
)


def _check_packed(codes: Tensor, zero: Tensor, spread: Tensor, ids: Tensor, columns: int, bits: int) -> None:
    _checks.at_least("columns", columns, 1)
    check_bits(bits)
    _checks.dtype_of("codes", codes, (torch.uint8,))
    _checks.shape_of("codes", codes, (None, -(-columns * bits // 8)), f"[rows, {-(-columns * bits // 8)}] bytes")
    check_meta(zero, spread, codes.size(0))
    _check_ids(ids, codes.size(0))


def _packed_reference(codes: Tensor, zero: Tensor, spread: Tensor, ids: Tensor, columns: int, bits: int) -> Tensor:
    return decode(spread_codes(codes[ids], bits, columns), zero[ids], spread[ids], bits)


def _packed_fake(codes: Tensor, zero: Tensor, spread: Tensor, ids: Tensor, columns: int, bits: int) -> Tensor:
    return zero.new_empty(ids.size(0), columns, dtype=torch.float32)


gather_packed_rows = define(
    "gather_packed_rows(Tensor codes, Tensor zero, Tensor spread, Tensor ids, int columns, int bits) -> Tensor",
    check=_check_packed,
    reference=_packed_reference,
    fake=_packed_fake,
)
