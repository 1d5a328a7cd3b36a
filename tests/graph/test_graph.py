"""What a Graph knows about itself: degrees, its transpose, the order of its edges, and that it dies when let go."""

from __future__ import annotations

import copy
import gc
import pickle
import weakref
from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gossamer import Graph, ops

SRC, DST, NNZ = 9, 6, 40


def edge_list(seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    draw = torch.Generator().manual_seed(seed)
    ids = [torch.randint(0, count - 1, (NNZ,), generator=draw) for count in (SRC, DST)]
    return torch.stack(ids), torch.rand(NNZ, generator=draw)


@pytest.fixture
def graph() -> Graph:
    edge_index, weight = edge_list()
    return Graph.from_edge_index(edge_index, (SRC, DST), weight)


def dense(graph: Graph, value: torch.Tensor | None = None) -> torch.Tensor:
    src, dst = graph.edge_index
    value = graph.value if value is None else value
    value = torch.ones(graph.num_edges) if value is None else value
    zeros = torch.zeros(graph.num_dst, graph.num_src, dtype=torch.float64)
    return zeros.index_put((dst, src), value.double(), accumulate=True)


def test_facts(graph):
    edge_index, _ = edge_list()
    assert (graph.num_src, graph.num_dst, graph.num_edges) == (SRC, DST, NNZ)
    assert torch.equal(graph.degree, torch.bincount(edge_index[1], minlength=DST))
    assert torch.equal(graph.out_degree, torch.bincount(edge_index[0], minlength=SRC))
    assert graph.max_degree == graph.degree.max() > 0
    assert graph.degree[-1] == 0  # no edge into the last node
    assert torch.equal(graph.inverse_degree, 1 / graph.degree.clamp(min=1).float())
    assert torch.equal(graph.edge_index, edge_index[:, graph.perm])
    assert graph.degree is graph.degree  # cached
    empty = Graph.from_edge_index(torch.empty(2, 0, dtype=torch.int64))
    assert (empty.max_degree, empty.degree.tolist()) == (0, [])


def test_repr_and_bytes(graph):
    assert repr(graph) == "Graph(9 -> 6 nodes, 40 edges, weighted)"
    assert repr(Graph.from_edge_index(torch.tensor([[0], [1]]))) == "Graph(2 nodes, 1 edges)"
    own = 8 * (DST + 1) + (4 + 4 + 8) * NNZ
    assert graph.nbytes == own
    graph.t()
    assert graph.nbytes == own + 8 * (SRC + 1) + (4 + 4) * NNZ  # with the reversed graph
    assert graph.t_perm.numel() == NNZ and graph.nbytes == own + 8 * (SRC + 1) + (4 + 4 + 8) * NNZ


def test_transpose(graph):
    reverse = graph.t()
    assert graph.t() is reverse
    assert reverse.t() is graph
    assert (reverse.num_src, reverse.num_dst) == (DST, SRC)
    assert torch.equal(dense(reverse), dense(graph).T)
    assert torch.equal(reverse.value, graph.value[graph.t_perm])
    assert torch.equal(reverse.edge_index.flip(0), graph.edge_index[:, graph.t_perm])
    for row in range(SRC):
        assert (reverse.col[reverse.rowptr[row] : reverse.rowptr[row + 1]].diff() >= 0).all()


def test_t_perm_of_the_transpose_fits_the_original(graph):
    """The original's edges are in given order, not in ascending order as those of a newly made transpose."""
    reverse = graph.t()
    assert torch.equal(reverse.t().edge_index.flip(0), reverse.edge_index[:, reverse.t_perm])
    assert torch.equal(reverse.t_perm[graph.t_perm], torch.arange(NNZ))


def test_t_perm_alone_equals_that_of_t(graph):
    edge_index, weight = edge_list()
    assert torch.equal(Graph.from_edge_index(edge_index, (SRC, DST), weight).t_perm, graph.t() and graph.t_perm)


@pytest.mark.parametrize("turned", [False, True])
def test_gradients_through_the_cached_transpose(graph, turned):
    graph = graph.t() if turned else graph
    held = graph.t()  # the original stays alive, so that the transpose of `graph` is it
    draw = torch.Generator().manual_seed(1)
    x = torch.randn(graph.num_src, 3, generator=draw, dtype=torch.float64, requires_grad=True)
    value = torch.rand(NNZ, generator=draw, dtype=torch.float64).requires_grad_()
    dout = torch.randn(graph.num_dst, 3, generator=draw, dtype=torch.float64)
    ops.spmm(graph, x, value=value).backward(dout)
    src, dst = graph.edge_index
    torch.testing.assert_close(x.grad, dense(graph, value.detach()).T @ dout)
    torch.testing.assert_close(value.grad, (dout[dst] * x.detach()[src]).sum(1))
    assert held.t() is graph


@pytest.mark.parametrize("cached", [True, False])
def test_transpose_outlives_the_original(graph, cached):
    mine = graph.with_value(graph.value)  # the fixture itself is held by the test runner
    alive, reverse = weakref.ref(mine), mine.t()
    if cached:
        assert torch.equal(reverse.t_perm[mine.t_perm], torch.arange(NNZ))
    del mine
    assert alive() is None
    again = reverse.t()
    assert torch.equal(dense(again), dense(graph))
    assert reverse.t() is again
    assert torch.equal(again.edge_index.flip(0), reverse.edge_index[:, reverse.t_perm])
    assert torch.equal(again.value, reverse.value[reverse.t_perm])


def test_dies_with_its_last_reference(graph):
    gc.disable()
    try:
        mine = graph.with_value(graph.value)
        mine.out_degree, mine.t().t().t().t_perm, mine.max_degree, mine.inverse_degree
        alive, reverse = weakref.ref(mine), weakref.ref(mine.t())
        del mine
        assert alive() is None
        assert reverse() is None
    finally:
        gc.enable()


def test_copies(graph):
    graph.t()
    for twin in (copy.deepcopy(graph), pickle.loads(pickle.dumps(graph))):
        assert twin.t().t() is twin
        for name in ("rowptr", "col", "value", "perm"):
            assert torch.equal(getattr(twin, name), getattr(graph, name))
            assert getattr(twin, name).data_ptr() != getattr(graph, name).data_ptr()
    assert torch.equal(dense(pickle.loads(pickle.dumps(graph.t()))), dense(graph).T)


@pytest.mark.parametrize("shape", [(), (1,), (3,), (2, 3)])
def test_edge_tensors_there_and_back(graph, shape):
    attribute = torch.randn(NNZ, *shape, dtype=torch.float64, requires_grad=True)
    there = graph.sort_edges(attribute)
    assert torch.equal(there, attribute[graph.perm])
    assert torch.equal(graph.unsort_edges(there), attribute)
    assert torch.equal(graph.sort_edges(graph.unsort_edges(attribute)), attribute)
    weight = torch.arange(there.numel(), dtype=torch.float64).view_as(there)
    (there * weight).sum().backward()
    assert torch.equal(attribute.grad[graph.perm], weight)
    attribute.grad = None
    (graph.unsort_edges(attribute) * weight).sum().backward()
    assert torch.equal(attribute.grad, weight[graph.perm])


def test_sorted_weights_are_the_graphs_own(graph):
    edge_index, weight = edge_list()
    assert torch.equal(graph.sort_edges(weight), graph.value)
    assert torch.equal(graph.sort_edges(edge_index[0]), graph.col.long())
    assert torch.equal(graph.with_value(None).sort_edges(weight), graph.value)


@st.composite
def edge_lists(draw) -> tuple[torch.Tensor, tuple[int, int], torch.Tensor | None]:
    """Square and bipartite; few nodes, so that duplicates and self-loops are frequent; weights exact in float32."""
    num_src = draw(st.integers(0, 12))
    num_dst = num_src if draw(st.booleans()) else draw(st.integers(0, 12))
    most = 40 if num_src and num_dst else 0
    edge = st.tuples(st.integers(0, max(num_src - 1, 0)), st.integers(0, max(num_dst - 1, 0)))
    edges = draw(st.lists(edge, max_size=most))
    edge_index = torch.tensor(edges, dtype=draw(st.sampled_from([torch.int32, torch.int64]))).view(-1, 2).t()
    weights = draw(st.lists(st.integers(-8, 8), min_size=len(edges), max_size=len(edges)))
    return edge_index, (num_src, num_dst), torch.tensor(weights, dtype=torch.float32) if draw(st.booleans()) else None


@settings(max_examples=100, deadline=None)
@given(edge_lists(), st.integers(1, 20), st.sampled_from(["sum", "mean", "max"]))
def test_any_graph(parts, columns, how):
    edge_index, sizes, weight = parts
    graph = Graph.from_edge_index(edge_index, sizes, weight)
    nnz = edge_index.size(1)

    def as_multiset(edges, value):
        return Counter(zip(*edges.tolist(), [1.0] * nnz if value is None else value.tolist(), strict=True))

    assert as_multiset(graph.edge_index, graph.value) == as_multiset(edge_index, weight)
    assert torch.equal(graph.perm.sort().values, torch.arange(nnz))
    reverse = graph.t()
    assert as_multiset(reverse.edge_index.flip(0), reverse.value) == as_multiset(edge_index, weight)
    fresh = Graph(reverse.rowptr, reverse.col, reverse.num_src, reverse.value)
    assert torch.equal(fresh.t().rowptr, graph.rowptr)  # reversed twice, without the cache
    assert torch.equal(dense(fresh.t()), dense(graph))
    x = torch.arange(sizes[0] * columns, dtype=torch.float32).view(sizes[0], columns) - 50
    # small whole numbers: float32 sums are exact in any order
    assert torch.equal(ops.spmm(graph, x).double(), dense(graph) @ x.double())
    merged = Graph.from_edge_index(edge_index, sizes, weight, how).edge_index.t().tolist()
    assert sorted(merged) == sorted(map(list, set(map(tuple, edge_index.t().tolist()))))


def test_a_graph_cannot_be_changed_and_notices_changes_in_place():
    edge_index = torch.tensor([[0, 1, 2], [1, 2, 0]])
    weight = torch.tensor([1.0, 2.0, 3.0])
    graph = Graph.from_edge_index(edge_index, 3).with_value(weight)
    with pytest.raises(AttributeError, match="`value` of a Graph"):
        graph.value = weight
    before = graph.t().value.clone()
    weight.mul_(2)  # the graph shares this tensor: its transpose must not go stale
    assert torch.equal(graph.t().value, 2 * before)


def test_what_evaluation_caches_serves_training():
    edge_index = torch.tensor([[0, 1, 2, 2], [1, 2, 0, 1]])
    with torch.inference_mode():
        graph = Graph.from_edge_index(edge_index, 3)
        ops.spmm(graph, torch.ones(3, 2), reduce="mean")
        graph.t()
    x = torch.ones(3, 2, requires_grad=True)
    ops.spmm(graph, x, reduce="mean").sum().backward()
    assert torch.allclose(x.grad.sum(), torch.tensor(6.0))
