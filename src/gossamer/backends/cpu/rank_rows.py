"""Native kernel of ops/rank_rows.py."""

from __future__ import annotations

import torch
from torch import Tensor

from ...native import library, num_threads
from ...ops._library import implement
from ...ops.rank_rows import RankedRows, rank_rows
from ._arguments import at, contiguous


def _rank_rows(level: Tensor, rank: Tensor, ids: Tensor, rows: int) -> RankedRows:
    level, rank, ids = contiguous(level, rank, ids)
    first, second = torch.empty_like(ids), torch.empty_like(ids)
    library.rank_rows(at(level), at(rank), level.numel(), at(ids), ids.numel(), at(first), at(second), num_threads())
    return RankedRows(first, second)


implement(rank_rows, "cpu", _rank_rows)
