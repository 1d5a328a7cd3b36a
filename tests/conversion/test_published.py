"""Models that were trained by the published plan: the integer engine computes what they do in evaluation."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch_geometric import nn as pyg
from torch_geometric.data import Batch, Data

import gossamer as gs
from gossamer.conversion.calibration import agreement, sqnr
from gossamer.conversion.capture import capture
from gossamer.conversion.lower import lower
from gossamer.inference import Engine
from gossamer.inference.program import BadProgram, Messages, Program
from support.blocks import batch
from support.graphs import graph
from support.integer_models import CLASSES, COLUMNS, GRAPH_LEVEL, MODELS
from support.tensors import rand

HAVE_FORM = [name for name in MODELS if "GAT" not in name]


def inputs(nodes: int = 200):
    g = graph("power law")
    return rand(nodes, COLUMNS), g.edge_index[:, (g.edge_index < nodes).all(0)]


def trained(model, args, setting=None, steps=3):
    """With ranges and running statistics, in evaluation."""
    gs.lighten_(model, gs.Recipe(training=setting or gs.DegreeQuant.published()))
    model.train()
    with torch.no_grad():
        for _ in range(steps):
            model(*args)
    return model.eval()


def engine_of(model, tmp_path):
    gs.export(model, tmp_path / "m")
    return gs.load(tmp_path / "m")


def results(model, args):
    with torch.no_grad():
        return model(*args)


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("name", HAVE_FORM)
def test_the_engine_computes_what_the_model_does(name, bits, tmp_path):
    torch.manual_seed(0)
    args = inputs()[:1] if name == "sequence" else inputs()
    model = trained(MODELS[name](), args, gs.DegreeQuant.published(bits))
    want = results(model, args)
    got = engine_of(model, tmp_path)(*(*args, torch.empty(2, 0, dtype=torch.long))[:2])
    assert got.shape == want.shape and agreement(got, want) >= 0.99
    assert sqnr(want, got) > 35  # a code apart, now and then


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize(
    "kind, setting",
    [
        ("gcn", gs.DegreeQuant.published),
        ("gin", gs.DegreeQuant.published),
        ("gcn", lambda bits: gs.QAT(bits, plan="published")),
        ("sage", gs.QAT.published),
        ("sage", gs.DegreeQuant.published),
        ("gin", lambda bits: gs.DegreeQuant(bits, plan="published")),
    ],
)
def test_what_was_trained(kind, setting, bits, tmp_path):
    """Codes differ by one at most, and hardly ever."""
    digits = gs.datasets.load("digits")
    torch.manual_seed(0)
    model = gs.training.models.build(kind, digits, layers=2, width=16, norm="batch", dropout=0.5)
    gs.train(model, digits, gs.Recipe(training=setting(bits)), epochs=6, progress=False)
    want = results(model.eval(), (digits.x, digits.edge_index))
    gs.export(model, tmp_path / "m", (digits.x, digits.edge_index))
    got = gs.load(tmp_path / "m")(digits.x, digits.edge_index)
    assert agreement(got, want) >= 0.999
    assert float(((got - want).abs() > 1e-3 * want.abs().max()).float().mean()) < 0.005


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("kind", [pyg.GCNConv, pyg.SAGEConv, pyg.GraphConv])
def test_weighted_graphs(kind, bits, tmp_path):
    torch.manual_seed(0)
    x, edge_index = inputs()
    weight = torch.randn(edge_index.size(1))  # of both signs
    weight = weight.abs() if kind is pyg.GCNConv else weight
    args = x, gs.Graph.from_edge_index(edge_index, 200, weight)
    model = trained(kind(COLUMNS, CLASSES), args, gs.QAT(bits, observer="extremes", plan="published"))
    want, engine = results(model, args), engine_of(model, tmp_path)
    assert sqnr(want, engine(*args)) > 35
    if kind is not pyg.GCNConv:
        with pytest.raises(ValueError, match="`graph` must have weights"):
            engine(x, edge_index)


@pytest.mark.parametrize("name", GRAPH_LEVEL)
def test_graph_level_models(name, tmp_path):
    torch.manual_seed(0)
    graphs = [Data(x=rand(n, COLUMNS, seed=n), edge_index=torch.randint(n, (2, 3 * n))) for n in range(3, 40)]
    joined = Batch.from_data_list(graphs)
    args = joined.x, joined.edge_index, joined.batch
    model = trained(GRAPH_LEVEL[name](), args)
    assert sqnr(results(model, args), engine_of(model, tmp_path)(*args)) > 30


@pytest.mark.parametrize("name", ["GCN", "GraphSAGE", "GIN"])
def test_blocks_of_a_sampled_batch(name, tmp_path):
    torch.manual_seed(0)
    model = trained(getattr(pyg, name)(COLUMNS, 16, 2, CLASSES), inputs())
    sampled = batch((61, 23, 7))
    args = rand(sampled.num_nodes, COLUMNS), sampled.blocks
    assert sqnr(results(model, args), engine_of(model, tmp_path)(*args)) > 30


@pytest.mark.parametrize("name", ["GCN", "GCN, without loops", "GraphSAGE", "GraphSAGE, max", "GIN"])
def test_nasty_graphs(name):
    torch.manual_seed(0)
    model = trained(MODELS[name](), inputs())
    engine = Engine(*lower(model, capture(model)))
    for shape in (
        "no edges",
        "one node",
        "one node, one loop",
        "isolated nodes",
        "self-loops",
        "duplicate edges",
        "star",
    ):
        g = graph(shape)
        args = rand(g.num_src, COLUMNS), g.edge_index
        assert sqnr(results(model, args), engine(*args)) > 25, shape


def test_layers_that_are_skipped_run_in_float32(tmp_path):
    torch.manual_seed(0)
    for name, skip in (
        ("GCN", "convs.0"),
        ("GIN", "convs.1"),
        ("GIN", "convs.0.nn.lins.0"),
        ("GIN by hand", "second.nn.0"),
    ):
        setting = gs.DegreeQuant(8, plan="published", skip=(skip,))
        model = trained(MODELS[name](), inputs(), setting)
        assert sqnr(results(model, inputs()), engine_of(model, tmp_path)(*inputs())) > 30


def test_every_message_is_requantised_where_edges_have_norms():
    """GIN's and SAGE's messages have no factor: rounding rows of nodes is the same."""
    found = {}
    for name in ("GCN", "GIN", "GraphSAGE", "GCN, without loops"):
        model = trained(MODELS[name](), inputs())
        program, _ = lower(model, capture(model))
        found[name] = [step.norm for step in program if isinstance(step, Messages)]
    assert found == {"GCN": ["gcn"] * 3, "GIN": [], "GraphSAGE": [], "GCN, without loops": ["bare"] * 2}


# What has no form -------------------------------------------------------------------------------------------------


def test_what_cannot_be_exported_is_named(tmp_path):
    x, edge_index = inputs()
    weighted = gs.Graph.from_edge_index(edge_index, 200, torch.rand(edge_index.size(1)) + 0.1)
    gin = pyg.GINConv(nn.Sequential(nn.Linear(COLUMNS, CLASSES)))
    by_max = pyg.GINConv(nn.Sequential(nn.Linear(COLUMNS, CLASSES)), aggr="max")
    for model, given, message in (
        (
            pyg.GAT(COLUMNS, 8, 2, CLASSES),
            edge_index,
            r"with plan='fused'.*got GATConv with plan='published'.*train it",
        ),
        (nn.ModuleList([gin])[0], weighted, r"without weights.*got weights\); train it so"),
        (by_max, edge_index, "has aggr='max', which has no integer form"),
        (pyg.SAGEConv(COLUMNS, CLASSES, aggr="max"), weighted, "maxima by weights of edges, which has no integer form"),
    ):
        model = trained(model, (x, given))
        with pytest.raises(gs.CannotCapture, match=message):
            gs.export(model, tmp_path / "m")
    model = pyg.GCN(COLUMNS, 16, 2, CLASSES)
    gs.lighten_(model, gs.Recipe(training=gs.DegreeQuant.published()))
    with pytest.raises(gs.NotQuantised, match="has no range yet"):
        gs.export(model, tmp_path / "m")
    assert not (tmp_path / "m").exists()


@pytest.mark.parametrize(
    "change, message",
    [
        ({"norm": "gin"}, "no norm 'gin' of edges"),
        ({"message": {"mult": "f0"}}, "must become codes, by one factor alone"),
        ({"edges": {"mult": "f0", "bits": 8, "slope": 0.0}}, "must become codes, by one factor alone"),
        ({"edges": {"mult": "f0", "bits": 7}}, "a result of 7 bits"),
        ({"scale": "missing"}, "there is no tensor 'missing'"),
        ({"scale": "convs.0"}, "`convs.0` must be one finite float32 number"),
        ({"message": 3}, "the program does not have the form|is 3"),
    ],
)
def test_a_program_that_cannot_be_run(change, message):
    torch.manual_seed(0)
    model = trained(MODELS["GCN"](), inputs())
    program, tensors = lower(model, capture(model))
    plain = copy.deepcopy(program.to_plain())
    assert Program.from_plain(plain) == program
    step = next(step for step in plain["steps"] if step["op"] == "messages")
    step |= change
    with pytest.raises(BadProgram, match=message):
        Engine(Program.from_plain(plain), tensors)
