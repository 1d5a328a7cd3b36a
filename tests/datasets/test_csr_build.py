from __future__ import annotations

import numpy as np
import pytest

from gossamer.datasets import csr_build
from gossamer.datasets.csr_build import ahead, build_csr


@pytest.mark.parametrize("num_rows", [1, 7, 50])
@pytest.mark.parametrize("num_edges", [0, 1, 1000])
@pytest.mark.parametrize("sort_block", [1, 13, 10**6])
def test_rows_hold_their_columns_sorted_with_duplicates(monkeypatch, num_rows, num_edges, sort_block):
    monkeypatch.setattr(csr_build, "SORT_BLOCK", sort_block)
    rng = np.random.default_rng(0)
    row = (num_rows * rng.random(num_edges) ** 3).astype(np.int32)  # a hub, and empty rows
    col = rng.integers(0, num_rows, num_edges, dtype=np.int32)
    indptr, indices = np.full(num_rows + 1, -1, np.int64), np.full(num_edges, -1, np.int32)
    ticks: list[int] = []
    build_csr(
        lambda: ((row[s : s + 64], col[s : s + 64]) for s in range(0, num_edges, 64)), indptr, indices, ticks.append
    )
    order = np.lexsort((col, row))
    assert (indptr == np.append(0, np.cumsum(np.bincount(row, minlength=num_rows)))).all()
    assert (indices == col[order]).all()
    assert sum(ticks) == 3 * num_edges


def test_the_largest_ids():
    top = 2**31 - 1
    indptr, indices = np.zeros(3, np.int64), np.zeros(2, np.int32)
    edges = [(np.array([1, 0], np.int32), np.array([top, top], np.int32))]
    build_csr(lambda: edges, indptr, indices, lambda count: None)
    assert indptr.tolist() == [0, 1, 2] and indices.tolist() == [top, top]


def test_chunks_drawn_ahead_are_the_same_and_errors_pass_through():
    assert list(ahead(iter(range(1, 10)))) == list(range(1, 10))
    assert list(ahead([])) == []

    def broken():
        yield 1
        raise RuntimeError("no more")

    with pytest.raises(RuntimeError, match="no more"):
        list(ahead(broken()))
