"""Structure is checked once per tensor, and again whenever it could have changed."""

from __future__ import annotations

import pytest
import torch

from gossamer import Graph, native
from gossamer.ops import OPS, _checks, spmm
from support.spmm import NO_TRANSPOSE
from support.tensors import rand


def structure():
    return torch.tensor([0, 2, 3]), torch.tensor([0, 1, 2], dtype=torch.int32)


def product(rowptr, col, num_src=3):
    return OPS["spmm"](rowptr, col, None, None, None, torch.ones(num_src, 4), *NO_TRANSPOSE)


def test_a_change_in_place_is_noticed():
    rowptr, col = structure()
    product(rowptr, col)
    col[1] = 7
    with pytest.raises(IndexError, match=r"`col`.*got 7 at position 1"):
        product(rowptr, col)
    rowptr, col = structure()
    product(rowptr, col)
    rowptr[1] = 9
    with pytest.raises(ValueError, match=r"`rowptr`.*got 3 at position 2"):
        product(rowptr, col)


def test_a_change_through_a_view_is_noticed():
    rowptr, col = structure()
    product(rowptr, col)
    col[1:].fill_(-1)
    with pytest.raises(IndexError, match=r"`col`.*got -1"):
        product(rowptr, col)


def test_another_number_of_sources_is_noticed():
    rowptr, col = structure()
    product(rowptr, col)
    with pytest.raises(IndexError, match=r"`col`.*got 2 at position 2"):
        product(rowptr, col, num_src=2)


def test_other_edges_for_the_same_rows_are_noticed():
    rowptr, col = structure()
    product(rowptr, col)
    with pytest.raises(ValueError, match="`rowptr`"):
        product(rowptr, col[:2].clone())


def test_replaced_memory_is_noticed():
    """Assigning `.data` changes no version counter."""
    rowptr, col = structure()
    product(rowptr, col)
    col.data = torch.tensor([0, 1, 100], dtype=torch.int32)
    with pytest.raises(IndexError, match="`col`"):
        product(rowptr, col)


def test_resized_memory_is_noticed():
    rowptr, col = structure()
    product(rowptr, col)
    rowptr.resize_(6).copy_(torch.tensor([0, 2, 1, 3, 3, 3]))
    with pytest.raises(ValueError, match="`rowptr`"):
        product(rowptr, col)


def test_inference_tensors_are_checked_every_time():
    with torch.inference_mode():
        rowptr, col = structure()
        product(rowptr, col)
        col[0] = 5  # no version counter to notice this
        with pytest.raises(IndexError, match="`col`"):
            product(rowptr, col)


def test_strided_structure():
    rowptr, col = structure()
    wide_rowptr, wide_col = torch.stack([rowptr, rowptr], 1), torch.stack([col, col], 1)
    assert torch.equal(product(wide_rowptr[:, 0], wide_col[:, 0]), product(rowptr, col))
    wide_col[2, 1] = 9
    with pytest.raises(IndexError, match=r"`col`.*got 9 at position 2"):
        product(rowptr, wide_col[:, 1])


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.int16])
def test_first_outside(dtype, threads):
    ids = torch.zeros(100_000, dtype=dtype)
    assert _checks.first_outside(ids, 1) == -1
    assert _checks.first_outside(ids, 0) == 0
    ids[[70_000, 99_999]] = torch.tensor([5, -3], dtype=dtype)
    assert _checks.first_outside(ids, 6) == 99_999
    assert _checks.first_outside(ids, 5) == 70_000
    assert _checks.first_outside(ids[:0], 0) == -1


def test_both_checks_of_rows_agree(monkeypatch):
    """The check in PyTorch, for other devices, finds what the native one finds."""
    nnz = 3
    good = [[0, 3], [0, 0, 3, 3], [0, 1, 2, 3]]
    bad = [[0, 2], [1, 3], [0, 4, 3], [0, 3, 2, 3], [0, -1, 3], [3], [0, 2**63 - 1, -2, 3], [0, -(2**63), 3]]
    for checker in (native.library, None):
        monkeypatch.setattr(_checks, "library", checker)
        for rowptr in good:
            _checks.rowptr_of(torch.tensor(rowptr), nnz)
        for rowptr in bad:
            with pytest.raises(ValueError, match="`rowptr`"):
                _checks.rowptr_of(torch.tensor(rowptr), nnz)


def test_ops_without_gradient_say_so():
    _, scale = OPS["quantize_rows"](rand(3, 4).requires_grad_(), None)
    with pytest.raises(RuntimeError, match=r"`quantize_rows` has no gradient.*[Dd]etach"):
        scale.sum().backward()


def test_graph_is_checked_like_the_op():
    rowptr, col = structure()
    with pytest.raises(IndexError, match="`col`"):
        Graph(rowptr, col, 2)
    graph = Graph(rowptr, col, 3)
    col[0] = 9  # a graph is immutable by promise, not by force
    with pytest.raises(IndexError, match="`col`"):
        spmm(graph, torch.ones(3, 2))
