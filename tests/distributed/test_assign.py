"""Partitioners: deterministic, balanced, no empty part, and few edges cut where the graph has communities."""

from __future__ import annotations

import pytest
import torch

import gossamer as gs
from gossamer.distributed import metis
from gossamer.distributed.assign import METHODS, assign, method_for, without_empty
from gossamer.distributed.stream import quotient
from gossamer.ops.csr import row_of_edge
from support import graphs

PARTS = 8


@pytest.fixture(scope="module")
def communities() -> gs.Graph:
    """32 communities of 64 nodes whose ids tell nothing of them; nine of ten edges stay inside."""
    rng = torch.Generator().manual_seed(0)
    shuffled = torch.randperm(2048, generator=rng)
    src, dst = torch.randint(0, 2048, (2, 16000), generator=rng)
    inside = torch.rand(16000, generator=rng) < 0.9
    dst = torch.where(inside, src // 64 * 64 + dst % 64, dst)
    edges = shuffled[torch.stack([src, dst])]
    return gs.Graph.from_edge_index(torch.cat([edges, edges.flip(0)], 1), 2048)


def cut_share(graph: gs.Graph, assignment: torch.Tensor) -> float:
    return float((assignment[row_of_edge(graph.rowptr)] != assignment[graph.col.long()]).float().mean())


@pytest.mark.parametrize("method", METHODS)
def test_communities_are_found(communities, method):
    found = assign(communities, PARTS, method)
    assert cut_share(communities, found) < 0.2  # 0.09 lead out of communities; a random assignment cuts 0.875
    for weight in (torch.ones(2048), communities.degree.float()):
        per_part = torch.bincount(found, weight, minlength=PARTS)
        assert float(per_part.max() / per_part.mean()) < 1.15
    again = assign(communities, PARTS, method)
    assert torch.equal(found, again)


@pytest.mark.parametrize("method", METHODS)
def test_a_mesh_is_cut_along_few_edges(method):
    """40 x 40 nodes with shuffled ids: four squares are cut at 80 of 3120 edges."""
    nodes = torch.randperm(1600, generator=torch.Generator().manual_seed(0)).view(40, 40)
    pairs = [(nodes[:-1], nodes[1:]), (nodes[:, :-1], nodes[:, 1:])]
    edges = torch.cat([torch.stack([a.reshape(-1), b.reshape(-1)]) for a, b in pairs], 1)
    graph = gs.Graph.from_edge_index(edges, 1600)
    assert cut_share(graph, assign(graph, 4, method)) < 0.1  # neighbours alone, without clusters: 0.2


@pytest.mark.parametrize("method", METHODS)
def test_neighbouring_parts_have_neighbouring_numbers(method):
    """Of a ring of communities, half of the parts are half of the ring."""
    rng = torch.Generator().manual_seed(1)
    src, dst = torch.randint(0, 2048, (2, 16000), generator=rng)
    dst = torch.where(torch.rand(16000, generator=rng) < 0.9, src // 256 * 256 + dst % 256, (src + 256) % 2048)
    order = torch.randperm(8, generator=rng)
    mixed = order[torch.arange(2048) // 256] * 256 + torch.arange(2048) % 256
    edges = mixed[torch.stack([src, dst])]
    graph = gs.Graph.from_edge_index(torch.cat([edges, edges.flip(0)], 1), 2048)
    halves = assign(graph, 8, method) // 4
    assert cut_share(graph, halves) < 0.045  # two of the ring's eight joints, 0.1 / 8 each; in another order four


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    "name", [name for name in graphs.GRAPHS if graphs.graph(name).num_src == graphs.graph(name).num_dst > 0]
)
@pytest.mark.parametrize("parts", [1, 3, 5])
def test_no_part_is_empty(name, method, parts):
    graph = graphs.graph(name)
    parts = min(parts, graph.num_nodes)
    assert torch.bincount(assign(graph, parts, method), minlength=parts).min() > 0


def test_directed_and_repeated_edges_weigh_as_often_as_they_are_there():
    graph = graphs.graph("duplicate edges")  # 0 and 1 are joined by 3 edges, 0 and 2 by 3
    plain = metis.undirected(graph)
    assert plain.edge_index.tolist() == [[1, 2, 0, 0], [0, 0, 1, 2]] and plain.value.tolist() == [3, 3, 3, 3]


def test_a_symmetric_graph_is_taken_as_it_is():
    edges = torch.tensor([[1, 2, 0, 0], [0, 0, 1, 2]])
    assert metis.undirected(gs.Graph.from_edge_index(edges, 4)).value is None


def test_edges_between_parts_are_counted():
    graph = graphs.graph("duplicate edges")
    assert quotient(graph, torch.tensor([0, 1, 1]), 2).tolist() == [[0, 4], [2, 0]]


def test_an_empty_part_gets_a_node_of_the_largest():
    found = without_empty(torch.tensor([0, 0, 0, 2]), 4)
    assert torch.bincount(found, minlength=4).tolist() == [1, 1, 1, 1]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"parts": 0}, r"`parts` must lie between 1 and the number of nodes, 400.*got 0"),
        ({"parts": 401}, "`parts` must lie between 1 and the number of nodes, 400"),
        ({"parts": 2.0}, "`parts` must lie between"),
        ({"method": "random"}, r"`method` must be one of metis, stream.*got 'random'"),
    ],
)
def test_wrong_settings_are_refused(change, message):
    with pytest.raises(ValueError, match=message):
        assign(graphs.graph("power law"), **({"parts": 2} | change))


def test_without_pymetis_the_streaming_partitioner_is_taken(monkeypatch):
    monkeypatch.setattr(metis, "is_installed", lambda: False)
    graph = graphs.graph("power law")
    assert method_for(graph, None) == "stream"
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'gossamer-gnn\[distributed\]', or.*'stream'"):
        assign(graph, 2, "metis")


def test_a_graph_that_metis_has_no_memory_for_is_streamed(monkeypatch):
    graph = graphs.graph("power law")
    assert method_for(graph, None) == "metis"
    monkeypatch.setattr(metis, "BYTES_PER_EDGE", 2**50)
    assert method_for(graph, None) == "stream"
