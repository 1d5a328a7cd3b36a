"""NeighborSampler: samples as graphs and as blocks, and under PyG's own loaders."""

from __future__ import annotations

import pickle

import pytest
import torch
from torch_geometric.data import Data
from torch_geometric.loader import LinkLoader, NodeLoader

import gossamer as gs
from gossamer.sampling import NeighborSampler, Sample
from support import graphs


def weighted_graph() -> gs.Graph:
    return graphs.random_graph(60, 60, 500, weighted=True)


def global_edges(sample: Sample) -> set[tuple[int, int]]:
    return {tuple(pair) for pair in sample.n_id[sample.edge_index].t().tolist()}


def test_a_sample_and_its_edges():
    graph = weighted_graph()
    sample = gs.NeighborSampler(graph, [4, 3]).sample(torch.tensor([5, 2, 9]), edges=True)
    assert sample.n_id[:3].tolist() == [5, 2, 9] and sample.nodes_per_hop[0] == 3
    assert torch.equal(sample.value, graph.value[sample.e_id])
    assert torch.equal(sample.n_id[sample.edge_index], graph.edge_index[:, sample.e_id])
    assert sum(sample.edges_per_hop) == sample.edge_index.size(1)
    assert NeighborSampler(graph.with_value(None), [4]).sample(torch.tensor([5])).value is None


def test_draws_are_a_function_of_seed_and_number():
    graph, seeds = graphs.graph("power law"), torch.arange(20)

    def edges(seed: int, draw: int) -> set[tuple[int, int]]:
        return global_edges(NeighborSampler(graph, [3, 3], seed=seed).sample(seeds, draw))

    assert edges(0, 0) == edges(0, 0)
    assert len({frozenset(edges(seed, draw)) for seed in (0, 1, -1) for draw in (0, 1)}) == 6


def test_weighted_samples_leave_out_zeros():
    graph = weighted_graph()
    value = graph.value.clone()
    value[::2] = 0
    sampler = NeighborSampler(graph.with_value(value), [5], weighted=True)
    sample = sampler.sample(torch.arange(60), edges=True)
    assert (sample.e_id % 2 == 1).all() and sample.e_id.numel() > 50
    assert repr(sampler) == (
        "NeighborSampler(Graph(60 nodes, 500 edges, weighted), fanouts=[5], weighted=True, seed=0)"
    )


# Blocks ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["power law", "star", "isolated nodes", "self-loops", "no edges", "one node"])
@pytest.mark.parametrize("fanouts", [[2], [3, 2], [-1, -1, -1, 2]])
def test_blocks_sum_what_the_edges_of_each_layer_sum(name, fanouts):
    graph = graphs.graph(name)
    sample = NeighborSampler(graph, fanouts).sample(torch.arange(graph.num_nodes).flip(0)[:9])
    edge_index, padded = sample.edge_index, sample.with_placeholders()
    blocks, x = padded.blocks(), torch.rand(padded.n_id.numel(), 5)
    assert len(blocks) == len(fanouts) and blocks.sizes[0] == padded.n_id.numel()
    assert blocks.sizes[-1] == sample.nodes_per_hop[0]
    placeholders = padded.n_id.numel() - sample.n_id.numel()
    assert (padded.n_id[sample.n_id.numel() :] == sample.n_id[0]).all()
    assert placeholders == sample.nodes_per_hop.count(0)
    for layer, block in enumerate(blocks):
        used = edge_index[:, : sum(sample.edges_per_hop[: len(fanouts) - layer])]
        want = torch.zeros(block.num_dst, 5).index_add(0, used[1], x[used[0]])
        torch.testing.assert_close(gs.ops.spmm(block, x), want)
        x = x[: block.num_dst]
    assert x.size(0) == min(9, graph.num_nodes)


def test_blocks_carry_weights():
    sample = NeighborSampler(weighted_graph(), [3, 3]).sample(torch.arange(4)).with_placeholders()
    assert torch.equal(sample.blocks()[0].value, sample.value)


# PyG's loaders --------------------------------------------------------------------------------------------------


def pyg_data() -> tuple[Data, gs.Graph]:
    edge_index = torch.randint(0, 80, (2, 600), generator=torch.Generator().manual_seed(0))
    data = Data(x=torch.arange(80.0).unsqueeze(1), edge_index=edge_index, edge_attr=torch.arange(600.0))
    return data, gs.Graph.from_edge_index(edge_index, 80)


def test_pygs_node_loader():
    data, graph = pyg_data()
    sampler = gs.NeighborSampler(graph, [3, 2]).as_pyg()
    batches = list(NodeLoader(data, node_sampler=sampler, input_nodes=torch.arange(10, 60), batch_size=16))
    assert [batch.batch_size for batch in batches] == [16, 16, 16, 2]
    assert torch.cat([batch.n_id[: batch.batch_size] for batch in batches]).tolist() == list(range(10, 60))
    for batch in batches:
        assert torch.equal(batch.x.squeeze(1), batch.n_id.float())
        assert torch.equal(data.edge_index[:, batch.e_id], batch.n_id[batch.edge_index])
        assert torch.equal(batch.edge_attr, batch.e_id.float())
        assert sum(batch.num_sampled_nodes) == batch.num_nodes and sum(batch.num_sampled_edges) == batch.num_edges


def test_pygs_loader_draws_by_torchs_seed():
    data, graph = pyg_data()
    loader = NodeLoader(data, node_sampler=gs.NeighborSampler(graph, [3]).as_pyg(), batch_size=80)

    def edges(seed: int) -> list[int]:
        torch.manual_seed(seed)
        return next(iter(loader)).e_id.tolist()

    assert edges(0) == edges(0) != edges(1)


def test_a_graph_in_another_order_of_edges_has_no_edge_attributes():
    """Merged or loaded, it does not know the order of `edge_index`: no attribute rather than that of another edge."""
    data, graph = pyg_data()
    sampler = gs.NeighborSampler(graph.with_self_loops(), [3]).as_pyg()
    batch = next(iter(NodeLoader(data, node_sampler=sampler, batch_size=5)))
    assert batch.edge_attr is None and "e_id" not in batch


@pytest.mark.parametrize("mode", ["binary", "triplet", None])
def test_pygs_link_loader(mode):
    data, graph = pyg_data()
    links = LinkLoader(
        data,
        link_sampler=gs.NeighborSampler(graph, [3, 2]).as_pyg(),
        edge_label_index=data.edge_index[:, :40],
        neg_sampling=mode,
        batch_size=16,
    )
    found = []
    for batch in links:
        if mode == "triplet":
            pairs = torch.stack([batch.src_index, batch.dst_pos_index])
        else:
            pairs = batch.edge_label_index[:, : batch.input_id.numel()]
            assert mode is None or batch.edge_label.tolist() == [1.0] * pairs.size(1) + [0.0] * pairs.size(1)
        found.append(batch.n_id[pairs])
        assert torch.equal(data.edge_index[:, batch.e_id], batch.n_id[batch.edge_index])
    assert torch.equal(torch.cat(found, 1), data.edge_index[:, :40])


def test_pygs_sampler_is_copied_to_workers():
    _, graph = pyg_data()
    copy = pickle.loads(pickle.dumps(gs.NeighborSampler(graph, [3], seed=4).as_pyg()))
    assert repr(copy) == "PyGSampler(NeighborSampler(Graph(80 nodes, 600 edges), fanouts=[3], seed=4))"


def test_pygs_times_are_refused():
    data, graph = pyg_data()
    sampler = gs.NeighborSampler(graph, [3]).as_pyg()
    loader = NodeLoader(data, node_sampler=sampler, input_time=torch.arange(80), batch_size=4)
    with pytest.raises(ValueError, match="`input_time` must be None"):
        next(iter(loader))


# Graphs on disk -------------------------------------------------------------------------------------------------


def test_a_graph_from_disk_is_sampled_without_another_check(tmp_path, monkeypatch):
    graph = weighted_graph()
    graph.save(tmp_path / "graph.safetensors")
    loaded = gs.Graph.load(tmp_path / "graph.safetensors", mmap=True)

    def checked(ids, limit):
        assert ids.numel() < 100, "all columns are read once more"
        return -1

    monkeypatch.setattr("gossamer.ops._checks.first_outside", checked)
    seeds = torch.arange(10)
    for weighted in (False, True):
        args = ([3, 2], False, weighted)
        found, want = (NeighborSampler(g, *args).sample(seeds, edges=True) for g in (loaded, graph))
        assert torch.equal(found.e_id, want.e_id) and torch.equal(found.n_id, want.n_id)


# Bad arguments --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "changed, error, message",
    [
        ({"graph": torch.zeros(2, 3)}, TypeError, r"`graph` must be a gs.Graph \(got Tensor\)"),
        ({"graph": graphs.small()}, ValueError, r"`graph` must have as many sources.*got 5 and 4"),
        ({"fanouts": []}, TypeError, "`fanouts` must be a list of whole numbers"),
        ({"fanouts": 10}, TypeError, "`fanouts` must be a list of whole numbers.*got 10"),
        ({"fanouts": [3, 0]}, ValueError, "`fanouts` must be at least 1, or -1.*got 0"),
        ({"fanouts": [-2]}, ValueError, "`fanouts` must be at least 1, or -1.*got -2"),
        ({"fanouts": [2.5]}, TypeError, "`fanouts` must hold whole numbers.*got 2.5"),
        ({"fanouts": [True]}, TypeError, "`fanouts` must hold whole numbers.*got True"),
        ({"weighted": True}, ValueError, "`weighted` needs edge weights"),
        ({"seed": 0.5}, TypeError, "`seed` must be a whole number"),
    ],
)
def test_bad_arguments(changed, error, message):
    with pytest.raises(error, match=message):
        gs.NeighborSampler(**({"graph": graphs.graph("star"), "fanouts": [2]} | changed))


@pytest.mark.parametrize(
    "seeds, error, message",
    [
        (torch.tensor([1, 300]), IndexError, "`seeds` must hold ids from 0 to 299.*got 300 at position 1"),
        (torch.tensor([], dtype=torch.int64), ValueError, "`seeds` must hold at least one node"),
        (torch.tensor([1, 1]), ValueError, "`seeds` must hold each node once.*seeds.unique"),
    ],
)
def test_bad_seeds(seeds, error, message):
    with pytest.raises(error, match=message):
        gs.NeighborSampler(graphs.graph("star"), [2]).sample(seeds)
