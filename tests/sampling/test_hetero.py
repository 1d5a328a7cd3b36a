"""NeighborLoader over several types of nodes and edges."""

from __future__ import annotations

import pytest
import torch
from torch_geometric.nn import HeteroConv, SAGEConv
from torch_geometric.utils import trim_to_layer

import gossamer as gs
from support.graphs import random_graph

COUNT = {"paper": 90, "author": 50, "place": 7}
WRITES, CITES, AT, BY = (
    ("author", "writes", "paper"),
    ("paper", "cites", "paper"),
    ("place", "hosts", "author"),
    ("paper", "written by", "author"),
)


def graph(kind, edges: int, seed: int, weighted: bool = False) -> gs.Graph:
    return random_graph(COUNT[kind[0]], COUNT[kind[2]], edges, weighted, seed=seed)


GRAPHS = {WRITES: graph(WRITES, 300, 1), CITES: graph(CITES, 500, 2, True), AT: graph(AT, 60, 3), BY: graph(BY, 300, 4)}
X = {kind: torch.arange(count * 2.0).view(count, 2) for kind, count in COUNT.items()}


def loader(**changed):
    seeds = ("paper", torch.arange(5, 65))
    given = {"graph": GRAPHS, "x": X, "fanouts": [4, 3], "seeds": seeds, "batch_size": 16, "shuffle": True}
    return gs.NeighborLoader(**(given | changed))


@pytest.mark.parametrize("replace", [False, True])
@pytest.mark.parametrize("fanouts", [[4], [4, 3], [-1, 2, 1], {WRITES: [1, 2], CITES: [3, 2], AT: [2, -1], BY: [2, 2]}])
def test_a_batch_is_a_part_of_the_graphs(fanouts, replace):
    y = torch.arange(90)
    batches = list(loader(fanouts=fanouts, replace=replace, y=y))
    seeds = torch.cat([batch["paper"].n_id[: batch["paper"].batch_size] for batch in batches])
    assert seeds.sort().values.tolist() == list(range(5, 65))
    hops = len(fanouts if isinstance(fanouts, list) else fanouts[AT])
    for batch in batches:
        assert torch.equal(batch["paper"].y, y[batch["paper"].n_id]) and "y" not in batch["author"]
        assert torch.equal(batch["paper"].input_id + 5, batch["paper"].n_id[: batch["paper"].batch_size])
        hop_of = {}
        for kind, count in COUNT.items():
            ids = batch[kind].n_id
            assert (ids.unique().numel() == ids.numel() and ids.numel() == 0) or ids.max() < count
            assert torch.equal(batch[kind].x, X[kind][ids]) and batch[kind].num_nodes == ids.numel()
            found = torch.tensor(batch[kind].num_sampled_nodes)
            assert found.numel() == hops + 1 and found.sum() == ids.numel()
            hop_of[kind] = torch.arange(hops + 1).repeat_interleave(found)
        for kind, whole in GRAPHS.items():
            row, col = batch[kind].edge_index
            pairs = torch.stack([batch[kind[0]].n_id[row], batch[kind[2]].n_id[col]])
            assert {tuple(pair) for pair in pairs.t().tolist()} <= {tuple(p) for p in whole.edge_index.t().tolist()}
            assert ("edge_weight" in batch[kind]) == (kind == CITES)
            edges = batch[kind].num_sampled_edges
            hop = torch.arange(hops).repeat_interleave(torch.tensor(edges))
            assert torch.equal(hop_of[kind[2]][col], hop)  # a node is expanded in the hop after it was found
            limit = fanouts if isinstance(fanouts, list) else fanouts[kind]
            for node in range(batch[kind[2]].num_nodes):
                at = int(hop_of[kind[2]][node])
                degree = int(whole.degree[batch[kind[2]].n_id[node]])
                want = (
                    0 if at == hops else degree if limit[at] < 0 else limit[at] if replace else min(limit[at], degree)
                )
                assert int((col == node).sum()) == (want if degree else 0)


def test_epochs_are_the_same(threads):
    one, other = loader(), loader(prefetch=0)
    for _ in range(2):
        for a, b in zip(one, other, strict=True):
            assert all(torch.equal(a[kind].n_id, b[kind].n_id) for kind in COUNT)
            assert all(torch.equal(a[kind].edge_index, b[kind].edge_index) for kind in GRAPHS)


def test_types_of_edges_draw_apart():
    """Two types with the same graph do not draw the same edges."""
    twice = {WRITES: GRAPHS[WRITES], ("author", "reviews", "paper"): GRAPHS[WRITES]}
    batch = next(iter(loader(graph=twice, x=None, fanouts=[2])))
    one, other = (batch[kind].edge_index for kind in twice)
    assert one.shape == other.shape and not torch.equal(one, other)


def test_trimmed_layers_give_the_same_rows_of_the_seeds():
    torch.manual_seed(0)
    back = ("author", "works at", "place")  # so that every type of node is updated
    kinds = {kind: g.with_value(None) for kind, g in GRAPHS.items()} | {back: GRAPHS[AT].t()}
    layers = [HeteroConv({kind: SAGEConv((width, width), 4) for kind in kinds}) for width in (2, 4)]
    for batch in loader(graph=kinds):
        x = whole = batch.x_dict
        edge_index = batch.edge_index_dict
        for number, layer in enumerate(layers):
            whole = layer(whole, batch.edge_index_dict)
            hops = batch.num_sampled_nodes_dict, batch.num_sampled_edges_dict
            x, edge_index, _ = trim_to_layer(number, *hops, x, edge_index)
            x = layer(x, edge_index)
        assert x["paper"].size(0) == sum(batch["paper"].num_sampled_nodes[:-1]) < whole["paper"].size(0)
        seeds = slice(batch["paper"].batch_size)
        torch.testing.assert_close(x["paper"][seeds], whole["paper"][seeds])


@pytest.mark.parametrize(
    "changed, error, message",
    [
        ({"graph": {}}, ValueError, "`graph` must hold at least one edge type"),
        ({"graph": {"cites": GRAPHS[CITES]}}, TypeError, "`graph` must have keys .*got 'cites'"),
        ({"graph": {CITES: X}}, TypeError, "`graph.*` must be a gs.Graph"),
        ({"graph": {CITES: GRAPHS[CITES], BY: GRAPHS[WRITES]}}, ValueError, "must have 90 nodes of type 'paper'"),
        ({"fanouts": {CITES: [2]}}, ValueError, "`fanouts` must have a list for every edge type"),
        ({"fanouts": {WRITES: [1], CITES: [3, 2], AT: [2], BY: [2]}}, ValueError, "`fanouts` must have as many hops"),
        ({"fanouts": [0]}, ValueError, "`fanouts` must be at least 1"),
        ({"seeds": torch.arange(3)}, TypeError, r"`seeds` must be \(node type, ids\)"),
        ({"seeds": ("book", [1])}, ValueError, "`seeds` must be of one of the node types .*got 'book'"),
        ({"seeds": ("place", [1, 7])}, IndexError, "`seeds` must hold ids from 0 to 6.*got 7 at position 1"),
        ({"x": X["paper"]}, TypeError, "`x` must be a dict by node type"),
        ({"x": {"book": X["paper"]}}, ValueError, "`x` must have node types of the graph"),
        ({"x": {"paper": X["author"]}}, ValueError, r"`x\['paper'\]` must have one row for each of the graph's 90"),
        ({"y": torch.ones(3)}, ValueError, r"`y\['paper'\]` must have one row"),
        ({"blocks": True}, ValueError, "`blocks` must be False for graphs of several edge types"),
        ({"weighted": True}, ValueError, "`weighted` needs edge weights, but .*writes.* has none"),
    ],
)
def test_bad_arguments(changed, error, message):
    with pytest.raises(error, match=message):
        loader(**changed)
