"""Training on sampled batches: the same loop, scores of all neighbours, exact resumption, features in few bits."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from torch import nn
from torch_geometric.nn import GCN, GraphSAGE, SAGEConv, TransformerConv

import gossamer as gs
from gossamer.training.examples import Sampling
from gossamer.training.sampled import SampledNodes
from support.paths import int8_for_any_size

FANOUTS = [5, 5]


@pytest.fixture(scope="module")
def data():
    return gs.datasets.load("digits")


def sage(data, layers=2, width=16):
    torch.manual_seed(0)
    return GraphSAGE(data.num_features, width, layers, data.num_classes, dropout=0.2)


def gcn(data):
    torch.manual_seed(0)
    return GCN(data.num_features, 16, 2, data.num_classes)


class Own(nn.Module):
    """Written by hand: no `inference_layers`, so that scores come from one pass over the whole graph."""

    def __init__(self, data):
        super().__init__()
        self.first, self.second = SAGEConv(data.num_features, 16), SAGEConv(16, data.num_classes)

    def forward(self, x, edge_index):
        return self.second(self.first(x, edge_index).relu(), edge_index)


def trained(model, data, recipe="float32", **options):
    settings = {"epochs": 3, "batch_size": 32, "fanouts": FANOUTS, "progress": False} | options
    return gs.train(model, data, recipe, **settings)


@pytest.mark.parametrize("recipe", [None, "float32", "tango", "exact-int2", "feather", "rsc"])
def test_learns_under_every_recipe(data, recipe):
    result = trained(sage(data), data, recipe, epochs=15)
    assert result.test > 0.85
    assert result.history["loss"][-1] < result.history["loss"][0]


@pytest.mark.parametrize("recipe", [None, "float32"])
def test_models_written_by_hand(data, recipe):
    torch.manual_seed(0)
    assert trained(Own(data), data, recipe, epochs=15).test > 0.85


class Mixed(Own):
    """Its second convolution is PyG's, also in a lightened model."""

    def __init__(self, data):
        super().__init__(data)
        self.second = TransformerConv(16, data.num_classes)


def test_convolutions_of_pyg_in_a_lightened_model(data):
    torch.manual_seed(0)
    assert trained(Mixed(data), data, "float32", epochs=15).test > 0.85


@pytest.mark.parametrize("recipe", [None, "float32"])
@pytest.mark.parametrize("fanouts", [FANOUTS, None])
def test_weights_of_the_data_are_not_used(data, recipe, fanouts):
    weighted = copy.copy(data)
    weighted.edge_weight = torch.rand(data.num_edges)
    runs = [trained(gcn(given), given, recipe, fanouts=fanouts, epochs=2) for given in (data, weighted)]
    assert runs[0].history["loss"] == runs[1].history["loss"]
    assert runs[0].test == runs[1].test


def test_weights_of_a_graph_are_used_or_refused(data):
    graph = gs.Graph.from_edge_index(data.edge_index, data.num_nodes, torch.rand(data.num_edges))
    weighted = trained(gcn(data), data, "float32", adjacency=graph, epochs=2)
    assert weighted.history["loss"] != trained(gcn(data), data, "float32", epochs=2).history["loss"]
    with pytest.raises(ValueError, match="`adjacency` must have no weights where the model gets a sampled"):
        trained(gcn(data), data, None, adjacency=graph)
    trained(gcn(data), data, None, adjacency=graph.with_value(None), epochs=1)


class Skipping(Own):
    """Adds its input to what the layer makes of it: on blocks that would have fewer rows."""

    def __init__(self, data):
        super().__init__(data)
        self.skip = nn.Linear(data.num_features, 16)

    def forward(self, x, edge_index):
        return self.second((self.first(x, edge_index) + self.skip(x)).relu(), edge_index)


@pytest.mark.parametrize("recipe", [None, "float32", "tango"])
def test_skip_connections_of_a_model_written_by_hand(data, recipe):
    torch.manual_seed(0)
    assert trained(Skipping(data), data, recipe, epochs=8).test > 0.7


def test_scores_are_those_of_all_neighbours(data):
    model = sage(data)
    found = trained(model, data, epochs=1)
    model.eval()
    out = model(data.x, data.edge_index)
    right = (out.argmax(1) == data.y)[data.test_mask]
    assert found.test == pytest.approx(float(right.float().mean()), abs=1e-6)


def test_scores_of_sampled_neighbours(data):
    full = trained(sage(data), data, epochs=4)
    sampled = trained(sage(data), data, epochs=4, eval_fanouts=[8, 8])
    every = trained(sage(data), data, epochs=4, eval_fanouts=[-1, -1])
    assert sampled.history["loss"] == full.history["loss"]  # nothing is drawn for scores
    assert sampled.test == pytest.approx(full.test, abs=0.1)
    assert every.test == pytest.approx(full.test, abs=1e-6)


@int8_for_any_size()  # what is smaller runs as torch's own products, whose bits depend on the threads
def test_the_same_seed_gives_the_same_bits_whatever_the_threads(data):
    def weights(threads):
        torch.set_num_threads(threads)
        model = sage(data)
        trained(model, data, "tango", epochs=2)
        return model.state_dict()

    one, two = weights(1), weights(2)
    assert all(torch.equal(one[name], two[name]) for name in one)


def test_a_stopped_run_resumes_to_the_same_bits(data, tmp_path):
    class Stop(Exception):
        pass

    def stop_after_two(epoch):
        if epoch.number == 2:
            raise Stop

    whole, resumed = sage(data), sage(data)
    options = {"epochs": 5, "checkpoint_seconds": 0}
    trained(whole, data, "bifeat-1bit", out=tmp_path / "whole", **options)
    with pytest.raises(Stop):
        trained(resumed, data, "bifeat-1bit", out=tmp_path / "run", on_epoch=stop_after_two, **options)
    resumed = sage(data)
    trained(resumed, data, "bifeat-1bit", out=tmp_path / "run", resume=True, **options)
    expected, found = whole.state_dict(), resumed.state_dict()
    assert all(torch.equal(expected[name], found[name]) for name in expected)


@pytest.mark.parametrize("codec", [gs.recipes["bifeat-1bit"].features, gs.recipes["bifeat-vq"].features], ids=repr)
def test_features_in_few_bits(data, codec):
    before = data.x.clone()
    recipe = gs.Recipe(features=codec)
    assert trained(sage(data), data, recipe, epochs=15).test > 0.7
    full = gs.train(sage(data), data, recipe, epochs=30, progress=False)  # the whole graph at once
    assert full.test > 0.7
    assert isinstance(data.x, torch.Tensor) and torch.equal(data.x, before)


def test_features_from_a_store_or_a_memory_map(data, tmp_path):
    np.save(tmp_path / "x.npy", data.x.numpy())
    mapped, stored = copy.copy(data), copy.copy(data)
    mapped.x = np.load(tmp_path / "x.npy", mmap_mode="r")
    stored.x = gs.compress(data.x, gs.recipes["bifeat-1bit"].features, progress=False)
    plain = trained(sage(data), data)
    assert trained(sage(data), mapped).history["loss"] == plain.history["loss"]
    assert trained(sage(data), stored).history["loss"] == trained(sage(data), data, "bifeat-1bit").history["loss"]


def test_batches_are_those_of_the_loader(data):
    examples = SampledNodes(data, None, Sampling(30, (3, 3)))
    model = sage(data)
    plain = list(examples.batches(model))
    assert sum(len(batch.y) for batch in plain) == int(data.train_mask.sum())
    assert "num_sampled_nodes_per_hop" in plain[0].named
    gs.lighten_(model)
    light = list(examples.batches(model))
    assert isinstance(light[0].inputs[1], gs.Blocks) and not light[0].named
    assert not torch.equal(light[0].y, plain[0].y)  # another epoch, another order


def test_bad_input(data):
    with pytest.raises(
        ValueError, match=r"`fanouts` must have one number for each of the model's 2 layers \(got \[5\]"
    ):
        trained(sage(data), data, fanouts=[5])
    with pytest.raises(ValueError, match=r"`fanouts` must"):
        trained(sage(data), data, fanouts=[5, 0])
    with pytest.raises(ValueError, match="`eval_fanouts` needs `fanouts`"):
        trained(sage(data), data, fanouts=None, eval_fanouts=[5, 5])
    with pytest.raises(TypeError, match=r"`adjacency` must be a gs.Graph where neighbours are sampled \(got Tensor\)"):
        trained(sage(data), data, adjacency=data.edge_index)
    with pytest.raises(ValueError, match="`fanouts` must be left out for a list of graphs"):
        gs.train(sage(data), [data], fanouts=[5, 5])
    with pytest.raises(ValueError, match="`features` of a recipe must be left out for a list of graphs"):
        gs.train(sage(data), [data], "bifeat-1bit")
    stored = copy.copy(data)
    stored.x = gs.compress(data.x, gs.recipes["bifeat-vq"].features, progress=False)
    with pytest.raises(
        ValueError, match=r"`data.x` must be encoded as the recipe says, by Scalar.*it is encoded by Pr"
    ):
        trained(sage(data), stored, "bifeat-1bit")
