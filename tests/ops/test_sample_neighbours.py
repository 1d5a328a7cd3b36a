"""Sampled neighbours: the reference's to the bit for any number of threads, and drawn with the right probabilities."""

from __future__ import annotations

import math

import pytest
import torch
from torch.library import opcheck

from gossamer import Graph
from gossamer.ops import OPS
from support import graphs
from support.compare import same

SAMPLE, EDGES = OPS["sample_neighbours"], OPS["sample_edges"]
SQUARE = [name for name in graphs.GRAPHS if graphs.graph(name).num_src == graphs.graph(name).num_dst > 0]


def star(leaves: int) -> Graph:
    """Node 0 has an edge from every other."""
    return Graph(torch.tensor([0] + [leaves] * (leaves + 1)), torch.arange(1, leaves + 1).int(), leaves + 1)


def some_seeds(graph: Graph, count: int) -> torch.Tensor:
    return torch.randperm(graph.num_nodes, generator=torch.Generator().manual_seed(1))[:count]


def some_weights(graph: Graph, kind: str) -> torch.Tensor | None:
    weight = torch.rand(graph.num_edges, generator=torch.Generator().manual_seed(2))
    return {"none": None, "positive": weight + 0.01, "some zero": (weight - 0.5).clamp(min=0), "zero": weight * 0}[kind]


# The reference --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("weights", ["none", "positive", "some zero", "zero"])
@pytest.mark.parametrize("replace", [False, True])
@pytest.mark.parametrize("name", SQUARE)
def test_the_kernel_is_the_reference(name, replace, weights, threads):
    graph = graphs.graph(name)
    weight = some_weights(graph, weights)
    for fanouts in ([1], [3, 2], [-1, 2], [2, -1, 1000], [40, 50, 1]):
        for count in (1, max(1, graph.num_nodes // 3), graph.num_nodes):
            args = (graph.rowptr, graph.col, weight, some_seeds(graph, count), fanouts, replace, -7, True)
            assert same(SAMPLE(*args), SAMPLE.reference(*args))


@pytest.mark.parametrize("weights", ["none", "positive", "some zero"])
@pytest.mark.parametrize("replace", [False, True])
@pytest.mark.parametrize("name", graphs.GRAPHS)
def test_edges_of_rows_are_the_references(name, replace, weights, threads):
    """Of bipartite graphs, and of rows that occur twice."""
    graph = graphs.graph(name)
    rows = torch.arange(graph.num_dst).repeat(2)
    for fanout in (1, 4, -1):
        args = (graph.rowptr, graph.col, some_weights(graph, weights), rows, fanout, replace, 5)
        assert same(EDGES(*args), EDGES.reference(*args))


@pytest.mark.parametrize("fanout, leaves", [(32, 100), (33, 100), (99, 100), (33, 8 * 33**2), (33, 8 * 33**2 + 9)])
def test_many_of_a_row(fanout, leaves):
    """Which positions are taken is found in a sorted list or by a bit each, whatever is faster."""
    graph = star(leaves)
    for replace in (False, True):
        args = (graph.rowptr, graph.col, None, torch.tensor([0]), [fanout], replace, 3, True)
        assert same(SAMPLE(*args), SAMPLE.reference(*args))


def test_a_fanout_beyond_any_degree_takes_all_edges():
    graph = graphs.graph("power law")
    args = (graph.rowptr, graph.col, None, some_seeds(graph, 5))
    assert same(SAMPLE(*args, [2**63 - 1], False, 1, True), SAMPLE(*args, [-1], False, 1, True))


def test_many_edges_for_many_threads(threads):
    """Enough that each thread numbers nodes of its own."""
    graph = graphs.random_graph(20_000, 20_000, 400_000)
    args = (graph.rowptr, graph.col, None, some_seeds(graph, 300), [12, 9], False, 2**62, True)
    found = SAMPLE(*args)
    assert found.col.numel() > 5 * 4096 and same(found, SAMPLE.reference(*args))


@pytest.mark.parametrize("highest", [1, 40, 400, 2**31])
def test_whatever_is_in_the_scratch(highest, monkeypatch, threads):
    """The table of local ids is never cleared: it may hold those of other batches, or anything."""
    graph, rng = graphs.random_graph(400, 400, 9000), torch.Generator().manual_seed(highest)

    def garbage(shape, dtype):
        return torch.randint(0, highest, shape, generator=rng).to(dtype)

    args = (graph.rowptr, graph.col, None, some_seeds(graph, 40), [5, 20, -1], False, 0, True)
    want = SAMPLE.reference(*args)
    monkeypatch.setattr("gossamer.memory.empty", garbage)
    for _ in range(20):
        assert same(SAMPLE(*args), want)


def test_a_repeated_seed_whatever_is_in_the_scratch(monkeypatch):
    monkeypatch.setattr("gossamer.memory.empty", lambda shape, dtype: torch.zeros(shape, dtype=dtype))
    graph = graphs.graph("power law")
    assert SAMPLE(graph.rowptr, graph.col, None, torch.tensor([0, 5, 1]), [1], False, 0, False).n_id[1] == 5
    with pytest.raises(ValueError, match=r"got 5 at positions 1 and 3"):
        SAMPLE(graph.rowptr, graph.col, None, torch.tensor([0, 5, 1, 5]), [1], False, 0, False)


def test_strided_arguments():
    graph = graphs.graph("power law")
    seeds = torch.arange(40)
    twice = torch.stack([seeds, seeds], 1)[:, 0]
    args = (graph.rowptr, graph.col, None)
    assert same(SAMPLE(*args, twice, [3], False, 0, True), SAMPLE(*args, seeds, [3], False, 0, True))


# What a sample is -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("replace", [False, True])
@pytest.mark.parametrize("name", SQUARE)
def test_a_sample_is_a_part_of_the_graph(name, replace):
    graph, fanouts = graphs.graph(name), [4, 3]
    seeds = some_seeds(graph, max(1, graph.num_nodes // 4))
    found = SAMPLE(graph.rowptr, graph.col, None, seeds, fanouts, replace, 11, True)
    hops, nodes = found.nodes_per_hop.tolist(), found.n_id.tolist()
    assert nodes[: hops[0]] == seeds.tolist() and len(set(nodes)) == len(nodes) == sum(hops)
    assert found.rowptr.numel() == sum(hops[:-1]) + 1 and found.rowptr[-1] == found.col.numel()
    assert torch.equal(graph.col[found.e_id].long(), found.n_id[found.col.long()])
    hop_of = [hop for hop, count in enumerate(hops) for _ in range(count)]
    seen, edges = hops[0], [0] * len(fanouts)
    for row in range(found.rowptr.numel() - 1):
        begin, end = found.rowptr[row : row + 2].tolist()
        first, last = graph.rowptr[nodes[row] : nodes[row] + 2].tolist()
        e_id, fanout = found.e_id[begin:end].tolist(), fanouts[hop_of[row]]
        assert e_id == sorted(e_id) and all(first <= e < last for e in e_id)
        assert len(e_id) == (fanout if replace and last > first else min(fanout, last - first))
        assert replace or len(set(e_id)) == len(e_id)
        edges[hop_of[row]] += end - begin
        for node in found.col[begin:end].tolist():  # new ones are numbered in the order of the edges
            assert node <= seen and hop_of[node] <= hop_of[row] + 1
            seen += node == seen
    assert edges == found.edges_per_hop.tolist() and seen == len(nodes)


def test_all_neighbours():
    graph = graphs.graph("power law")
    found = SAMPLE(graph.rowptr, graph.col, None, torch.arange(400), [-1], False, 0, True)
    assert torch.equal(found.rowptr, graph.rowptr) and torch.equal(found.col, graph.col)
    assert torch.equal(found.e_id, torch.arange(graph.num_edges)) and found.nodes_per_hop.tolist() == [400, 0]


def test_what_is_drawn_for_a_node_does_not_depend_on_its_batch():
    graph = graphs.graph("power law")

    def drawn(seeds: list[int], seed: int = 0) -> list[list[int]]:
        found = SAMPLE(graph.rowptr, graph.col, None, torch.tensor(seeds), [5], False, seed, True)
        return [found.e_id[a:b].tolist() for a, b in zip(found.rowptr, found.rowptr[1:], strict=False)]

    assert drawn([7, 3, 0, 50])[2] == drawn([0])[0]
    assert drawn([0], seed=1) != drawn([0]) and drawn([0], seed=-1) != drawn([0])


# Probabilities --------------------------------------------------------------------------------------------------

# Every test draws the same words each time, so none of them fails by chance. The bound is far above what the largest of
# a few hundred normal deviates reaches, and far below that of a draw that is off by a few per cent.
DRAWS, DEVIATIONS = 20_000, 5.0


def frequencies(degree: int, fanout: int, replace: bool, weight: torch.Tensor | None = None) -> torch.Tensor:
    """How often each edge is drawn, over nodes with rows of the same weights; half of the draws have another seed."""
    count = DRAWS // 2
    rowptr, col = torch.arange(count + 1) * degree, torch.zeros(count * degree, dtype=torch.int32)
    value = None if weight is None else weight.repeat(count)
    found = [EDGES(rowptr, col, value, torch.arange(count), fanout, replace, seed).edge % degree for seed in (1, 2)]
    return torch.cat(found).bincount(minlength=degree)


def assert_probabilities(counts: torch.Tensor, probability: torch.Tensor, draws: int) -> None:
    deviation = (draws * probability * (1 - probability)).sqrt()
    z = (counts - draws * probability) / deviation
    assert z.abs().max() < DEVIATIONS, z


@pytest.mark.parametrize("degree, fanout", [(2, 1), (7, 3), (30, 29), (100, 10), (100, 60), (400, 40)])
def test_every_edge_is_drawn_as_often(degree, fanout):
    counts = frequencies(degree, fanout, replace=False)
    assert_probabilities(counts, torch.full((degree,), fanout / degree), DRAWS)


def test_every_pair_is_drawn_as_often():
    """Each subset alike, not only each edge."""
    degree, fanout, count = 6, 2, DRAWS
    rowptr, col = torch.arange(count + 1) * degree, torch.zeros(count * degree, dtype=torch.int32)
    pairs = EDGES(rowptr, col, None, torch.arange(count), fanout, False, 4).edge.view(count, 2) % degree
    counts = (pairs[:, 0] * degree + pairs[:, 1]).bincount(minlength=degree**2)
    counts = counts[counts > 0]
    assert counts.numel() == math.comb(degree, fanout)
    assert_probabilities(counts, torch.full((15,), 1 / 15), DRAWS)


@pytest.mark.parametrize("degree, fanout", [(1, 3), (7, 3), (100, 10)])
def test_with_replacement_every_edge_is_drawn_as_often(degree, fanout):
    counts = frequencies(degree, fanout, replace=True)
    if degree == 1:
        assert counts.tolist() == [DRAWS * fanout]
    else:
        assert_probabilities(counts, torch.full((degree,), 1 / degree), DRAWS * fanout)


WEIGHT = torch.tensor([1.0, 2.0, 0.0, 4.0, 0.5, 8.0])


def test_with_replacement_in_proportion_to_the_weights():
    counts, positive = frequencies(6, 4, True, WEIGHT), WEIGHT > 0
    assert counts[2] == 0
    assert_probabilities(counts[positive], (WEIGHT / WEIGHT.sum())[positive], DRAWS * 4)


def test_without_replacement_in_proportion_to_the_weights_that_are_left():
    """Two draws: p_i = w_i / W + sum over j of w_j / W * w_i / (W - w_j)."""
    one, total, positive = frequencies(6, 1, False, WEIGHT), WEIGHT.sum(), WEIGHT > 0
    first = WEIGHT / total
    assert one[2] == 0
    assert_probabilities(one[positive], first[positive], DRAWS)
    second = torch.stack(
        [sum(first[j] * WEIGHT[i] / (total - WEIGHT[j]) for j in range(6) if j != i) for i in range(6)]
    )
    assert_probabilities(frequencies(6, 2, False, WEIGHT)[positive], (first + second)[positive], DRAWS)


def test_draws_of_nodes_are_independent():
    """The edges of neighbouring nodes, and of one node under successive seeds, agree as often as by chance."""
    degree, count = 10, DRAWS
    rowptr, col = torch.arange(count + 1) * degree, torch.zeros(count * degree, dtype=torch.int32)
    one, other = (EDGES(rowptr, col, None, torch.arange(count), 1, False, seed).edge % degree for seed in (0, 1))
    for a, b in ((one[1:], one[:-1]), (one, other), (one[1:], other[:-1])):
        assert_probabilities((a == b).sum().view(1), torch.tensor([1 / degree]), a.numel())


# Both sides of the border ---------------------------------------------------------------------------------------


def test_opcheck():
    graph = graphs.graph("power law")
    for weight in (None, some_weights(graph, "positive")):
        opcheck(SAMPLE.overload, (graph.rowptr, graph.col, weight, torch.arange(5), [3, 2], False, 1, True))
        opcheck(EDGES.overload, (graph.rowptr, graph.col, weight, torch.arange(5), 3, True, 1))


ROWPTR, COL = torch.tensor([0, 2, 3, 3]), torch.tensor([1, 2, 0], dtype=torch.int32)
SEEDS, WEIGHTS = torch.tensor([0, 1]), torch.ones(3)


def spoiled(at: int, value: float) -> torch.Tensor:
    weight = WEIGHTS.clone()
    weight[at] = value
    return weight


@pytest.mark.parametrize(
    "changed, error, message",
    [
        ({"seeds": torch.tensor([0, 3, 4])}, IndexError, r"`seeds` must hold ids from 0 to 2.*got 3 at position 1"),
        ({"seeds": torch.tensor([-1])}, IndexError, r"`seeds`.*got -1 at position 0"),
        ({"seeds": SEEDS[:0]}, ValueError, "`seeds` must hold at least one node"),
        (
            {"seeds": torch.tensor([2, 1, 2])},
            ValueError,
            r"`seeds` must hold each node once \(got 2 at positions 0 and 2",
        ),
        ({"seeds": SEEDS.int()}, TypeError, "`seeds` must be int64"),
        ({"seeds": SEEDS.view(1, 2)}, ValueError, r"`seeds` must have the shape \[count\]"),
        ({"fanouts": []}, ValueError, "`fanouts` must hold one number per hop"),
        ({"fanouts": [3, 0]}, ValueError, r"`fanouts` must be at least 1, or -1.*got 0"),
        ({"fanouts": [-2]}, ValueError, r"`fanouts` must be at least 1, or -1.*got -2"),
        ({"fanouts": [1, 2**62], "replace": True}, ValueError, "`fanouts` must be at most 2147483647 with"),
        ({"weight": WEIGHTS[:2]}, ValueError, r"`weight`.*one number per edge"),
        ({"weight": WEIGHTS.double()}, TypeError, "`weight` must be float32"),
        ({"weight": spoiled(2, -1.0)}, ValueError, r"`weight` must be finite and not negative \(got -1.0 at edge 2\)"),
        ({"weight": spoiled(0, math.nan)}, ValueError, r"`weight`.*got nan at edge 0"),
        ({"weight": spoiled(1, math.inf)}, ValueError, r"`weight`.*got inf at edge 1"),
        ({"col": torch.tensor([1, 3, 0], dtype=torch.int32)}, IndexError, "`col`.*got 3 at position 1"),
        ({"rowptr": torch.tensor([0, 2, 1, 3])}, ValueError, "`rowptr` must ascend"),
        ({"rowptr": torch.empty(0, dtype=torch.int64)}, ValueError, "`rowptr`.*num_nodes"),
    ],
)
def test_bad_arguments(changed, error, message):
    args = {"rowptr": ROWPTR, "col": COL, "weight": WEIGHTS, "seeds": SEEDS, "fanouts": [2], "replace": False}
    args = [*(args | changed).values(), 0, False]
    for run in (SAMPLE, SAMPLE.reference):
        if run is SAMPLE or "each node once" in message or "finite" in message:  # other checks precede both
            with pytest.raises(error, match=message):
                run(*args)


def test_weights_of_other_rows_are_not_read():
    """Only rows that are expanded are: the others may be anything, and on disk."""
    args = (ROWPTR, COL, spoiled(2, math.nan), torch.tensor([0]), [1], False, 0, False)
    assert SAMPLE(*args).n_id[0] == 0
    with pytest.raises(ValueError, match=r"`weight`.*edge 2"):
        SAMPLE(*args[:3], torch.tensor([1]), *args[4:])


@pytest.mark.parametrize(
    "changed, error, message",
    [
        ({"rows": torch.tensor([3])}, IndexError, "`rows` must hold ids from 0 to 2"),
        ({"fanout": 0}, ValueError, "`fanout` must be at least 1, or -1"),
        ({"fanout": 2**62, "replace": True}, ValueError, r"`fanout` must be at most .*got 4611686018427387904"),
        ({"col": COL.long()}, TypeError, "`col` must be int32"),
        ({"rowptr": ROWPTR[:2]}, ValueError, "`rowptr` must ascend"),
    ],
)
def test_bad_arguments_of_edges(changed, error, message):
    args = {"rowptr": ROWPTR, "col": COL, "weight": None, "rows": SEEDS, "fanout": 2, "replace": False, "seed": 0}
    with pytest.raises(error, match=message):
        EDGES(*(args | changed).values())
