"""A saved epilogue as kernels take it, and its decoded rows a tile at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from ... import memory
from ...native import library, num_threads
from ...ops._structure import tensors_of, with_tensors
from ...ops.saved_epilogue import SavedEpilogue, is_smooth, slope_range
from ._arguments import F32, MASK64, at, contiguous, enough

TILE_ELEMENTS = 2**20
"""Small compared with the results; large enough that two thread barriers per tile cost little on a busy machine."""


def span(numel: int, block: int) -> int:
    return max(1, min(block, numel))


def native_epilogue(k: SavedEpilogue) -> Any:
    """The object that kernels take; k's tensors must be alive and contiguous while it is used."""
    low, high = slope_range(k.act, k.slope) if is_smooth(k.act) else (0.0, 1.0)
    bits, slopes = (0, at(k.marks)) if is_smooth(k.act) else (at(k.marks), 0)
    bf16_meta = k.zero is not None and k.zero.dtype == torch.bfloat16
    layout = (k.rows * k.columns, span(k.rows * k.columns, k.block), k.bits, bf16_meta, at(k.levels))
    passing = 1.0 / (1.0 - k.merged) if k.merged < 1 else 0.0
    tail = (bits, slopes, k.slope_bits, low, high - low, passing, k.slope, k.p, k.seed & MASK64)
    return library.SavedEpilogue(at(k.codes), at(k.zero), at(k.spread), *layout, *tail)


def contiguous_saved(k: SavedEpilogue) -> SavedEpilogue:
    return with_tensors(k, contiguous(*tensors_of(k)))


def decoder(
    k: SavedEpilogue, weight: Tensor | None, bias: Tensor | None, result: bool
) -> Callable[[int, int, Tensor], None]:
    saved, (weight, bias) = native_epilogue(k), contiguous(weight, bias)

    def run(start: int, end: int, out: Tensor) -> None:
        affine = (at(weight), at(bias), result)
        enough(library.decode_epilogue(saved, *affine, at(out), start, end - start, k.columns, num_threads()))

    return run


def _tiles(rows: int, columns: int, multiple: int) -> Iterator[tuple[int, int]]:
    step = max(1, TILE_ELEMENTS // max(1, columns) // multiple) * multiple
    return ((start, min(rows, start + step)) for start in range(0, rows, step))


def run_tiles(rows: int, columns: int, multiple: int, run: Callable[[int, int, Tensor], None]) -> Iterator[Any]:
    """(start, end, tile) for each tile of rows, run into one buffer that all of them share."""
    tile: Tensor | None = None
    for start, end in _tiles(rows, columns, multiple):
        tile = memory.empty([end - start, columns], F32) if tile is None else tile[: end - start]
        run(start, end, tile)
        yield start, end, tile
