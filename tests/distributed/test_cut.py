"""Parts hold the whole graph, and nothing else; merged parts are those of the coarser assignment."""

from __future__ import annotations

import pytest
import torch

import gossamer as gs
from gossamer.distributed import cut, groups, merge
from gossamer.graph.normalise import factors_of
from support import graphs
from support.parts import differences, glued

SQUARE = [name for name in graphs.GRAPHS if "bipartite" not in name and name not in ("no nodes", "no destinations")]


def weighted(graph: gs.Graph, seed: int = 0) -> gs.Graph:
    return graph.with_value(torch.rand(graph.num_edges, generator=torch.Generator().manual_seed(seed)) + 0.1)


def symmetric_graph(num_nodes: int = 60) -> gs.Graph:
    edges = graphs.random_graph(num_nodes, num_nodes, 3 * num_nodes).edge_index
    both = torch.cat([edges, edges.flip(0)], 1)
    order = (both[1] * num_nodes + both[0]).argsort(stable=True)
    return gs.Graph.from_edge_index(both[:, order], num_nodes)


def assignment_of(num_nodes: int, num_parts: int, seed: int = 0) -> torch.Tensor:
    """Every part has a node, elsewhere than the ids suggest."""
    rng = torch.Generator().manual_seed(seed)
    count = min(num_nodes, num_parts)
    rest = torch.randint(0, count, (num_nodes - count,), generator=rng)
    return torch.cat([torch.arange(count), rest])[torch.randperm(num_nodes, generator=rng)]


CASES = {name: lambda name=name: graphs.graph(name) for name in SQUARE}
CASES |= {f"{name}, weighted": lambda name=name: weighted(graphs.graph(name)) for name in SQUARE}
CASES |= {"symmetric": symmetric_graph}


@pytest.fixture(params=CASES)
def whole(request: pytest.FixtureRequest) -> gs.Graph:
    return CASES[request.param]()


def data_of(graph: gs.Graph) -> dict[str, torch.Tensor]:
    rng = torch.Generator().manual_seed(5)
    draws = torch.rand(3, graph.num_nodes, generator=rng)
    masks = {f"{name}_mask": draw < 0.5 for name, draw in zip(("train", "val", "test"), draws, strict=True)}
    x, y = torch.randn(graph.num_nodes, 5, generator=rng), torch.randint(0, 4, (graph.num_nodes,), generator=rng)
    return {"x": x, "y": y} | masks


@pytest.mark.parametrize("num_parts", [1, 2, 5])
def test_parts_glued_together_are_the_graph(whole, num_parts):
    data = data_of(whole)
    parts = cut(whole, assignment_of(whole.num_nodes, num_parts), **data)
    for transposed, expected in ((False, whole), (True, whole.t())):
        found = glued(parts, transposed)
        assert torch.equal(found.rowptr, expected.rowptr) and torch.equal(found.col, expected.col)
        assert expected.value is None or torch.equal(found.value, expected.value)
    ids = torch.cat([part.node_ids for part in parts])
    assert torch.equal(ids.sort().values, torch.arange(whole.num_nodes))
    for name, rows in data.items():
        assert torch.equal(torch.cat([getattr(part, name) for part in parts]), rows[ids])
    for part in parts:
        assert part.num_train == int(data["train_mask"].sum()) and part.num_test == int(data["test_mask"].sum())
        assert part.num_classes == int(data["y"].max()) + 1 and part.num_edges == whole.num_edges


def test_what_is_sent_fills_the_halo_in_order(whole):
    parts = cut(whole, assignment_of(whole.num_nodes, 4))
    for part in parts:
        for side, others in (
            (part.edges, [p.edges for p in parts]),
            (part.t_edges, [p.t_edges for p in parts]),
        ):
            received = torch.full_like(side.halo_ids, -1)
            for q, other in enumerate(others):
                rows = other.send_row[int(other.send_ptr[part.part]) : int(other.send_ptr[part.part + 1])]
                received[side.halo_part == q] = parts[q].node_ids[rows]
            assert torch.equal(received, side.halo_ids)
            assert not torch.isin(side.halo_ids, part.node_ids).any()
            assert torch.equal(side.col[side.col >= part.num_own].unique().long(), part.num_own + torch.arange(
                side.halo_ids.numel()))  # fmt: skip


def test_degrees_are_those_of_the_whole_graph(whole):
    for part in cut(whole, assignment_of(whole.num_nodes, 3)):
        ids = torch.cat([part.node_ids, part.halo_ids])
        assert torch.equal(part.in_degree.long(), whole.degree[ids])
        assert torch.equal(part.out_degree.long(), whole.out_degree[ids])
        for improved in (False, True):
            for loops in (False, True):
                degree = part.gcn_degree(improved, loops)
                factors = degree.pow(-0.5).masked_fill(degree == 0, 0.0)
                assert torch.equal(factors, factors_of(whole, improved, loops)[ids])


def test_symmetric_parts_share_both_sides():
    graph = symmetric_graph()
    part = cut(graph, assignment_of(graph.num_nodes, 3))[1]
    assert part.symmetric and part.t_col is part.col and part.t_send_row is part.send_row
    assert not cut(graphs.graph("power law"), assignment_of(400, 3))[1].symmetric


@pytest.mark.parametrize("codes", [False, True])
def test_merged_parts_are_those_of_the_coarser_assignment(whole, codes):
    data = data_of(whole)
    if codes:
        data["x"] = gs.compress(data["x"], gs.Scalar(bits=2))
    assignment = assignment_of(whole.num_nodes, 7)
    parts = cut(whole, assignment, **data)
    for ranks in {1, 2, 3, len(parts)} & set(range(1, len(parts) + 1)):
        bounds = groups(len(parts), ranks)
        rank_of = torch.searchsorted(torch.tensor(bounds), assignment, right=True) - 1
        for rank, expected in enumerate(cut(whole, rank_of, **data)):
            merged = merge(parts[bounds[rank] : bounds[rank + 1]], bounds)
            assert not differences(merged, expected)


def test_more_ranks_than_parts_are_refused():
    with pytest.raises(ValueError, match=r"`ranks` must lie between 1 and the number of parts, 4.*got 5"):
        groups(4, 5)


def test_parts_of_no_rank_are_not_merged():
    parts = cut(graphs.graph("power law"), assignment_of(400, 4))
    with pytest.raises(ValueError, match=r"all parts of one rank, in order.*got \[1, 2\]"):
        merge(parts[1:3], groups(4, 2))
    other = cut(symmetric_graph(), assignment_of(60, 4))
    with pytest.raises(ValueError, match="must be of one graph"):
        merge([parts[0], other[1]], groups(4, 2))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"assignment": torch.tensor([0, 0, 2, 2, 2])}, "part 1 of 3 is empty"),
        ({"assignment": torch.zeros(5, dtype=torch.int64), "num_parts": 2}, "part 1 of 2 is empty"),
        ({"assignment": torch.zeros(4, dtype=torch.int64)}, r"shape \[5\].*got \(4,\)"),
        ({"assignment": torch.zeros(5)}, "must be an integer tensor"),
        ({"assignment": torch.tensor([0, 1, -1, 0, 1])}, "got -1 to 1"),
        ({"x": torch.zeros(4, 2)}, r"`x` must have one row for each of the 5 nodes \(got 4 rows\)"),
        ({"y": torch.zeros(4)}, "`y` must be a tensor with one row for each of the 5 nodes"),
        ({"train_mask": torch.zeros(5, 2, dtype=torch.bool)}, r"`train_mask` must be a bool tensor.*choose one split"),
        ({"val_mask": torch.zeros(5)}, "`val_mask` must be a bool tensor"),
        ({"graph": graphs.graph("no nodes"), "assignment": torch.zeros(0, dtype=torch.int64)}, "must have nodes"),
        ({"graph": graphs.graph("bipartite, few sources")}, "as many sources as destinations"),
        ({"graph": torch.zeros(2, 3)}, r"`graph` must be a gs.Graph \(got Tensor\)"),
    ],
)
def test_what_cannot_be_cut_is_refused(change, message):
    given = {"graph": graphs.graph("no edges"), "assignment": torch.tensor([0, 1, 0, 1, 1])} | change
    with pytest.raises((ValueError, TypeError), match=message):
        cut(**given)


def test_two_level_codes_are_refused():
    graph = graphs.graph("star")
    codec = gs.TwoLevel(gs.Scalar(bits=4), gs.Scalar(bits=1))
    x = gs.compress(torch.randn(300, 4), codec, important=torch.arange(300) < 10)
    with pytest.raises(TypeError, match="needs a code with one matrix of rows"):
        cut(graph, assignment_of(300, 2), x=x)
