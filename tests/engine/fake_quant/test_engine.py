"""What layers compute while they are trained for integers, and what they leave behind."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch_geometric import nn as pyg

import gossamer as gs
from gossamer.engine.fake_quant.engine import Sites, symmetric
from gossamer.engine.fake_quant.quantiser import Quantiser
from support.compare import same_bits
from support.graphs import graph
from support.tensors import rand

EXACT = gs.QAT(8, observer="extremes", gradient="straight-through")


def data(nodes=60, columns=12, seed=0):
    g = graph("power law")
    edge_index = g.edge_index[:, (g.edge_index < nodes).all(0)]
    return rand(nodes, columns, seed=seed), edge_index


CONVS = {
    "gcn": lambda i, o: pyg.GCNConv(i, o),
    "gcn without loops": lambda i, o: pyg.GCNConv(i, o, add_self_loops=False),
    "gcn, not normalised": lambda i, o: pyg.GCNConv(i, o, normalize=False),
    "sage": lambda i, o: pyg.SAGEConv(i, o),
    "sage max": lambda i, o: pyg.SAGEConv(i, o, aggr="max"),
    "sage without root": lambda i, o: pyg.SAGEConv(i, o, root_weight=False),
    "graph": lambda i, o: pyg.GraphConv(i, o),
    "gin": lambda i, o: pyg.GINConv(nn.Sequential(nn.Linear(i, o), nn.ReLU(), nn.Linear(o, o)), train_eps=True),
    "gat": lambda i, o: pyg.GATConv(i, o // 4, 4),
    "gat mean": lambda i, o: pyg.GATConv(i, o, 3, concat=False),
    "linear": lambda i, o: nn.Linear(i, o),
}
SHAPES = [(12, 20), (20, 12)]


def called(conv, x, edge_index):
    return conv(x) if isinstance(conv, nn.Linear) else conv(x, edge_index)


@pytest.mark.parametrize("columns, outs", SHAPES)
@pytest.mark.parametrize("name", CONVS)
def test_eight_bits_are_near_float32(name, columns, outs):
    torch.manual_seed(0)
    x, edge_index = data(columns=columns)
    conv = CONVS[name](columns, outs)
    want = called(conv, x, edge_index).detach()
    gs.lighten_(conv, gs.Recipe(training=EXACT))
    out = called(conv, x, edge_index)
    error = float((out.detach() - want).norm() / want.norm())
    assert 0 < error < 0.03
    out.square().sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in conv.parameters())


@pytest.mark.parametrize("name", CONVS)
def test_gradients_pass_straight_through(name):
    """Within rounding of those in float32; those of attention vectors are differences between neighbours."""
    torch.manual_seed(0)
    x, edge_index = data()
    conv = CONVS[name](12, 20)
    plain = copy.deepcopy(conv)
    gs.lighten_(conv, gs.Recipe(training=EXACT))
    grads = []
    for each in (plain, conv):
        leaf = x.clone().requires_grad_()
        called(each, leaf, edge_index).square().sum().backward()
        grads.append([leaf.grad, *(p.grad for p in each.parameters())])
    for want, got in zip(*grads, strict=True):
        near = 0.5 if want.dim() == 3 else 0.08
        assert float((got - want).norm()) <= near * float(want.norm()) + 1e-4


@pytest.mark.parametrize("columns, outs", SHAPES)
def test_gcn_is_its_formula(columns, outs):
    """Multiply first: the message is one tensor of nodes. Aggregate first: the input is scaled before it is rounded."""
    torch.manual_seed(0)
    x, edge_index = data(columns=columns)
    conv = pyg.GCNConv(columns, outs)
    gs.lighten_(conv, gs.Recipe(training=EXACT))
    conv(x, edge_index)
    conv.eval()
    sites, weight = conv.quantisers, symmetric(conv.lin.weight.detach(), 8)
    nodes = len(x)
    dense = torch.zeros(nodes, nodes).index_put((edge_index[1], edge_index[0]), torch.ones(edge_index.size(1)), True)
    dense.fill_diagonal_(1.0)
    factor = dense.sum(1).rsqrt()
    if columns < outs:
        inner = sites["input"](x * factor.unsqueeze(1))
        want = sites["aggregate"](factor.unsqueeze(1) * (dense @ inner)) @ weight.t() + conv.bias
    else:
        h = sites["message"]((sites["input"](x) @ weight.t()) * factor.unsqueeze(1))
        want = factor.unsqueeze(1) * (dense @ h) + conv.bias
    out = conv(x, edge_index)
    assert torch.allclose(out, want, atol=1e-4)


def test_weights_of_edges_are_rounded():
    x, edge_index = data()
    weight = torch.rand(edge_index.size(1), generator=torch.Generator().manual_seed(0)) + 0.1
    conv = pyg.GCNConv(12, 8)
    want = conv(x, edge_index, weight).detach()
    gs.lighten_(conv, gs.Recipe(training=EXACT))
    out = conv(x, edge_index, weight).detach()
    assert conv.quantisers["edges"].is_ready
    assert 0 < float((out - want).norm() / want.norm()) < 0.03


def test_protected_rows_are_not_rounded():
    """With every node protected a layer rounds its weights alone."""
    x, edge_index = data()
    conv = pyg.GCNConv(12, 8, bias=False)
    gs.lighten_(conv, gs.Recipe(training=gs.DegreeQuant(8, low=0.0, high=0.0, observer="extremes")))
    conv(x, edge_index)  # ranges
    gs_all = gs.Recipe(training=gs.DegreeQuant(8, low=1.0, high=1.0, observer="extremes"))
    other = pyg.GCNConv(12, 8, bias=False)
    other.load_state_dict({k: v for k, v in conv.state_dict().items() if "quantisers" not in k})
    weight = symmetric(conv.lin.weight.detach(), 8)
    other.lin.weight.data.copy_(weight)
    want = other(x, edge_index)
    gs.lighten_(other, gs_all)
    assert torch.allclose(other(x, edge_index), want, atol=1e-5)


def test_the_model_is_as_before_after_restore():
    data_ = gs.datasets.load("digits")
    model = pyg.GIN(data_.num_features, 16, 2, data_.num_classes, norm="batch_norm")
    keys, count = list(model.state_dict()), len(list(model.modules()))
    gs.lighten_(model, "degree-quant-int8")
    added = set(model.state_dict()) - set(keys)
    assert added and all(".quantisers." in name for name in added)
    assert any(isinstance(m, Sites) for m in model.modules())
    gs.restore_(model)
    assert list(model.state_dict()) == keys and len(list(model.modules())) == count


def test_names_in_skip_stay_in_float32():
    x, edge_index = data()
    model = pyg.GCN(12, 16, 2, 4)
    report = gs.lighten_(model, gs.Recipe(training=gs.QAT(8, skip=("convs.0",))))
    assert next(row for row in report.rows if row.name == "convs.0").note == "float32: as the recipe says"
    model(x, edge_index)
    assert not any(name.startswith("convs.0.") for name, m in model.named_modules() if isinstance(m, Quantiser))
    with pytest.raises(ValueError, match=r"`skip` must name modules of the model \(there is no 'conv'\)"):
        gs.lighten_(model, gs.Recipe(training=gs.QAT(8, skip=("conv",))))


def test_convolutions_without_an_integer_form_stay_in_float32():
    model = nn.ModuleList([pyg.GATv2Conv(12, 4, 2), pyg.GCN2Conv(12, 0.1), pyg.GCNConv(12, 4)])
    report = gs.lighten_(model, gs.Recipe(training=gs.QAT(8)))
    notes = {row.name: row.note for row in report.rows}
    assert notes["0"] == notes["1"] == "float32: it has no integer form" and notes["2"] == ""


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("kind", ["gcn", "sage", "gin", "gat"])
def test_a_ready_model_learns(kind, bits):
    digits = gs.datasets.load("digits")
    torch.manual_seed(0)
    model = gs.training.models.build(kind, digits, layers=2, width=32, norm="batch", dropout=0.2)
    recipe = gs.recipes[f"degree-quant-int{bits}"]
    result = gs.train(model, digits, recipe, epochs=25, lr=0.01, progress=False)
    assert result.test > (0.9 if bits == 8 else 0.85)


@pytest.mark.parametrize("kind", ["gcn", "sage"])
def test_a_price_among_the_columns_costs_little(kind):
    """Columns are equalised, and the weights of wide ones are rounded apart."""
    digits = copy.copy(gs.datasets.load("digits"))
    price = 1000 * torch.rand(digits.num_nodes, 1, generator=torch.Generator().manual_seed(0))
    digits.x = torch.cat([digits.x, price], 1)
    scores = {}
    for recipe in ("float32", "degree-quant-int8"):
        torch.manual_seed(0)
        model = gs.training.models.build(kind, digits, layers=2, width=32, norm="batch", dropout=0.0)
        scores[recipe] = gs.train(model, digits, recipe, epochs=120, lr=0.01, progress=False).test
    assert scores["degree-quant-int8"] > scores["float32"] - 0.02


def test_training_resumes_to_the_same_bits(tmp_path):
    digits = gs.datasets.load("digits")

    def run(epochs, out, resume=False):
        torch.manual_seed(0)
        model = gs.training.models.build("gcn", digits, layers=2, width=16, dropout=0.5)
        gs.train(model, digits, "degree-quant-int4", epochs=epochs, out=out, resume=resume, progress=False,
                 checkpoint_seconds=0)  # fmt: skip
        return model.state_dict()

    whole = run(24, tmp_path / "whole")
    run(11, tmp_path / "parts")
    parts = run(24, tmp_path / "parts", resume=True)
    assert whole.keys() == parts.keys() and all(same_bits(whole[name], parts[name]) for name in whole)


def test_a_copy_and_a_state_dict_go_on_alike():
    x, edge_index = data()
    model = pyg.GCN(12, 16, 2, 4, dropout=0.0)
    gs.lighten_(model, "degree-quant-int8")
    for _ in range(3):
        model(x, edge_index)
    twin = copy.deepcopy(model)
    other = pyg.GCN(12, 16, 2, 4, dropout=0.0)
    gs.lighten_(other, "degree-quant-int8")
    other.load_state_dict(model.state_dict())
    outs = [each.eval()(x, edge_index) for each in (model, twin, other)]
    assert same_bits(outs[0], outs[1]) and same_bits(outs[0], outs[2])
