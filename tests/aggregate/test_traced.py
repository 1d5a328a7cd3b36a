"""The adjacency that a traced program builds equals the one that is built outside of it, on nasty graphs."""

from __future__ import annotations

import pytest
import torch

from gossamer import Graph
from gossamer.aggregate import build, traced
from support.pyg_models import NASTY
from support.tensors import rand

GRAPHS = [name for name in NASTY if name not in ("no edges", "one node")]


def of_kind(module, kind, edge_index, nodes, weight=None):
    if kind in ("sum", "mean", "max"):
        return module.neighbours(edge_index, (nodes, nodes), weight, kind)
    return module.gcn(edge_index, nodes, weight, "improved" in kind, "loops" in kind)


KINDS = ["sum", "mean", "max", "gcn", "gcn with loops", "gcn with loops, improved"]


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", NASTY)
def test_products_are_equal(name, kind, weighted):
    """Here outside of a trace, so that every graph is quick; tests of layers trace it."""
    edge_index, nodes = NASTY[name]
    weight = rand(edge_index.size(1)).abs() + 0.1 if weighted else None
    x = rand(nodes, 5, seed=1)
    want = of_kind(build, kind, edge_index, nodes, weight).product(x)
    torch.testing.assert_close(of_kind(traced, kind, edge_index, nodes, weight).product(x), want, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", KINDS[3:])
def test_weights_with_a_gradient(kind):
    edge_index, nodes = NASTY["loops"]
    x, grads = rand(nodes, 5, seed=1), []
    for module in (build, traced):
        weight = (rand(edge_index.size(1)).abs() + 0.1).requires_grad_()
        of_kind(module, kind, edge_index, nodes, weight).product(x).square().sum().backward()
        grads.append(weight.grad)
    torch.testing.assert_close(*grads, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", GRAPHS)
def test_what_attention_weighs(name):
    """Each row's sources, up to the row and the source that take the loops which were there."""
    edge_index, nodes = NASTY[name]
    want, ours = build.looped(edge_index, (nodes, nodes)), traced.looped(edge_index, (nodes, nodes))
    assert ours.num_src == ours.num_dst == nodes + 1
    assert torch.equal(ours.rowptr[:-1], want.rowptr)
    assert torch.equal(ours.col[: want.num_edges], want.col)


def test_a_graph_forgets_what_it_remembers():
    """What a Graph derived outside of the program would be a constant in it."""
    graph = Graph.from_edge_index(*NASTY["random"])
    build.gcn(graph, graph.num_nodes, None, False, True)
    within = traced.graph_of(graph, (50, 50))
    assert within.is_traced and not graph.is_traced
    assert within is traced.graph_of(within, (50, 50))
    assert set(within._cache) <= {"traced", "max_degree"}


def test_edges_that_are_no_edges():
    with pytest.raises(ValueError, match=r"`edge_index` must have the shape \[2, nnz\]"):
        traced.graph_of(torch.zeros(3, 4, dtype=torch.int64), (5, 5))
    with pytest.raises(TypeError, match=r"`edge_index` must be int64 or int32"):
        traced.graph_of(torch.zeros(2, 4), (5, 5))
