"""Which nodes are protected: by degree, by graph, by what a batch was sampled from."""

from __future__ import annotations

import pytest
import torch
from torch_geometric import nn as pyg
from torch_geometric.data import Batch, Data

import gossamer as gs
from gossamer.engine.fake_quant.protection import BATCH, RANK, degree_rank, note_batch, note_call, protected, rank_of
from gossamer.state import ModelState
from support.graphs import graph


def test_the_rank_of_a_degree():
    degree = torch.tensor([3, 1, 1, 0, 7])
    assert torch.allclose(degree_rank(degree), torch.tensor([0.8, 0.6, 0.6, 0.2, 1.0]))


def test_ranks_rise_with_degrees_and_do_not_depend_on_the_order():
    degree = graph("power law").degree
    rank = degree_rank(degree)
    order = degree.argsort()
    assert (rank[order].diff() >= 0).all() and float(rank.max()) == 1.0
    assert all(len(rank[degree == d].unique()) == 1 for d in degree.unique())
    shuffled = torch.randperm(len(degree))
    assert torch.equal(degree_rank(degree[shuffled]), rank[shuffled])


def test_ranks_within_each_graph_of_a_batch():
    degrees = [torch.tensor([3, 1, 1]), torch.tensor([5]), torch.tensor([0, 0, 2, 9])]
    batch = torch.repeat_interleave(torch.arange(3), torch.tensor([3, 1, 4]))
    want = torch.cat([degree_rank(degree) for degree in degrees])
    assert torch.equal(degree_rank(torch.cat(degrees), batch), want)


def test_the_highest_degree_has_the_highest_probability():
    rank = degree_rank(graph("star").degree)
    always = torch.stack([protected(rank, 0.0, 1.0, 5, k) for k in range(50)])
    assert always[:, 0].all() and not protected(rank, 0.0, 0.0, 5, 0).any()


def test_masks_are_bernoulli_and_repeat():
    """Each node's share over 10,000 forwards passes a z-test; the share of all is that of the formula."""
    degree, draws = graph("power law").degree, 10_000
    rank = degree_rank(degree)
    low, high = 0.1, 0.4
    p = low + (high - low) * rank
    found = torch.zeros(len(rank))
    for k in range(draws):
        found += protected(rank, low, high, 7, k)
    z = (found / draws - p) / (p * (1 - p) / draws).sqrt()
    assert (z.abs() < 5).all()
    shares = torch.bincount(degree).double() / len(degree)
    expected = low + (high - low) * (1 + float(shares.square().sum())) / 2
    assert float(found.mean() / draws) == pytest.approx(expected, abs=0.002)
    assert torch.equal(protected(rank, low, high, 7, 3), protected(rank, low, high, 7, 3))
    assert not torch.equal(protected(rank, low, high, 7, 3), protected(rank, low, high, 8, 3))


def test_sampled_batches_take_the_ranks_of_the_whole_graph():
    whole = graph("power law")
    want = degree_rank(whole.degree)
    for blocks in (True, False):
        loader = gs.NeighborLoader(whole, torch.zeros(400, 1), [4, 4], torch.arange(400), 50, blocks=blocks)
        for batch in loader:
            state = ModelState(None)
            note_batch(state, batch.blocks if blocks else batch.edge_index, None)
            assert torch.equal(state.drawn[RANK], want[batch.n_id])


def test_blocks_with_all_edges_take_them_too():
    from gossamer.graph.graph import Block

    whole = graph("power law")
    nodes = torch.arange(400).flip(0)
    part = gs.Graph(torch.tensor([0, 0]), torch.empty(0, dtype=torch.int32), 400, block=Block(whole, nodes))
    assert torch.equal(rank_of(part), degree_rank(whole.degree)[nodes])


@pytest.mark.parametrize("by_name", [True, False])
def test_a_models_arguments_are_found(by_name):
    class Net(torch.nn.Module):
        def forward(self, x, edge_index, batch=None):
            return x

    class OfData(torch.nn.Module):
        def forward(self, data):
            return data.x

    graphs = [Data(x=torch.zeros(3, 1), edge_index=torch.tensor([[0, 1], [1, 2]])) for _ in range(2)]
    joined = Batch.from_data_list(graphs)
    state = ModelState(None)
    given = (joined.x, joined.edge_index), {"batch": joined.batch}
    given = given if by_name else ((joined.x, joined.edge_index, joined.batch), {})
    note_call(state, Net.forward, *given)
    assert state.drawn[BATCH] is joined.batch
    note_call(state, OfData.forward, (joined,), {})
    assert torch.equal(state.drawn[BATCH], joined.batch)
    note_call(state, Net.forward, (joined.x, joined.edge_index), {})
    assert state.drawn[BATCH] is None


def test_layers_of_a_model_share_their_mask_and_a_setting_parts_them():
    torch.manual_seed(0)
    data = gs.datasets.load("digits")
    model = pyg.GCN(data.num_features, 16, 2, data.num_classes)
    for mask, same in (("forward", True), ("layer", False)):
        gs.lighten_(model, gs.Recipe(training=gs.DegreeQuant(8, low=0.3, high=0.6, mask=mask)))
        model.train()
        found = []
        for conv in model.convs:
            engine = conv._gossamer.engine
            adjacency = conv._adjacency(data.x, data.edge_index, None)
            found.append(engine.masks(adjacency)[0])
        assert torch.equal(*found) == same


def test_evaluation_protects_nobody():
    data = gs.datasets.load("digits")
    model = pyg.GCN(data.num_features, 16, 2, data.num_classes)
    gs.lighten_(model, gs.Recipe(training=gs.DegreeQuant(8, low=1.0, high=1.0)))
    conv = model.convs[0]
    adjacency = conv._adjacency(data.x, data.edge_index, None)
    assert conv._gossamer.engine.masks(adjacency)[0].all()
    model.eval()
    assert conv._gossamer.engine.masks(adjacency) == (None, None)
