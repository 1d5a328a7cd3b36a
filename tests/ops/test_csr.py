from __future__ import annotations

import pytest
import torch
from torch.library import opcheck

from gossamer.ops import OPS, coo_to_csr, count_loops, split_loops, transpose_csr
from gossamer.ops.csr import MAX_NODES, row_of_edge
from support import graphs
from support.compare import same


@pytest.mark.parametrize("name", graphs.GRAPHS)
@pytest.mark.parametrize("dtype", [torch.int64, torch.int32])
def test_coo_to_csr_equals_the_reference(name, dtype, threads):
    graph = graphs.graph(name)
    shuffle = torch.randperm(graph.num_edges, generator=torch.Generator().manual_seed(0))
    src, dst = graph.edge_index[:, shuffle].to(dtype)
    args = (dst, src, graph.num_dst, graph.num_src)
    assert same(coo_to_csr(*args), OPS["coo_to_csr"].reference(*args))


@pytest.mark.parametrize("name", graphs.GRAPHS)
def test_transpose_equals_the_reference(name, threads):
    graph = graphs.graph(name)
    args = (graph.rowptr, graph.col, graph.num_src)
    assert same(transpose_csr(*args), OPS["transpose_csr"].reference(*args))


def with_loops(name):
    """The structure of a square graph, in which nodes have none, one or several loops."""
    graph = graphs.graph(name)
    n = min(graph.num_src, graph.num_dst)
    edges = graph.edge_index[:, (graph.edge_index < n).all(0)]
    loops = torch.arange(n)[:: max(1, n // 50)]
    edges = torch.cat([edges, loops.expand(2, -1), loops[::2].expand(2, -1)], dim=1)
    rowptr, col, _ = coo_to_csr(edges[1], edges[0], n, n)
    return rowptr, col


@pytest.mark.parametrize("name", graphs.GRAPHS)
@pytest.mark.parametrize("weighted", [False, True])
def test_splitting_loops_equals_the_reference(name, weighted, threads):
    rowptr, col = with_loops(name)
    value = torch.randn(col.numel(), generator=torch.Generator().manual_seed(0)) if weighted else None
    assert torch.equal(count_loops(rowptr, col), OPS["count_loops"].reference(rowptr, col))
    assert same(split_loops(rowptr, col, value), OPS["split_loops"].reference(rowptr, col, value))


def test_edges_of_a_node_keep_their_order():
    dst, src = torch.tensor([1, 0, 1, 1, 0]), torch.tensor([4, 3, 2, 4, 3])
    rowptr, col, perm = coo_to_csr(dst, src, 3, 5)
    assert rowptr.tolist() == [0, 2, 5, 5]
    assert col.tolist() == [3, 3, 4, 2, 4]
    assert perm.tolist() == [1, 4, 0, 2, 3]
    assert row_of_edge(rowptr).tolist() == [0, 0, 1, 1, 1]


def test_a_sort_large_enough_for_every_thread(threads):
    rng = torch.Generator().manual_seed(1)
    dst, src = torch.randint(0, 1000, (2, 200_000), generator=rng)
    args = (dst, src, 1000, 1000)
    rowptr, col, _ = result = coo_to_csr(*args)
    assert same(result, OPS["coo_to_csr"].reference(*args))
    assert same(transpose_csr(rowptr, col, 1000), OPS["transpose_csr"].reference(rowptr, col, 1000))


def test_transposing_twice_gives_the_sorted_graph():
    graph = graphs.graph("power law")
    t_rowptr, t_col, t_perm = transpose_csr(graph.rowptr, graph.col, graph.num_src)
    rowptr, col, perm = transpose_csr(t_rowptr, t_col, graph.num_dst)
    row = row_of_edge(rowptr)
    assert torch.equal(rowptr, graph.rowptr)
    assert torch.equal(graph.col[t_perm[perm]], col)
    assert torch.equal(row_of_edge(graph.rowptr)[t_perm[perm]], row)
    key = row * graph.num_src + col
    assert (key.diff() >= 0).all()


def test_opcheck():
    graph = graphs.small()
    src, dst = graph.edge_index
    opcheck(OPS["coo_to_csr"].overload, (dst, src, 4, 5))
    opcheck(OPS["transpose_csr"].overload, (graph.rowptr, graph.col, 5))
    rowptr, col = with_loops("self-loops")
    opcheck(OPS["count_loops"].overload, (rowptr, col))
    for value in (None, torch.ones(col.numel())):
        opcheck(OPS["split_loops"].overload, (rowptr, col, value))


def ids(*values, dtype=torch.int64):
    return torch.tensor(values, dtype=dtype)


@pytest.mark.parametrize(
    "error, name, args",
    [
        (IndexError, "`dst`.*got 3 at position 1", (ids(0, 3), ids(0, 0), 3, 3)),
        (IndexError, "`dst`.*got -1 at position 0", (ids(-1, 0), ids(0, 0), 3, 3)),
        (IndexError, "`src`.*got 2 at position 1", (ids(0, 1), ids(0, 2), 3, 2)),
        (IndexError, "`src`.*got -5", (ids(0, dtype=torch.int32), ids(-5, dtype=torch.int32), 3, 2)),
        (IndexError, "`src`", (ids(0), ids(2**40), 1, 1)),
        (TypeError, "`dst`.*float32", (torch.zeros(2), ids(0, 0), 3, 3)),
        (TypeError, "`src`.*int16", (ids(0), ids(0, dtype=torch.int16), 3, 3)),
        (ValueError, "`dst` and `src`", (ids(0, 1), ids(0), 3, 3)),
        (ValueError, "`dst` and `src`", (ids(0), ids(0, dtype=torch.int32), 3, 3)),
        (ValueError, "`dst`.*shape", (ids(0, 1).view(1, 2), ids(0, 1), 3, 3)),
        (ValueError, f"`num_dst`.*{MAX_NODES}", (ids(0), ids(0), MAX_NODES + 1, 3)),
        (ValueError, "`num_src`.*got -1", (ids(0), ids(0), 3, -1)),
    ],
)
def test_bad_edge_lists(error, name, args):
    with pytest.raises(error, match=name):
        coo_to_csr(*args)


COL = torch.zeros(2, dtype=torch.int32)


@pytest.mark.parametrize(
    "error, name, args",
    [
        (ValueError, "`rowptr`.*got 3 at position 2", (ids(0, 1, 3), COL, 3)),
        (ValueError, "`rowptr`.*got 1 at position 0", (ids(1, 1, 2), COL, 3)),
        (ValueError, "`rowptr`.*got 1 at position 2", (ids(0, 2, 1, 2), COL, 3)),
        (ValueError, "`rowptr`.*position 2", (ids(0, 2**62, -(2**62), 2), COL, 3)),
        (ValueError, "`rowptr`.*shape", (ids(), COL, 3)),
        (ValueError, "`rowptr`.*shape", (ids(0, 2).view(1, 2), COL, 3)),
        (TypeError, "`rowptr`.*int32", (ids(0, 2, dtype=torch.int32), COL, 3)),
        (TypeError, "`col`.*int64", (ids(0, 2), COL.long(), 3)),
        (ValueError, "`col`.*shape", (ids(0, 2), COL.view(1, 2), 3)),
        (IndexError, "`col`.*got 7 at position 1", (ids(0, 2), torch.tensor([0, 7], dtype=torch.int32), 3)),
        (IndexError, "`col`.*got -2 at position 0", (ids(0, 2), torch.tensor([-2, 0], dtype=torch.int32), 3)),
        (IndexError, "`col`.*got 0", (ids(0, 2), COL, 0)),
        (ValueError, "`num_src`.*got -1", (ids(0), COL[:0], -1)),
    ],
)
def test_bad_structure(error, name, args):
    with pytest.raises(error, match=name):
        transpose_csr(*args)
