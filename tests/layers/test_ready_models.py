"""PyG's ready models, over their options and on real graphs: the same numbers as PyG."""

from __future__ import annotations

import os

import pytest
import torch
from torch import nn
from torch_geometric import nn as pyg

import gossamer as gs
from support.pyg_models import assert_same

MODELS = {
    "gcn": (pyg.GCN, {}),
    "sage": (pyg.GraphSAGE, {}),
    "sage max": (pyg.GraphSAGE, {"aggr": "max"}),
    "gin": (pyg.GIN, {}),
    "gat": (pyg.GAT, {"heads": 2}),
    "gatv2": (pyg.GAT, {"heads": 2, "v2": True}),
}


def make(name, in_channels=12, hidden=8, layers=3, out=5, **options):
    kind, own = MODELS[name]
    return kind(in_channels, hidden, layers, out, **own, **options)


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize(
    "norm", [None, "batch_norm", "layer_norm", "instance_norm", "graph_norm", "pair_norm", nn.LayerNorm(8)]
)
def test_norms(model, norm, graph, paths):
    assert_same(make(model, norm=norm), *graph)


@pytest.mark.parametrize("model", ["gcn", "sage"])
@pytest.mark.parametrize("norm", ["batch_norm", "layer_norm", "instance_norm", "graph_norm", "pair_norm"])
@pytest.mark.parametrize("size", [None, 5])
def test_norms_of_several_graphs(model, norm, size, graph, fused):
    assert_same(make(model, norm=norm), *graph, batch=torch.arange(50) // 10, batch_size=size)


@pytest.mark.parametrize("model", ["gcn", "gin"])
@pytest.mark.parametrize("act", ["relu", "leaky_relu", "elu", "gelu", "tanh", "prelu", None])
@pytest.mark.parametrize("act_first", [True, False])
@pytest.mark.parametrize("norm", [None, "batch_norm"])
def test_activations(model, act, act_first, norm, graph, fused):
    assert_same(make(model, act=act, act_first=act_first, norm=norm), *graph)


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("jk", ["last", "cat", "max", "lstm"])
@pytest.mark.parametrize("out", [5, None])
def test_jumping_knowledge(model, jk, out, graph, fused):
    assert_same(make(model, out=out, jk=jk, norm="batch_norm"), *graph)


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("layers", [1, 2])
def test_few_layers(model, layers, graph, fused):
    assert_same(make(model, layers=layers, hidden=6, out=6, norm="batch_norm"), *graph)


@pytest.mark.parametrize("weight", ["fixed", "learned"])
def test_edge_weights(weight, graph):
    assert_same(make("gcn"), *graph, torch.rand(300, requires_grad=weight == "learned"))


def test_edge_features(graph):
    assert_same(make("gat", edge_dim=3), *graph, edge_attr=torch.randn(300, 3, requires_grad=True))


@pytest.mark.parametrize("model", ["gat", "gatv2"])
def test_edge_features_that_have_no_kernel(model, graph):
    report = assert_same(make(model, edge_dim=3), *graph, edge_attr=torch.randn(300, 3))
    if model == "gatv2":
        assert any(
            row.kind == "GATv2Conv" and row.became is None and "edge features" in row.note for row in report.rows
        )


@pytest.mark.parametrize("options", [{}, {"norm": None}, {"plain_last": False}, {"act": "elu", "act_first": True}])
@pytest.mark.parametrize("norm", ["batch_norm", "layer_norm"])
def test_mlp(options, norm, paths):
    assert_same(pyg.MLP([12, 8, 8, 5], **({"norm": norm} | options)), torch.randn(50, 12, requires_grad=True))


def test_mlp_gives_its_embedding(fused):
    mlp = pyg.MLP([12, 8, 5]).eval()
    x = torch.randn(50, 12)
    want = mlp(x, return_emb=True)
    gs.lighten_(mlp)
    torch.testing.assert_close(mlp(x, return_emb=True), want)


def test_trimmed_layers_of_a_sampled_neighbourhood(graph):
    """PyG's own loop, which cuts edges and nodes between layers, on our convolutions."""
    model = make("sage", layers=2).eval()
    edges = torch.tensor([[1, 2, 3, 4], [0, 0, 1, 2]])
    x = torch.randn(5, 12)
    sampled = {"num_sampled_nodes_per_hop": [1, 2, 2], "num_sampled_edges_per_hop": [2, 2]}
    want = model(x, edges, **sampled)
    gs.lighten_(model)
    torch.testing.assert_close(model(x, edges, **sampled), want)


def test_dropout_between_layers_scales_what_it_keeps(graph, fused):
    """The mean over many masks of a linear model is the model without dropout."""
    model = pyg.GCN(12, 64, 2, 5, act=None, dropout=0.3)
    gs.lighten_(model)
    x, edge_index = graph[0].detach(), graph[1]
    with torch.no_grad():
        draws = torch.stack([model(x, edge_index) for _ in range(400)]).double()
        want = model.eval()(x, edge_index)
    z = (draws.mean(0) - want) / (draws.std(0) / 400**0.5 + 1e-12)
    assert z.abs().max() < 6 and 0.7 < z.square().mean() < 1.3


def test_attention_dropout_is_unbiased(graph):
    conv = pyg.GATConv(12, 16, dropout=0.4)
    gs.lighten_(conv)
    x, edge_index = graph[0].detach(), graph[1]
    with torch.no_grad():
        draws = torch.stack([conv(x, edge_index) for _ in range(400)]).double()
        want = conv.eval()(x, edge_index)
    z = (draws.mean(0) - want) / (draws.std(0) / 400**0.5 + 1e-12)
    assert z.abs().max() < 6 and 0.7 < z.square().mean() < 1.3


# Graphs that people have ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", MODELS)
def test_generated_graph(model):
    data = gs.datasets.load("arxiv-like", scale=0.005)
    columns = data.x[:, :16].clone().float()
    assert_same(make(model, 16, norm="batch_norm"), columns, data.edge_index)


@pytest.mark.skipif("GOSSAMER_DATA" not in os.environ, reason="GOSSAMER_DATA names no folder with real graphs")
@pytest.mark.parametrize("name", ["cora", "tolokers"])
@pytest.mark.parametrize("model", ["gcn", "sage", "gat"])
def test_real_graph(name, model):
    data = gs.datasets.load(name)
    keep = data.edge_index[:, (data.edge_index < 3000).all(0)]
    columns = data.x[:3000, :32].clone().float()
    assert_same(make(model, columns.size(1), layers=2, norm="batch_norm"), columns, keep, train=True)
