"""The published plan: every convolution is the formula of the paper, rounded site by site."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch_geometric import nn as pyg

import gossamer as gs
from gossamer.engine.fake_quant.engine import Quantising, Sites, symmetric
from gossamer.engine.fake_quant.published import FakeQuantPublished
from gossamer.engine.fake_quant.quantiser import Quantiser
from gossamer.state import state_of
from support.blocks import batch
from support.compare import same_bits
from support.graphs import GRAPHS, graph
from support.tensors import rand

EXACT = gs.QAT(8, "straight-through", "extremes", plan="published")
COLUMNS, OUTS = 12, 20


def data(nodes=60, columns=COLUMNS):
    g = graph("power law")
    edge_index = g.edge_index[:, (g.edge_index < nodes).all(0)]
    return rand(nodes, columns), edge_index[:, edge_index[0] != edge_index[1]]


def gin(columns, outs):
    return pyg.GINConv(nn.Sequential(nn.Linear(columns, outs), nn.ReLU(), nn.Linear(outs, outs)), 0.3, train_eps=True)


CONVS = {
    "gcn": lambda: pyg.GCNConv(COLUMNS, OUTS),
    "gcn, fewer outputs": lambda: pyg.GCNConv(COLUMNS, 5),
    "gcn without loops": lambda: pyg.GCNConv(COLUMNS, OUTS, add_self_loops=False),
    "gcn, not normalised": lambda: pyg.GCNConv(COLUMNS, OUTS, normalize=False),
    "sage": lambda: pyg.SAGEConv(COLUMNS, OUTS),
    "sage max": lambda: pyg.SAGEConv(COLUMNS, OUTS, aggr="max"),
    "sage without root": lambda: pyg.SAGEConv(COLUMNS, OUTS, root_weight=False),
    "graph": lambda: pyg.GraphConv(COLUMNS, OUTS),
    "gin": lambda: gin(COLUMNS, OUTS),
    "gin, mlp": lambda: pyg.GINConv(pyg.MLP([COLUMNS, OUTS, OUTS], norm=None)),
    "gat": lambda: pyg.GATConv(COLUMNS, OUTS // 4, 4),
    "gat mean": lambda: pyg.GATConv(COLUMNS, OUTS, 3, concat=False),
    "gat residual": lambda: pyg.GATConv(COLUMNS, 5, 2, residual=True),
    "linear": lambda: nn.Linear(COLUMNS, OUTS),
}


def called(conv, x, edge_index):
    return conv(x) if isinstance(conv, nn.Linear) else conv(x, edge_index)


def ready(conv, setting=EXACT, steps=1):
    """Lightened, with ranges, in evaluation; and what it was called with."""
    x, edge_index = data()
    gs.lighten_(conv, gs.Recipe(training=setting))
    for _ in range(steps):
        called(conv, x, edge_index)
    return conv.eval(), x, edge_index


def quantisers(module):
    return {name: m for name, m in module.named_modules() if isinstance(m, Quantiser)}


# Formulas ---------------------------------------------------------------------------------------------------------


def test_gcn_is_its_formula():
    torch.manual_seed(0)
    conv, x, edge_index = ready(pyg.GCNConv(COLUMNS, 5))
    site, nodes = conv.quantisers, len(x)
    loops = torch.arange(nodes)
    src, dst = torch.cat([edge_index, torch.stack([loops, loops])], 1)
    factor = torch.bincount(dst, minlength=nodes).float().rsqrt()
    norm = site["norm"]((factor[dst] * factor[src]).unsqueeze(1))
    h = site["features"](site["input"](x) @ symmetric(conv.lin.weight.detach(), 8).t())
    sums = torch.zeros(nodes, 5).index_add(0, dst, site["message"](norm * h[src]))
    want = site["update"](site["aggregate"](sums) + conv.bias)
    assert_same_codes(conv(x, edge_index), want, site["update"])


def test_gat_is_its_formula():
    torch.manual_seed(0)
    conv, x, edge_index = ready(pyg.GATConv(COLUMNS, 4, 3))
    site, nodes = conv.quantisers, len(x)
    loops = torch.arange(nodes)
    src, dst = torch.cat([edge_index, torch.stack([loops, loops])], 1)
    h = site["features"](site["input"](x) @ symmetric(conv.lin.weight.detach(), 8).t()).view(nodes, 3, 4)
    a_src, a_dst = (symmetric(att.detach()[0], 8) for att in (conv.att_src, conv.att_dst))
    logits = site["logits"]((h * a_src).sum(2)[src] + (h * a_dst).sum(2)[dst])
    e = functional.leaky_relu(logits, 0.2).exp()
    p = e / torch.zeros(nodes, 3).index_add(0, dst, e)[dst]
    messages = site["message"]((p.unsqueeze(2) * h[src]).flatten(1))
    sums = site["aggregate"](torch.zeros(nodes, 12).index_add(0, dst, messages))
    assert_same_codes(conv(x, edge_index), site["update"](sums + conv.bias), site["update"])


def test_gin_is_its_formula():
    torch.manual_seed(0)
    conv, x, (src, dst) = ready(gin(COLUMNS, OUTS))
    site = conv.quantisers
    sums = site["aggregate"](torch.zeros_like(x).index_add(0, dst, site["message"](x[src])))
    h = (1 + conv.eps) * x + sums
    for k, lin in enumerate((conv.nn[0], conv.nn[2])):
        h = h if k == 0 else h.relu()
        own = lin.quantisers
        h = own["output"](own["input"](h) @ symmetric(lin.weight.detach(), 8).t() + lin.bias)
    assert set(site._modules) == {"norm", "message", "aggregate", "update"}
    assert own["input"].levels()[1] == 0  # of ReLU's results zero is the lowest code
    assert_same_codes(conv(x, torch.stack([src, dst])), site["update"](h), site["update"])


def test_sage_is_its_formula():
    torch.manual_seed(0)
    conv, x, edge_index = ready(pyg.SAGEConv(COLUMNS, OUTS))
    (src, dst), site, nodes = edge_index, conv.quantisers, len(x)
    inner = site["input"](x)
    degree = torch.bincount(dst, minlength=nodes).clamp(min=1).unsqueeze(1)
    means = site["aggregate"](torch.zeros_like(x).index_add(0, dst, inner[src]) / degree)
    products = [symmetric(lin.weight.detach(), 8).t() for lin in (conv.lin_l, conv.lin_r)]
    want = site["update"](means @ products[0] + inner @ products[1] + conv.lin_l.bias)
    assert_same_codes(conv(x, edge_index), want, site["update"])
    assert not site["message"].is_ready  # its messages are rounded already


@pytest.mark.parametrize("kind", ["sum", "max"])
def test_weights_of_edges_are_norms(kind):
    torch.manual_seed(0)
    x, edge_index = data()
    src, dst = edge_index
    weight = torch.rand(len(src)) + 0.1
    conv = pyg.GraphConv(COLUMNS, OUTS, aggr=kind)
    gs.lighten_(conv, gs.Recipe(training=EXACT))
    conv(x, edge_index, weight)
    site, inner = conv.eval().quantisers, conv.quantisers["input"](x)
    messages = site["message"](site["norm"](weight.unsqueeze(1)) * inner[src])
    reduce = {"sum": "sum", "max": "amax"}[kind]
    index = dst.unsqueeze(1).expand_as(messages)
    sums = site["aggregate"](torch.zeros_like(x).scatter_reduce(0, index, messages, reduce, include_self=False))
    products = [symmetric(lin.weight.detach(), 8).t() for lin in (conv.lin_rel, conv.lin_root)]
    want = site["update"](sums @ products[0] + inner @ products[1] + conv.lin_rel.bias)
    assert_same_codes(conv(x, edge_index, weight), want, site["update"])


def test_weights_of_edges_have_a_gradient():
    x, edge_index = data()
    weight = (torch.rand(edge_index.size(1)) + 0.1).requires_grad_()
    for conv in (pyg.GCNConv(COLUMNS, OUTS), pyg.GraphConv(COLUMNS, OUTS)):
        plain = copy.deepcopy(conv)
        gs.lighten_(conv, gs.Recipe(training=EXACT))
        want, got = (
            torch.autograd.grad(each(x, edge_index, weight).square().sum(), weight)[0] for each in (plain, conv)
        )
        assert float((got - want).norm()) <= 0.1 * float(want.norm())


def assert_same_codes(got, want, quantiser):
    """The same codes, but where a sum in another order is rounded the other way."""
    step = float(quantiser.levels()[0])
    assert got.shape == want.shape
    off = ((got - want) / step).abs()
    assert off.max() < 3 and float((off > 0.5).float().mean()) < 0.003


# Near float32 -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CONVS)
def test_eight_bits_are_near_float32_and_so_are_gradients(name):
    """Those of attention vectors are differences between neighbours."""
    torch.manual_seed(0)
    x, edge_index = data()
    conv = CONVS[name]()
    plain = copy.deepcopy(conv)
    gs.lighten_(conv, gs.Recipe(training=EXACT))
    outs, grads = [], []
    for each in (plain, conv):
        leaf = x.clone().requires_grad_()
        out = called(each, leaf, edge_index)
        out.square().sum().backward()
        outs.append(out.detach())
        grads.append([leaf.grad, *(p.grad for p in each.parameters())])
    assert 0 < float((outs[1] - outs[0]).norm() / outs[0].norm()) < 0.04
    for want, got in zip(*grads, strict=True):
        near = 0.5 if want.dim() == 3 else 0.08
        assert float((got - want).norm()) <= near * float(want.norm()) + 1e-3


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("kind", ["gcn", "sage", "gin", "gat"])
def test_a_ready_model_learns(kind, bits):
    digits = gs.datasets.load("digits")
    torch.manual_seed(0)
    model = gs.training.models.build(kind, digits, layers=2, width=32, norm="batch", dropout=0.0)
    setting = gs.DegreeQuant(bits, plan="published")
    result = gs.train(model, digits, gs.Recipe(training=setting), epochs=25, lr=0.01, progress=False)
    assert result.test > (0.85 if bits == 8 else 0.5)


# Protection -------------------------------------------------------------------------------------------------------


def dq(low, high, observer="extremes"):
    return gs.DegreeQuant(8, "straight-through", observer, plan="published", low=low, high=high)


@pytest.mark.parametrize(
    "name", [name for name in CONVS if "gin" not in name and name not in ("linear", "gat residual")]
)
def test_protected_rows_are_not_rounded(name):
    """With every node protected a layer rounds what is rounded for everybody: weights, attention vectors and norms."""
    torch.manual_seed(0)
    x, edge_index = data()
    conv = CONVS[name]()
    plain = copy.deepcopy(conv)
    for module in plain.modules():
        if isinstance(module, pyg.Linear):
            module.weight.data.copy_(symmetric(module.weight.detach(), 8))
    for att in ("att_src", "att_dst"):
        if hasattr(plain, att):
            getattr(plain, att).data[0].copy_(symmetric(getattr(plain, att).detach()[0], 8))
    want = called(plain, x, edge_index).detach()
    gs.lighten_(conv, gs.Recipe(training=dq(1.0, 1.0)))
    out = called(conv, x, edge_index).detach()
    found = quantisers(conv)
    assert all(not q.is_ready for name, q in found.items() if not name.endswith("norm"))
    near = 0.02 if found.get("quantisers.norm") is not None and found["quantisers.norm"].is_ready else 1e-6
    assert float((out - want).norm()) <= near * float(want.norm())


@pytest.mark.parametrize("kind", ["gcn", "sage", "gat", "gin"])
def test_rows_of_protected_nodes_do_not_change_ranges(kind, monkeypatch):
    """Messages count with their sources, sums and results with their own nodes."""
    from gossamer.engine.fake_quant import engine

    x, _ = data()
    nodes = len(x)
    keep = torch.arange(nodes) < nodes // 2  # edges are within the two halves
    ends = torch.randint(0, nodes // 2, (2, 200), generator=torch.Generator().manual_seed(0))
    edge_index = torch.cat([ends, ends + nodes // 2], 1)
    monkeypatch.setattr(engine, "protected", lambda rank, *_: keep)
    ranges = []
    for factor in (1.0, 100.0):
        torch.manual_seed(0)
        conv = CONVS[kind]()
        gs.lighten_(conv, gs.Recipe(training=dq(0.0, 0.1)))
        called(conv, torch.where(keep.unsqueeze(1), factor * x, x), edge_index)
        own = conv.quantisers  # GIN's network is rounded for everybody
        ranges.append({name: (q.low, q.high) for name, q in own.named_children() if q.is_ready})
    assert len(ranges[0]) >= 3 and ranges[0].keys() == ranges[1].keys()
    for name, (low, high) in ranges[0].items():
        if name == "update" and kind == "gin":
            continue  # its network saw the rows of protected nodes
        assert torch.equal(low, ranges[1][name][0]) and torch.equal(high, ranges[1][name][1]), name


def test_the_masks_of_a_forward_are_those_of_all_layers(monkeypatch):
    from gossamer.engine.fake_quant import engine

    drawn, protected = [], engine.protected
    monkeypatch.setattr(engine, "protected", lambda *args: drawn.append(protected(*args)) or drawn[-1])
    x, edge_index = data()
    model = nn.ModuleList([gin(COLUMNS, COLUMNS), pyg.GCNConv(COLUMNS, COLUMNS), pyg.GATConv(COLUMNS, COLUMNS)])
    gs.lighten_(model, gs.Recipe(training=dq(0.2, 0.8)))
    for _ in range(2):
        y = x
        for conv in model:
            y = conv(y, edge_index)
    assert len(drawn) == 6
    assert same_bits(drawn[0], drawn[1]) and same_bits(drawn[0], drawn[2]) and not same_bits(drawn[0], drawn[3])


def test_evaluation_protects_nobody():
    conv, x, edge_index = ready(pyg.GCNConv(COLUMNS, OUTS), dq(0.0, 0.9))
    step = float(conv.quantisers["update"].levels()[0])
    for protects in (False, True):
        conv.train(protects)
        codes = conv(x, edge_index).detach() / step
        assert torch.allclose(codes, codes.round(), atol=1e-3) != protects


# Graphs -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["gcn", "sage", "sage max", "graph", "gin", "gat", "gat mean"])
@pytest.mark.parametrize("shape", [name for name in GRAPHS if "bipartite" not in name and name != "no destinations"])
@pytest.mark.parametrize("setting", [EXACT, gs.DegreeQuant.published(8)], ids=["extremes", "published"])
def test_nasty_graphs(setting, shape, name):
    torch.manual_seed(0)
    g = graph(shape)
    x = rand(g.num_src, COLUMNS).requires_grad_()
    conv = CONVS[name]()
    want = conv(x, g.edge_index).detach()
    gs.lighten_(conv, gs.Recipe(training=setting))
    for _ in range(2):
        out = conv(x, g.edge_index)
        out.sum().backward()
    conv.eval()
    out = conv(x, g.edge_index)
    assert out.shape == want.shape and out.isfinite().all()
    if setting is EXACT:
        near = 0.08  # sums of hubs stretch the range of all
        assert float((out.detach() - want).norm()) <= near * float(want.norm()) + 1e-5
    assert all(p.grad is None or p.grad.isfinite().all() for p in conv.parameters())


def test_graphs_blocks_and_pairs():
    """A Graph computes what its edge_index does; of a block the first sources are the destinations."""
    for name in ("gcn", "sage", "gin", "gat"):
        torch.manual_seed(0)
        conv, x, edge_index = ready(CONVS[name]())
        whole = gs.Graph.from_edge_index(edge_index, len(x))
        assert torch.allclose(conv(x, whole), conv(x, edge_index), atol=1e-5)
        sampled = batch((23, 7), loops=name != "gat")
        rows = x[: sampled.num_nodes]
        assert torch.allclose(conv(rows, sampled.blocks), conv(rows, sampled.edge_index)[:7], atol=1e-5), name
    torch.manual_seed(0)
    sage, x, edge_index = ready(pyg.SAGEConv(COLUMNS, OUTS))
    assert torch.allclose(sage((x, x.clone()), edge_index), sage(x, edge_index), atol=1e-5)


# Presets and removal ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("setting", [gs.QAT.published(8), gs.DegreeQuant.published(4)])
def test_presets_use_the_plan(setting):
    model = nn.ModuleList([pyg.GCNConv(COLUMNS, 4), pyg.GATConv(COLUMNS, 4), gin(COLUMNS, 4), nn.Linear(4, 4)])
    gs.lighten_(model, gs.Recipe(training=setting))
    engines = {
        name: state_of(m).engine for name, m in model.named_modules() if isinstance(m._modules.get("quantisers"), Sites)
    }
    assert set(engines) == {"0", "1", "2", "2.nn.0", "2.nn.2", "3"}
    assert all(isinstance(engine, FakeQuantPublished) for engine in engines.values())
    assert all(q.setting == setting for q in quantisers(model).values())
    gs.lighten_(model, gs.Recipe(training=gs.QAT(8)))
    assert not any(isinstance(state_of(m).engine, FakeQuantPublished) for m in model.modules() if state_of(m))
    assert all(isinstance(state_of(model[k]).engine, Quantising) for k in (0, 1, 3))


def test_restore_removes_everything():
    x, edge_index = data()
    model = pyg.GIN(COLUMNS, 16, 2, 4, norm="batch_norm").eval()
    keys, modules, want = list(model.state_dict()), len(list(model.modules())), model(x, edge_index)
    gs.lighten_(model, gs.Recipe(training=gs.DegreeQuant.published()))
    model.train()(x, edge_index)
    assert any(name.endswith("convs.0.quantisers.update.low") for name in model.state_dict())
    gs.restore_(model)
    assert list(model.state_dict()) == keys and len(list(model.modules())) == modules
    for name, module in model.named_modules():
        assert not isinstance(module, (Sites, Quantiser)) and "_gossamer" not in vars(module), name
    fresh = pyg.GIN(COLUMNS, 16, 2, 4, norm="batch_norm").eval()
    fresh.load_state_dict(model.state_dict())
    assert torch.equal(fresh(x, edge_index), model.eval()(x, edge_index)) and want.shape == (60, 4)


def test_names_in_skip_stay_in_float32():
    x, edge_index = data()
    model = nn.ModuleList([gin(COLUMNS, COLUMNS), gin(COLUMNS, 4)])
    setting = gs.DegreeQuant(8, plan="published", skip=("0", "1.nn.0"))
    gs.lighten_(model, gs.Recipe(training=setting))
    model[1](model[0](x, edge_index), edge_index)
    assert {name.rpartition(".quantisers")[0] for name in quantisers(model)} == {"1", "1.nn.2"}


def test_training_resumes_to_the_same_bits(tmp_path):
    digits = gs.datasets.load("digits")
    recipe = gs.Recipe(training=gs.DegreeQuant(4, plan="published", low=0.1, high=0.3))

    def run(epochs, out, resume=False):
        torch.manual_seed(0)
        model = gs.training.models.build("gin", digits, layers=2, width=8, dropout=0.5)
        gs.train(model, digits, recipe, epochs=epochs, out=out, resume=resume, progress=False, checkpoint_seconds=0)
        return model.state_dict()

    whole = run(6, tmp_path / "whole")
    run(3, tmp_path / "parts")
    parts = run(6, tmp_path / "parts", resume=True)
    assert whole.keys() == parts.keys() and all(same_bits(whole[name], parts[name]) for name in whole)
