"""Self-loops and normalisation, edge by edge against PyG, which defines them."""

from __future__ import annotations

import warnings

import pytest
import torch

from gossamer import Graph, ops
from gossamer.graph.normalise import as_edges, gcn_parts

NODES = 40


@pytest.fixture(scope="module")
def pyg():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # importing PyG compiles with the deprecated torch.jit
        import torch_geometric.nn
    return torch_geometric


def random_edges(num_nodes: int, nnz: int) -> torch.Tensor:
    return torch.randint(0, num_nodes, (2, nnz), generator=torch.Generator().manual_seed(nnz))


LOOPS = torch.tensor([[3, 5, 5, 39], [3, 5, 5, 39]])
GRAPHS = {
    "random": random_edges(NODES, 200),
    "loops, some twice": torch.cat([LOOPS, random_edges(NODES, 300), LOOPS.flip(1)], 1),
    "only loops": LOOPS,
    "isolated nodes": random_edges(5, 30),
    "star": torch.stack([torch.arange(1, NODES), torch.zeros(NODES - 1, dtype=torch.int64)]),
    "no edges": torch.empty(2, 0, dtype=torch.int64),
}
WEIGHTS = {
    "unweighted": lambda nnz: None,
    "positive": lambda nnz: torch.rand(nnz, generator=torch.Generator().manual_seed(0)) + 0.1,
    "of both signs": lambda nnz: torch.randn(nnz, generator=torch.Generator().manual_seed(1)),
    "zero": lambda nnz: torch.zeros(nnz),
}
each_graph = pytest.mark.parametrize("edge_index", GRAPHS.values(), ids=GRAPHS)
each_weight = pytest.mark.parametrize("weights", WEIGHTS.values(), ids=WEIGHTS)


def assert_edge_by_edge(graph: Graph, edge_index: torch.Tensor, weight: torch.Tensor | None) -> None:
    """Same edges and weights, bit for bit, NaN included; a list is brought into the graph's order stably."""
    order = edge_index[1].argsort(stable=True)
    assert torch.equal(graph.edge_index, edge_index[:, order])
    assert (graph.value is None) == (weight is None)
    if weight is not None:
        torch.testing.assert_close(graph.value, weight[order], rtol=0, atol=0, equal_nan=True)


@each_graph
@each_weight
@pytest.mark.parametrize("fill", [1.0, 2.0, -0.5])
def test_with_self_loops(pyg, edge_index, weights, fill):
    weight = weights(edge_index.size(1))
    graph = Graph.from_edge_index(edge_index, NODES, weight).with_self_loops(fill)
    assert_edge_by_edge(graph, *pyg.utils.add_remaining_self_loops(edge_index, weight, fill, NODES))


@each_graph
@each_weight
def test_without_self_loops(pyg, edge_index, weights):
    weight = weights(edge_index.size(1))
    graph = Graph.from_edge_index(edge_index, NODES, weight).without_self_loops()
    assert_edge_by_edge(graph, *pyg.utils.remove_self_loops(edge_index, weight))


@each_graph
@each_weight
def test_split_self_loops(pyg, edge_index, weights):
    """The other edges in their order, and a vector that puts the matrix together again."""
    weight = weights(edge_index.size(1))
    whole = Graph.from_edge_index(edge_index, NODES, weight)
    graph, diagonal = whole.split_self_loops()
    assert_edge_by_edge(graph, *pyg.utils.remove_self_loops(edge_index, weight))
    dense = torch.zeros(NODES, NODES, dtype=torch.float64)
    count = torch.ones(edge_index.size(1)) if weight is None else weight
    dense.index_put_((edge_index[1], edge_index[0]), count.double(), accumulate=True)
    assert diagonal.dtype == torch.float32 and diagonal.shape == (NODES,)
    torch.testing.assert_close(diagonal.double(), dense.diag(), rtol=1e-6, atol=1e-6)
    assert not diagonal[dense.diag() == 0].any()
    x = torch.randn(NODES, 5, generator=torch.Generator().manual_seed(2))
    torch.testing.assert_close(ops.spmm(graph, x, diagonal=diagonal), ops.spmm(whole, x), rtol=1e-5, atol=1e-5)


def test_split_self_loops_adds_up_what_a_node_has_several_of():
    edge_index = torch.tensor([[2, 0, 2, 1, 2, 0], [2, 1, 2, 0, 2, 0]])
    graph, diagonal = Graph.from_edge_index(edge_index, 4).split_self_loops()
    assert diagonal.tolist() == [1, 0, 3, 0] and graph.edge_index.tolist() == [[1, 0], [0, 1]]
    weight = torch.tensor([0.5, 7.0, -2.0, 9.0, 4.0, -1.0])
    graph, diagonal = Graph.from_edge_index(edge_index, 4, weight).split_self_loops()
    assert diagonal.tolist() == [-1, 0, 2.5, 0] and graph.value.tolist() == [9, 7]
    graph, diagonal = Graph.from_edge_index(torch.empty(2, 0, dtype=torch.int64), 0).split_self_loops()
    assert diagonal.shape == (0,) and graph.num_edges == 0


def test_what_self_loops_split_into_serves_training_if_split_in_evaluation():
    graph = Graph.from_edge_index(GRAPHS["random"], NODES)
    with torch.inference_mode():
        split, diagonal = graph.split_self_loops()
    x = torch.ones(NODES, 3, requires_grad=True)
    ops.spmm(split, x, diagonal=diagonal).sum().backward()
    assert x.grad is not None


@each_graph
@each_weight
@pytest.mark.parametrize("improved", [False, True])
@pytest.mark.parametrize("add_self_loops", [True, False])
def test_gcn_norm(pyg, edge_index, weights, improved, add_self_loops):
    """Equal bits: both sum a node's weights in edge order and multiply in the same order."""
    weight = weights(edge_index.size(1))
    graph = Graph.from_edge_index(edge_index, NODES, weight).gcn_norm(improved, add_self_loops)
    expected = pyg.nn.conv.gcn_conv.gcn_norm(edge_index, weight, NODES, improved, add_self_loops)
    assert_edge_by_edge(graph, *expected)


def test_the_weights_above_have_negative_and_zero_degrees():
    """So that the test before really sees 0^-1/2 and (-1)^-1/2."""
    edge_index = GRAPHS["random"]
    degrees = Graph.from_edge_index(edge_index, NODES, WEIGHTS["of both signs"](200)).gcn_norm(False, False).value
    assert degrees.isnan().any()
    assert not Graph.from_edge_index(edge_index, NODES, WEIGHTS["zero"](200)).gcn_norm(False, False).value.any()


@pytest.mark.parametrize("name", ["random", "loops, some twice", "isolated nodes", "star"])
@each_weight
def test_mean_norm(pyg, name, weights):
    edge_index = GRAPHS[name]
    weight = weights(edge_index.size(1))
    x = torch.randn(NODES, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    graph = Graph.from_edge_index(edge_index, NODES, weight)
    messages = x[edge_index[0]] * (1 if weight is None else weight.double().unsqueeze(1))
    expected = pyg.nn.aggr.MeanAggregation()(messages, edge_index[1], dim_size=NODES)
    # the weights are divided in float32, then summed in float64: a relative 2^-24 per weight and one per division
    bound = 2 * 2.0**-24 * (messages.abs().max() + 1)
    torch.testing.assert_close(ops.spmm(graph.mean_norm(), x), expected, rtol=0, atol=bound.item())
    torch.testing.assert_close(ops.spmm(graph, x, reduce="mean"), expected, rtol=0, atol=bound.item())


@pytest.mark.parametrize("parallel", [1, 2, 5])
def test_the_last_of_many_loops_counts_for_any_number_of_threads(parallel):
    """Without torch's deterministic mode, in which the other tests run."""
    nnz, before = 400_000, torch.get_num_threads()
    loops = torch.zeros(2, nnz, dtype=torch.int64)
    graph = Graph.from_edge_index(loops, 1, torch.arange(nnz, dtype=torch.float32))
    torch.use_deterministic_algorithms(False)
    torch.set_num_threads(parallel)
    try:
        assert all(graph.with_self_loops().value.tolist() == [nnz - 1] for _ in range(20))
    finally:
        torch.set_num_threads(before)
        torch.use_deterministic_algorithms(True)


def test_normalised_weights_do_not_depend_on_threads(threads):
    edge_index = random_edges(2000, 100_000)
    weight = torch.rand(100_000, generator=torch.Generator().manual_seed(3))
    graph = Graph.from_edge_index(edge_index, 2000, weight)
    results = graph.gcn_norm().value, graph.mean_norm().value, graph.t().value
    torch.set_num_threads(1)
    again = Graph.from_edge_index(edge_index, 2000, weight)
    for result, serial in zip(results, (again.gcn_norm().value, again.mean_norm().value, again.t().value), strict=True):
        assert torch.equal(result, serial)


def test_derived_graphs_leave_the_original_alone():
    graph = Graph.from_edge_index(GRAPHS["random"], NODES, WEIGHTS["positive"](200))
    before = [t.clone() for t in (graph.rowptr, graph.col, graph.value, graph.perm)]
    loops = (graph.with_self_loops, graph.without_self_loops, graph.split_self_loops)
    for derive in (*loops, graph.gcn_norm, graph.mean_norm, graph.t):
        derive()
    assert all(map(torch.equal, before, (graph.rowptr, graph.col, graph.value, graph.perm)))


@each_graph
@each_weight
@pytest.mark.parametrize("loops", [True, False])
def test_the_parts_of_a_matrix_as_edges(edge_index, weights, loops):
    graph = Graph.from_edge_index(edge_index, NODES, weights(edge_index.size(1)))
    parts = gcn_parts(graph, False, loops)
    found = as_edges(parts, parts.graph.value)
    made = Graph(found.rowptr, found.col, NODES, found.value)
    want = graph.gcn_norm(False, loops)
    rows = torch.eye(NODES)
    assert torch.allclose(ops.spmm(made, rows), ops.spmm(want, rows), atol=1e-6, equal_nan=True)
