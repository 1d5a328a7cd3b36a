"""Int8 rows as results of kernels: codes and one scale per row."""

from __future__ import annotations

import torch
from torch import Tensor

from ... import memory
from ...native import library, num_threads
from ...ops.quantize_rows import QRows
from ._arguments import F32, at, enough, noise

NO_TERMS = (0, 0, 0, 1)
"""A product without attention terms: their vectors, results and count, and one head."""


def empty_rows(rows: int, columns: int) -> QRows:
    return QRows(memory.empty([rows, columns], torch.int8), memory.empty([rows], F32))


def contiguous_rows(x: QRows) -> QRows:
    return QRows(x.codes.contiguous(), x.scale.contiguous())


class RowsTo:
    """Allocates int8 rows that are written a tile at a time."""

    def __init__(self, rows: int, columns: int, seed: int | None) -> None:
        self.rows = empty_rows(rows, columns)
        self._columns, self._noise = columns, noise(seed)

    def write(self, start: int, tile: Tensor) -> None:
        places = (self.rows.codes.data_ptr() + start * self._columns, self.rows.scale.data_ptr() + start * 4)
        enough(library.quantize_times(at(tile), *places, 0, *self._noise, start, *tile.shape, num_threads()))
