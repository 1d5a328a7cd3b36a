"""Ranges without training, and the report of what they cost."""

from __future__ import annotations

import json

import pytest
import torch
from torch import nn
from torch_geometric import nn as pyg
from torch_geometric.data import Data

import gossamer as gs
from gossamer.conversion.calibration import _shrink, sqnr
from gossamer.engine.fake_quant.quantiser import BINS, Quantiser
from support.graphs import graph
from support.tensors import rand


def inputs(nodes: int = 200, columns: int = 12):
    g = graph("power law")
    return rand(nodes, columns), g.edge_index[:, (g.edge_index < nodes).all(0)]


def test_the_range_of_least_error():
    """At four bits an outlier four times farther out than the rest is clipped; without one nothing is."""
    for outlier, shrinks in ((4.0, True), (None, False)):
        x = torch.rand(100_000, 1, generator=torch.Generator().manual_seed(0))
        if outlier is not None:
            x[0] = outlier
        quantiser = Quantiser(gs.QAT(4, observer="extremes"))
        quantiser(x)
        quantiser.counts = torch.zeros(BINS, dtype=torch.float64)
        quantiser(x)
        before = float(quantiser.high)
        _shrink(quantiser)
        assert (float(quantiser.high) < 0.5 * before) == shrinks
        assert float(quantiser.low) <= 0


def test_the_report_names_the_layer_that_hurts():
    """A layer whose weights have heavy tails, so that most are small beside the largest of their row."""
    torch.manual_seed(0)
    args = inputs()
    model = pyg.GCN(12, 16, 3, 5).eval()
    model.convs[1].lin.weight.data = torch.distributions.Cauchy(0.0, 1.0).sample((16, 16)) ** 3
    report = gs.calibrate(model, args)
    worst = min(report.layers, key=lambda layer: layer.sqnr)
    assert worst.name == "convs.1" and [layer.kind for layer in report.layers] == ["GCNConv"] * 3
    better = gs.calibrate(model, args, skip=("convs.1",))
    assert better.sqnr > report.sqnr and len(better.layers) == 2
    text = str(report)
    assert "convs.1" in text and "SQNR" in text and "all" in text
    assert json.loads(report.to_json())["bits"] == 8


@pytest.mark.parametrize("form", ["tuple", "data", "list"])
def test_what_data_may_be(form):
    x, edge_index = inputs()
    data = {"tuple": (x, edge_index), "data": Data(x=x, edge_index=edge_index)}
    data["list"] = [data["data"], (2 * x, edge_index)]
    model = pyg.GCN(12, 16, 2, 5).eval()
    assert gs.calibrate(model, data[form]).sqnr > 15


def test_bad_data():
    model = pyg.GCN(12, 16, 2, 5).eval()
    with pytest.raises(TypeError, match=r"`data` must be what the model is called with, as \(x, edge_index\).*got int"):
        gs.calibrate(model, 3)
    with pytest.raises(ValueError, match="`data` must hold at least one batch"):
        gs.calibrate(model, [])
    with pytest.raises(ValueError, match="`bits` must be 8 or 4"):
        gs.calibrate(model, inputs(), bits=16)


def test_the_model_stays_in_its_mode_and_keeps_its_weights():
    args = inputs()
    model = pyg.GCN(12, 16, 2, 5, norm="batch_norm", dropout=0.5).train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    gs.calibrate(model, args)
    assert model.training
    after = model.state_dict()
    assert all(torch.equal(value, after[name]) for name, value in before.items())


def test_columns_of_very_different_scale_are_equalised():
    """A price, a year and an id among normal columns cost no layer its precision."""
    torch.manual_seed(0)
    x, edge_index = inputs(columns=40)
    extra = [
        1000 * torch.rand(200, 1),
        torch.full((200, 1), 2020.0),
        torch.arange(200.0).unsqueeze(1),
        300 + 5 * rand(200, 1),
    ]
    x = torch.cat([x, *extra], 1)
    for kind in (pyg.GCN, pyg.GraphSAGE):
        model = kind(44, 16, 2, 5).eval()
        lin = model.convs[0].lin if kind is pyg.GCN else model.convs[0].lin_l
        with torch.no_grad():  # as training would have it: each column's part of the sum is alike
            for weight in (lin.weight, *((model.convs[0].lin_r.weight,) if kind is pyg.GraphSAGE else ())):
                weight /= x.abs().amax(0)
        assert gs.calibrate(model, (x, edge_index)).sqnr > 20


def test_sqnr():
    x = rand(100)
    assert sqnr(x, x) == float("inf")
    assert sqnr(x, 1.1 * x) == pytest.approx(20.0, abs=1e-3)


def test_a_linear_model_alone():
    model = nn.Sequential(nn.Linear(12, 5))
    assert gs.calibrate(model, (rand(50, 12),)).sqnr > 30
