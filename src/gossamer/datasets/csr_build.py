"""A CSR matrix on disk, built from a stream of edges that can be drawn twice.

    pass 1   count the edges of every row            -> indptr
    pass 2   draw the same edges again, place each   -> indices, in the order of the stream
    pass 3   sort every row, a block of rows at a time

Memory is one int64 per row and a few arrays of the size of a chunk, however many edges there are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

Ids = NDArray[np.int32]
EdgeStream = Callable[[], Iterable[tuple[Ids, Ids]]]
SORT_BLOCK = 2**23  # edges sorted at a time; a row that has more is a block of its own
_COLUMN_BITS = 32
_T = TypeVar("_T")


def build_csr(
    edges: EdgeStream, indptr: NDArray[np.int64], indices: NDArray[np.int32], tick: Callable[[int], object]
) -> None:
    """Fill `indptr` [n + 1] and `indices` [e] from the chunks of (row, column) that each call of `edges` gives.

    Columns ascend within a row; duplicates are kept. `tick(k)` is told of every k edges handled, three times each.
    """
    cursor = np.zeros(len(indptr) - 1, np.int64)
    for row, _ in ahead(edges()):
        present, count = np.unique(row, return_counts=True)
        cursor[present] += count
        tick(len(row))
    indptr[0] = 0
    np.cumsum(cursor, out=indptr[1:])
    cursor[:] = indptr[:-1]
    for row, col in ahead(edges()):
        _place(row, col, cursor, indices)
        tick(len(row))
    _sort_rows(indptr, indices, tick)


def _place(row: Ids, col: Ids, cursor: NDArray[np.int64], indices: NDArray[np.int32]) -> None:
    """Write each column at the cursor of its row and move the cursors on."""
    key = np.sort(row.astype(np.int64) << _COLUMN_BITS | col)  # one sort of packed pairs, faster than an argsort
    row = (key >> _COLUMN_BITS).astype(np.int32)
    first = np.flatnonzero(np.diff(row, prepend=-1))  # where each row present begins
    present, count = row[first], np.diff(first, append=len(row))
    position = np.arange(len(row)) + np.repeat(cursor[present] - first, count)
    indices[position] = key.astype(np.int32)  # the low half of the key
    cursor[present] += count


def _sort_rows(indptr: NDArray[np.int64], indices: NDArray[np.int32], tick: Callable[[int], object]) -> None:
    start = 0
    while start < len(indptr) - 1:
        stop = int(np.searchsorted(indptr, indptr[start] + SORT_BLOCK, side="right")) - 1
        stop = max(stop, start + 1)
        low, high = int(indptr[start]), int(indptr[stop])
        row = np.repeat(np.arange(stop - start), np.diff(indptr[start : stop + 1]))
        indices[low:high] = np.sort(row << _COLUMN_BITS | indices[low:high]).astype(np.int32)
        tick(high - low)
        start = stop


def ahead(chunks: Iterable[_T]) -> Iterator[_T]:
    """The same chunks, the next one drawn in a second thread while the caller works on this one."""
    source = iter(chunks)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(next, source, None)
        while (chunk := waiting.result()) is not None:
            waiting = pool.submit(next, source, None)
            yield chunk
