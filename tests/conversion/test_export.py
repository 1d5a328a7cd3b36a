"""From a model to a file of integers and back: the engine computes what the model does in evaluation."""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys

import pytest
import torch
from torch import nn
from torch_geometric import nn as pyg
from torch_geometric.data import Batch, Data

import gossamer as gs
from gossamer.conversion.calibration import agreement, sqnr
from support.compare import same_bits
from support.graphs import graph
from support.integer_models import CLASSES, COLUMNS, GRAPH_LEVEL, MODELS, OfData, Typed
from support.processes import run_python
from support.tensors import rand


def inputs(nodes: int = 200, columns: int = COLUMNS):
    g = graph("power law")
    edge_index = g.edge_index[:, (g.edge_index < nodes).all(0)]
    return rand(nodes, columns), edge_index


def warmed(model: nn.Module, *args) -> nn.Module:
    """With running statistics that are not those of the start."""
    model.train()
    with torch.no_grad():
        for _ in range(3):
            model(*args)
    return model.eval()


def assert_agrees(engine, model, args, given=None) -> None:
    """The engine's outputs, but for codes that float32 rounds the other way (at most one in 10,000)."""
    with torch.no_grad():
        want = model(*args)
    got = engine(*(args if given is None else given))
    assert got.shape == want.shape and got.dtype == torch.float32
    assert agreement(got, want) >= 0.99
    assert sqnr(want, got) > 25


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("name", MODELS)
def test_the_engine_computes_what_the_model_does(name, bits, tmp_path):
    torch.manual_seed(0)
    model, args = MODELS[name](), inputs()
    args = args[:1] if name == "sequence" else args
    warmed(model, *args)
    gs.calibrate(model, args, bits, check=False)
    path = tmp_path / "model.safetensors"
    gs.export(model, path)
    engine = gs.load(path)
    assert_agrees(engine, model.eval(), args, (*args, torch.empty(2, 0, dtype=torch.long))[:2])


@pytest.mark.parametrize("name", ["GCN, batch norm", "GraphSAGE", "GIN", "GCN by hand"])
def test_eight_bits_are_near_the_float_model(name):
    torch.manual_seed(0)
    model, args = MODELS[name](), inputs()
    warmed(model, *args)
    with torch.no_grad():
        want = model(*args)
    report = gs.calibrate(model, args)
    assert report.sqnr > 20 and sqnr(want, model.eval()(*args).detach()) == pytest.approx(report.sqnr, abs=1e-3)


@pytest.mark.parametrize("name", GRAPH_LEVEL)
def test_graph_level_models(name, tmp_path):
    torch.manual_seed(0)
    graphs = [Data(x=rand(n, COLUMNS, seed=n), edge_index=torch.randint(n, (2, 3 * n))) for n in range(3, 40)]
    joined = Batch.from_data_list(graphs)
    model, args = GRAPH_LEVEL[name](), (joined.x, joined.edge_index, joined.batch)
    warmed(model, *args)
    gs.calibrate(model, args)
    gs.export(model, tmp_path / "model.safetensors", args)
    engine = gs.load(tmp_path / "model.safetensors")
    assert_agrees(engine, model.eval(), args)
    one = graphs[5]
    assert torch.allclose(engine(one.x, one.edge_index), engine(*args)[5:6], atol=1e-5)  # without `batch`: one graph


def test_a_model_of_data(tmp_path):
    torch.manual_seed(0)
    x, edge_index = inputs()
    model, data = OfData().eval(), Data(x=x, edge_index=edge_index)
    gs.calibrate(model, [(data,)])
    gs.export(model, tmp_path / "m", (data,))
    assert_agrees(gs.load(tmp_path / "m"), model.eval(), (data,), (x, edge_index))


def test_node_types_in_place_of_features(tmp_path):
    torch.manual_seed(0)
    _, edge_index = inputs()
    types = torch.randint(9, (200, 1))
    model = Typed().eval()
    gs.calibrate(model, (types, edge_index))
    gs.export(model, tmp_path / "m", (types, edge_index))
    engine = gs.load(tmp_path / "m")
    assert_agrees(engine, model.eval(), (types, edge_index))
    with pytest.raises(IndexError, match="types from 0 to 8"):
        engine(types + 9, edge_index)


def test_layers_that_are_skipped_run_in_float32(tmp_path):
    torch.manual_seed(0)
    args = inputs()
    for name, skip in (
        ("GCN, batch norm", ("convs.0",)),
        ("GraphSAGE", ("convs.2",)),
        ("GIN", ("convs.1",)),
        ("residual", ("lin", "head")),
    ):
        model = warmed(MODELS[name](), *args)
        plain = gs.calibrate(copy.deepcopy(model), args)
        report = gs.calibrate(model, args, skip=skip)
        assert report.skipped == skip and report.sqnr > plain.sqnr - 0.5
        gs.export(model, tmp_path / "m", args)
        assert_agrees(gs.load(tmp_path / "m"), model.eval(), args)


@pytest.mark.parametrize("kind", ["gcn", "sage", "gin", "gat"])
@pytest.mark.parametrize("bits", [8, 4])
def test_what_was_trained_for_integers(kind, bits, tmp_path):
    """Codes differ from those of the float model by one at most, and hardly ever."""
    digits = gs.datasets.load("digits")
    torch.manual_seed(0)
    model = gs.training.models.build(kind, digits, layers=2, width=32, norm="batch", dropout=0.5)
    gs.train(model, digits, f"degree-quant-int{bits}", epochs=12, progress=False)
    model.eval()
    gs.export(model, tmp_path / "m", (digits.x, digits.edge_index))
    engine = gs.load(tmp_path / "m")
    with torch.no_grad():
        want = model(digits.x, digits.edge_index)
    got = engine(digits.x, digits.edge_index)
    assert agreement(got, want) >= 0.999
    assert float(((got - want).abs() > 1e-3 * want.abs().max()).float().mean()) < 0.01


def test_weighted_graphs(tmp_path):
    torch.manual_seed(0)
    x, edge_index = inputs()
    weight = torch.rand(edge_index.size(1)) + 0.1
    weighted = gs.Graph.from_edge_index(edge_index, 200, weight)
    for kind in (pyg.GCN, pyg.GraphSAGE):
        model = kind(COLUMNS, 20, 2, CLASSES).eval()
        gs.calibrate(model, (x, weighted))
        gs.export(model, tmp_path / "m", (x, weighted))
        engine = gs.load(tmp_path / "m")
        assert_agrees(engine, model.eval(), (x, weighted))
        with pytest.raises(ValueError, match="`graph` must have weights"):
            engine(x, edge_index)
    model = pyg.GCN(COLUMNS, 20, 2, CLASSES).eval()
    gs.calibrate(model, (x, edge_index))
    gs.export(model, tmp_path / "m")
    with pytest.raises(ValueError, match="`graph` must have no weights"):
        gs.load(tmp_path / "m")(x, weighted)


# What cannot be exported ------------------------------------------------------------------------------------------


def test_a_model_without_ranges_says_what_to_call(tmp_path):
    model = MODELS["GCN"]()
    for case in ("plain", "float32", "degree-quant-int8"):
        if case != "plain":
            gs.lighten_(model, case)
        with pytest.raises(gs.NotQuantised, match=r"gs.calibrate\(model, \(x, edge_index\)\)"):
            gs.export(model, tmp_path / "m")
    assert not (tmp_path / "m").exists()


class Branching(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = pyg.GCNConv(COLUMNS, CLASSES)

    def forward(self, x, edge_index):
        x = self.conv(x, edge_index)
        if x.sum() > 0:
            x = -x
        return x


class Unknown(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = pyg.GCNConv(COLUMNS, CLASSES)

    def forward(self, x, edge_index):
        return torch.cumsum(self.conv(x, edge_index), dim=1)


class Weighted(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = pyg.GCNConv(COLUMNS, CLASSES)

    def forward(self, x, edge_index, edge_weight=None):
        return self.conv(x, edge_index, edge_weight)


class Two(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = pyg.GCNConv(COLUMNS, CLASSES)

    def forward(self, x, edge_index):
        x = self.conv(x, edge_index)
        return x, x.relu()


@pytest.mark.parametrize(
    "model, message",
    [
        (Branching, r"the forward of Branching cannot be traced \(.*test_export.py:\d+\).*move it out of forward"),
        (
            Unknown,
            r"`cumsum` has no integer form \(.*test_export.py:\d+: return torch.cumsum\(.*known are convolutions",
        ),
        (Weighted, r"is called with edge_weight.*weights of edges from a gs.Graph"),
        (Two, r"must return one tensor.*return the logits alone"),
        (lambda: pyg.GCN(COLUMNS, 8, 2, CLASSES, improved=True), "improved=True, which has no integer form"),
        (lambda: pyg.GIN(COLUMNS, 8, 2, CLASSES, aggr="max"), r"convs.0 \(GINConv\) has aggr='max', which has no"),
        (lambda: pyg.GraphSAGE(COLUMNS, 8, 2, CLASSES, aggr="std"), "has aggr='std', which has no integer form"),
        (lambda: pyg.GraphSAGE(COLUMNS, 8, 2, CLASSES, normalize=True), "has normalize=True, which has no"),
        (lambda: pyg.GCN(COLUMNS, 8, 2, CLASSES, flow="target_to_source"), "has flow='target_to_source'"),
        (lambda: pyg.GCN(COLUMNS, 8, 2, CLASSES, jk="lstm"), "jumping knowledge by 'lstm' has no integer form"),
        (lambda: pyg.GAT(COLUMNS, 8, 2, CLASSES, heads=2, residual=True), "a residual"),
        (
            lambda: nn.Sequential(nn.Linear(COLUMNS, 8), nn.Softplus(), nn.Linear(8, CLASSES)),
            "a Softplus, which has no",
        ),
    ],
    ids=[
        "branch",
        "function",
        "weights",
        "two results",
        "improved",
        "GIN's maximum",
        "deviation",
        "normalize",
        "flow",
        "lstm",
        "residual",
        "softplus",
    ],
)
def test_what_cannot_be_captured_is_named(model, message, tmp_path):
    model, args = model().eval(), inputs()
    args = args[:1] if isinstance(model, nn.Sequential) else args
    with pytest.raises(gs.CannotCapture, match=message):
        gs.calibrate(model, args)
    assert not (tmp_path / "m").exists()


def test_names_of_modules_are_never_those_of_factors(tmp_path):
    class Short(nn.Module):
        def __init__(self):
            super().__init__()
            self.f0, self.f1, self.f2 = pyg.GCNConv(COLUMNS, 16), nn.Linear(16, 16), nn.Linear(16, CLASSES)

        def forward(self, x, edge_index):
            return self.f2(torch.relu(self.f1(torch.relu(self.f0(x, edge_index)))))

    model, args = Short().eval(), inputs()
    gs.calibrate(model, args, skip=("f1",))
    gs.export(model, tmp_path / "m")
    assert_agrees(gs.load(tmp_path / "m"), model, args)


@pytest.mark.parametrize("normalize", [True, False])
def test_a_gcn_in_float32_computes_what_the_model_does(normalize, tmp_path):
    model, args = pyg.GCN(COLUMNS, 16, 2, CLASSES, normalize=normalize).eval(), inputs()
    gs.calibrate(model, args, skip=("convs.0",))
    gs.export(model, tmp_path / "m")
    assert_agrees(gs.load(tmp_path / "m"), model, args)


def test_an_interrupted_export_leaves_the_old_file(tmp_path, monkeypatch):
    from gossamer.inference import file

    args, path = inputs(), tmp_path / "m"
    model = MODELS["GCN"]().eval()
    gs.calibrate(model, args)
    gs.export(model, path)
    before = path.read_bytes()

    def broken(*_, **__):
        raise OSError("no space left on device")

    monkeypatch.setattr(file, "save_file", broken)
    with pytest.raises(OSError, match="no space left"):
        gs.export(model, path)
    assert path.read_bytes() == before and os.listdir(tmp_path) == ["m"]


# The file ---------------------------------------------------------------------------------------------------------


def test_the_file_is_several_times_smaller(tmp_path):
    torch.manual_seed(0)
    x, edge_index = inputs(columns=128)
    model = pyg.GCN(128, 256, 3, 40, norm="batch_norm").eval()
    for bits, ratio in ((8, 3.8), (4, 7.0)):
        gs.calibrate(model, (x, edge_index), bits)
        exported = gs.export(model, tmp_path / "m")
        assert exported.nbytes == os.path.getsize(tmp_path / "m")
        torch.save(gs.restore_(copy.deepcopy(model)).state_dict(), tmp_path / "float32")
        assert exported.ratio >= ratio and os.path.getsize(tmp_path / "float32") / exported.nbytes >= ratio


def test_loading_needs_neither_pyg_nor_the_training_code(tmp_path):
    args, path = inputs(), tmp_path / "m"
    model = MODELS["GCN, batch norm"]().eval()
    gs.calibrate(model, args)
    gs.export(model, path)
    want = gs.load(path)(*args)
    torch.save((args, want), tmp_path / "io")
    found = run_python(
        f"""
import sys
sys.modules["torch_geometric"] = None  # importing it is an error
import torch, gossamer as gs
(x, edge_index), want = torch.load({str(tmp_path / "io")!r})
out = gs.load({str(path)!r})(x, gs.Graph.from_edge_index(edge_index, len(x)))
print(torch.equal(out, want), "gossamer.layers" in sys.modules, "gossamer.engine.choice" in sys.modules)
"""
    )
    assert found.stdout.split() == ["True", "False", "False"], found.stderr


def test_the_recipe_and_the_program_can_be_read_by_anyone(tmp_path):
    from safetensors import safe_open

    args = inputs()
    model = MODELS["GCN"]().eval()
    gs.calibrate(model, args)
    gs.export(model, tmp_path / "m")
    with safe_open(tmp_path / "m", "pt") as file:
        metadata = file.metadata()
    assert metadata["format"] == "gossamer.model.1"
    assert json.loads(metadata["recipe"])["training"]["bits"] == 8
    assert [step["op"] for step in json.loads(metadata["program"])["steps"]][:2] == ["quantise", "sum"]


def test_the_same_bits_after_kill_and_load(tmp_path):
    args = inputs()
    model = MODELS["GIN"]().eval()
    gs.calibrate(model, args)
    gs.export(model, tmp_path / "m")
    first = gs.load(tmp_path / "m")(*args)
    torch.save(args, tmp_path / "args")
    script = (
        f"import torch, gossamer as gs; a = torch.load({str(tmp_path / 'args')!r});"
        f"torch.save(gs.load({str(tmp_path / 'm')!r})(*a), {str(tmp_path / 'out')!r})"
    )
    subprocess.run([sys.executable, "-c", script], check=True)
    assert same_bits(torch.load(tmp_path / "out"), first)
