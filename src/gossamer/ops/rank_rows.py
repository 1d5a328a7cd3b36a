"""Rows that are kept in one of two matrices: which one, and where.

    level_v = 1: row rank(v) of the first matrix      level_v = 0: row v - rank(v) of the second
    rank(v) = number of set levels before v = rank[v / 512] + those within v's block of 512

`level` is a bit per row, bit v mod 8 of byte v / 8, and `rank` a count per 512 rows: 1.0625 bits per row. For each id
`first` has its row in the first matrix and `second` in the second, -1 where it is in the other.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from . import _checks
from ._library import define
from ._structure import structure
from .pack_ids import pack_ids

BLOCK = 512


@structure
class RankedRows(NamedTuple):
    """Ids into two matrices; -1 where a row is in the other one."""

    first: Tensor
    second: Tensor


def level_bits(important: Tensor) -> tuple[Tensor, Tensor]:
    """`level` and `rank` of a truth value per row."""
    _checks.dtype_of("important", important, (torch.bool,))
    _checks.shape_of("important", important, (None,), "[rows]")
    if important.numel() >= 2**31:
        raise ValueError(f"`important` must have less than 2^31 rows (got {important.numel()}); split the matrix")
    level = pack_ids(important.int().view(1, -1), 1).view(-1)
    padded = torch.nn.functional.pad(important, (0, -important.numel() % BLOCK)).view(-1, BLOCK)
    count = padded.sum(1)
    return level, (count.cumsum(0) - count).to(torch.int32)


def _check(level: Tensor, rank: Tensor, ids: Tensor, rows: int) -> None:
    _checks.at_least("rows", rows, 0)
    _checks.dtype_of("level", level, (torch.uint8,))
    _checks.shape_of("level", level, (-(-rows // 8),), f"[{-(-rows // 8)}] bytes, a bit for each of {rows} rows")
    _checks.dtype_of("rank", rank, (torch.int32,))
    _checks.shape_of("rank", rank, (-(-rows // BLOCK),), f"[{-(-rows // BLOCK)}], one count per {BLOCK} rows")
    _checks.dtype_of("ids", ids, (torch.int64,))
    _checks.shape_of("ids", ids, (None,), "[count]")
    _checks.ids_within("ids", ids, rows, "rows")


def _reference(level: Tensor, rank: Tensor, ids: Tensor, rows: int) -> RankedRows:
    bits = ((level.unsqueeze(1) >> torch.arange(8, device=level.device)) & 1).view(-1)
    blocks = torch.nn.functional.pad(bits, (0, -bits.numel() % BLOCK)).view(-1, BLOCK).long()
    before = (blocks.cumsum(1) - blocks + rank.unsqueeze(1)).view(-1)[ids]
    is_first = bits[ids] == 1
    return RankedRows(torch.where(is_first, before, -1), torch.where(is_first, -1, ids - before))


def _fake(level: Tensor, rank: Tensor, ids: Tensor, rows: int) -> RankedRows:
    return RankedRows(torch.empty_like(ids), torch.empty_like(ids))


rank_rows = define(
    "rank_rows(Tensor level, Tensor rank, Tensor ids, int rows) -> RankedRows",
    check=_check,
    reference=_reference,
    fake=_fake,
)
