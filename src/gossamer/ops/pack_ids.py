"""Ids of 1 to 16 bits in rows of whole bytes: how codes of compressed features are stored.

    id p of a row occupies bits  p bits .. (p + 1) bits - 1  of the row's little-endian stream

so that a row of `parts` ids takes ceil(parts bits / 8) bytes; what is left of the last byte is zero. Codes of 1, 2, 4
or 8 bits are the same as those of `pack` with one block per row.
"""

from __future__ import annotations

import torch
from torch import Tensor

from . import _checks
from ._library import define

MOST_BITS = 16


def check_id_bits(bits: int) -> None:
    if not 1 <= bits <= MOST_BITS:
        raise ValueError(f"`bits` must be from 1 to {MOST_BITS} (got {bits})")


def row_bytes(parts: int, bits: int) -> int:
    return -(-parts * bits // 8)


def _check(ids: Tensor, bits: int) -> None:
    check_id_bits(bits)
    _checks.dtype_of("ids", ids, (torch.int32,))
    _checks.shape_of("ids", ids, (None, None), "[rows, parts]")
    _checks.ids_within("ids", ids, 2**bits, f"codes of {bits} bits")


def _reference(ids: Tensor, bits: int) -> Tensor:
    rows, parts = ids.shape
    apart = (ids.unsqueeze(2) >> torch.arange(bits, device=ids.device)) & 1  # [rows, parts, bits]
    stream = torch.nn.functional.pad(apart.reshape(rows, parts * bits), (0, -parts * bits % 8))
    weights = 2 ** torch.arange(8, device=ids.device)
    return (stream.view(rows, row_bytes(parts, bits), 8) * weights).sum(2).to(torch.uint8)


def _fake(ids: Tensor, bits: int) -> Tensor:
    return ids.new_empty(ids.size(0), row_bytes(ids.size(1), bits), dtype=torch.uint8)


pack_ids = define("pack_ids(Tensor ids, int bits) -> Tensor", check=_check, reference=_reference, fake=_fake)


def _check_packed(packed: Tensor, parts: int, bits: int) -> None:
    check_id_bits(bits)
    _checks.at_least("parts", parts, 0)
    _checks.dtype_of("packed", packed, (torch.uint8,))
    count = row_bytes(parts, bits)
    _checks.shape_of("packed", packed, (None, count), f"[rows, {count}] bytes, {parts} ids of {bits} bits")


def _unpack_reference(packed: Tensor, parts: int, bits: int) -> Tensor:
    rows = packed.size(0)
    stream = ((packed.unsqueeze(2) >> torch.arange(8, device=packed.device)) & 1).flatten(1)[:, : parts * bits]
    weights = 2 ** torch.arange(bits, device=packed.device)
    return (stream.reshape(rows, parts, bits) * weights).sum(2).to(torch.int32)


def _unpack_fake(packed: Tensor, parts: int, bits: int) -> Tensor:
    return packed.new_empty(packed.size(0), parts, dtype=torch.int32)


unpack_ids = define(
    "unpack_ids(Tensor packed, int parts, int bits) -> Tensor",
    check=_check_packed,
    reference=_unpack_reference,
    fake=_unpack_fake,
)
