"""Lightened layers and models in int8: results, gradients layer by layer, norms and activations, bits by threads."""

from __future__ import annotations

import copy
import functools
import itertools

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch_geometric import nn as pyg

import gossamer as gs
from gossamer import measure, ops
from gossamer.aggregate import build
from gossamer.engine import noise
from gossamer.engine.int8 import qrows
from gossamer.engine.int8.entry import Entry
from gossamer.engine.int8.products import products
from gossamer.engine.settings import Int8
from gossamer.ops.activation import ACTIVATIONS
from gossamer.ops.norm_act import Epilogue, Over
from support.compare import cosine, nsr
from support.int8 import Exact, assert_near, exact
from support.paths import forced
from support.pyg_models import Gcnii
from support.tensors import seeded, tensors

NODES, COLUMNS, OUTS = 200, 24, 16


@pytest.fixture(autouse=True)
def _begin_anew():
    seeded()


@pytest.fixture
def fused():
    """Small tensors take the fused ops."""
    with forced(least=1):
        yield


def lightened(layer, recipe="tango"):
    """The layer in a model whose last product is another, so that it computes in int8."""
    model = nn.ModuleList([layer, nn.Linear(2, 2)])
    gs.lighten_(model, recipe)
    return layer


def edges(nodes=NODES, count=1000, seed=1):
    return torch.randint(0, nodes, (2, count), generator=torch.Generator().manual_seed(seed))


def mlp(*sizes):
    return pyg.MLP(list(sizes), norm=None)


# One layer: its product with the right operands.


def _gcn(edge_weight=None, **named):
    layer = lightened(pyg.GCNConv(COLUMNS, OUTS, **named))
    adjacency = build.gcn(edges(), NODES, edge_weight, False, named.get("add_self_loops", True))
    return layer, (edges(), edge_weight), adjacency, [layer.lin.weight], [layer.bias]


def _sage(aggr="mean", root=True):
    layer = lightened(pyg.SAGEConv(COLUMNS, OUTS, aggr=aggr, root_weight=root))
    adjacency = build.neighbours(edges(), (NODES, NODES), reduce=aggr)
    lins = [layer.lin_l, layer.lin_r] if root else [layer.lin_l]
    return layer, (edges(),), adjacency, [lin.weight for lin in lins], [lin.bias for lin in lins]


def _graph_conv():
    layer, weight = lightened(pyg.GraphConv(COLUMNS, OUTS)), torch.rand(1000) + 0.1
    adjacency = build.neighbours(edges(), (NODES, NODES), weight)
    weights, biases = [layer.lin_rel.weight, layer.lin_root.weight], [layer.lin_rel.bias, None]
    return layer, (edges(), weight), adjacency, weights, biases


def _gin():
    first = nn.Linear(COLUMNS, OUTS)
    layer = lightened(pyg.GINConv(nn.Sequential(first), eps=0.25))
    return (
        layer,
        (edges(),),
        build.neighbours(edges(), (NODES, NODES)).with_diagonal(torch.tensor(1.25)),
        [first.weight],
        [first.bias],
    )


def _linear(kind):
    layer = lightened(kind(COLUMNS, OUTS))
    return layer, (), None, [layer.weight], [layer.bias]


LAYERS = {
    "GCN": _gcn,
    "GCN, edge weights": lambda: _gcn(torch.rand(1000) + 0.1),
    "SAGE, mean": _sage,
    "SAGE, sum": lambda: _sage("sum"),
    "SAGE, no root": lambda: _sage(root=False),
    "GraphConv": _graph_conv,
    "GIN": _gin,
    "Linear": lambda: _linear(nn.Linear),
    "PyG's Linear": lambda: _linear(pyg.Linear),
}


@pytest.mark.parametrize("kind", LAYERS)
@pytest.mark.parametrize("requires_grad", [True, False], ids=["hidden", "input"])
def test_a_layer_is_its_formula(kind, requires_grad):
    """Of dequantised operands, in float64; which operand is rounded between depends on what is done first."""
    layer, args, adjacency, weights, biases = LAYERS[kind]()
    x, dout = tensors((NODES, COLUMNS), (NODES, OUTS), seed=2)
    x.requires_grad_(requires_grad)
    first = "multiply" if requires_grad else "aggregate"  # 24 columns, 16 outputs: rules.py
    out = layer(x, *args)
    wanted = [*weights, *(b for b in biases if b is not None)]
    wanted = [x, *wanted] if requires_grad else wanted
    truth: Exact = exact(x, adjacency, weights, biases, first, dout.detach())
    degree = 0 if adjacency is None else int(adjacency.graph.rowptr.diff().max())
    assert_near(out, truth.out, truth.size, 2 * COLUMNS + degree)
    found = torch.autograd.grad(out, wanted, dout.detach())
    expected = [*truth.dweights, *truth.dbiases]
    for a, b in zip(found, [truth.dx, *expected] if requires_grad else expected, strict=True):
        assert cosine(a, b) > 0.99 and nsr(a, b) < 4e-3  # gradients alone are rounded: three times or less, 1e-3 each


@pytest.mark.parametrize("requires_grad", [True, False], ids=["hidden", "input"])
@pytest.mark.parametrize("shared", [True, False])
def test_gcnii_adds_its_identity_in_float32(shared, requires_grad):
    """Products of dequantised operands; what is beside them, with a weight of 0.78 in layer 2, is not rounded."""
    layer = pyg.GCN2Conv(COLUMNS, 0.2, 0.5, 2, shared_weights=shared)
    plain = copy.deepcopy(layer)
    lightened(layer)
    x, x_0, dout = (t.detach() for t in tensors((NODES, COLUMNS), (NODES, COLUMNS), (NODES, COLUMNS), seed=2))
    x.requires_grad_(requires_grad)
    alpha, beta = layer.alpha, layer.beta
    out = layer(x, x_0, edges())
    adjacency = build.gcn(edges(), NODES, None, False, True).times(1 - alpha)
    with torch.no_grad():
        h = adjacency.product(x, None, alpha * x_0 if shared else None)
        rest = (1 - beta) * (h if shared else h + alpha * x_0)
    truth: Exact = exact(h, None, [beta * layer.weight1.t()], [None], "multiply", dout, rest)
    wanted, size = truth.out, truth.size
    if not shared:
        other: Exact = exact(x_0, None, [alpha * beta * layer.weight2.t()], [None], "multiply", dout)
        wanted, size = wanted + other.out, size + other.size
    assert_near(out, wanted, size, 3 * COLUMNS)
    leaves = [*layer.parameters(), *([x] if requires_grad else [])]
    found = torch.autograd.grad(out, leaves, dout)
    leaves = [*plain.parameters(), *([x] if requires_grad else [])]
    for a, b in zip(found, torch.autograd.grad(plain(x, x_0, edges()), leaves, dout), strict=True):
        assert cosine(a, b) > 0.99 and nsr(a, b) < 4e-3  # as above


# Norm, activation and dropout before a product.

NORMS = {
    "none": (Over.NOTHING, False),
    "batch": (Over.COLUMNS, False),
    "fixed": (Over.FIXED, True),
    "layer": (Over.ROWS, False),
    "graph": (Over.ALL, False),
}


@pytest.mark.parametrize("p", [0.0, 0.5])
@pytest.mark.parametrize("act", ["identity", "relu", "leaky_relu", "elu", "gelu"])
@pytest.mark.parametrize("norm", NORMS)
def test_an_epilogue_before_a_product(norm, act, p, monkeypatch):
    """Made together, rows are those of norm_act, quantised: results and all gradients are the same bits."""
    monkeypatch.setattr(qrows, "draw_seed", lambda x=None: 3)
    over, fixed = NORMS[norm]
    x, w, b, scale, shift, dout = tensors(
        (NODES, COLUMNS), (OUTS, COLUMNS), (OUTS,), (COLUMNS,), (COLUMNS,), (NODES, OUTS)
    )
    affine = (scale, shift) if over != Over.NOTHING else (None, None)
    statistics = (x.detach().mean(0) + 0.1, x.detach().var(0) + 0.2) if fixed else (None, None)
    slope = 0.2 if act == "leaky_relu" else 1.0
    epilogue = Epilogue(*affine, *statistics, int(over), 1e-5, ACTIVATIONS.index(act), slope, p, 77)
    wanted = [t for t in (x, w, b, *affine) if t is not None]
    out, mean, var = products(x, [w], [b], Entry(Int8(), epilogue))
    found = torch.autograd.grad(out, wanted, dout.detach())
    result, own_mean, own_var = ops.norm_act(x, epilogue)
    (want, *_) = products(result, [w], [b], Entry(Int8()))
    assert torch.equal(out, want) and torch.equal(mean, own_mean) and torch.equal(var, own_var)
    for a, e in zip(found, torch.autograd.grad(want, wanted, dout.detach()), strict=True):
        assert torch.equal(a, e)


ACTS = {"relu": nn.ReLU, "leaky": nn.LeakyReLU, "elu": nn.ELU, "gelu": nn.GELU, "tanh": nn.Tanh, "none": nn.Identity}
NORM_MODULES = {
    "none": lambda width: nn.Identity(),
    "batch": nn.BatchNorm1d,
    "PyG's batch": pyg.BatchNorm,
    "layer": nn.LayerNorm,
    "graph": pyg.LayerNorm,
}


@pytest.mark.parametrize("act", ACTS)
@pytest.mark.parametrize("norm", NORM_MODULES)
def test_a_sequence_is_its_modules(norm, act, fused):
    """Linear, norm, activation, Linear in one: as each module by itself, on the first product's own result."""
    sequence = nn.Sequential(
        nn.Linear(COLUMNS, COLUMNS), NORM_MODULES[norm](COLUMNS), ACTS[act](), nn.Linear(COLUMNS, OUTS)
    )
    norm_before = copy.deepcopy(sequence[1])
    lightened(sequence)
    (x,) = tensors((NODES, COLUMNS))
    out = sequence(x)
    with torch.no_grad():
        middle = ACTS[act]()(norm_before(sequence[0](x)))
        want = sequence[3](middle)
    # An element on the border between two codes may fall on either side of it: a step of one row times one weight.
    step = float(middle.abs().max()) / 127
    torch.testing.assert_close(out, want, rtol=0, atol=step * float(sequence[3].weight.detach().abs().max()))
    for (name, mine), theirs in zip(sequence[1].named_buffers(), norm_before.buffers(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-6, msg=name)
    out.sum().backward()
    assert all(p.grad.isfinite().all() for p in sequence.parameters())


def test_dropout_between_drops_what_it_says(fused):
    """The mask of an epilogue in int8 is dropout's: a product with the identity shows it, its gradient has the same."""
    sequence = nn.Sequential(nn.ReLU(), nn.Dropout(0.5), nn.Linear(COLUMNS, COLUMNS, bias=False))
    with torch.no_grad():
        sequence[2].weight.copy_(torch.eye(COLUMNS))
    lightened(sequence)
    x = (torch.rand(NODES, COLUMNS) + 0.5).requires_grad_()
    out = sequence(x)
    dropped = out == 0
    assert 0.45 < float(dropped.float().mean()) < 0.55
    torch.testing.assert_close(out[~dropped], 2 * x[~dropped], rtol=0, atol=2 * 1.5 / 127)
    (dx,) = torch.autograd.grad(out, [x], torch.ones_like(out))
    assert torch.equal(dx == 0, dropped)
    sequence.eval()
    assert bool((sequence(x) > 0).all())


# Whole models against float32.

MODELS = {
    "GCN": pyg.GCN,
    "GraphSAGE": pyg.GraphSAGE,
    "GIN": pyg.GIN,
    "GCNII": Gcnii,
    "GCNII, two weights": functools.partial(Gcnii, shared_weights=False),
}


@functools.cache
def planted(nodes=1000, width=32, classes=4, degree=10):
    """Features with a class's direction in them, edges mostly within classes."""
    generator = torch.Generator().manual_seed(5)
    y = torch.randint(0, classes, (nodes,), generator=generator)
    ends = torch.randint(0, nodes, (2, 4 * degree * nodes // 2), generator=generator)
    within = (y[ends[0]] == y[ends[1]]) | (torch.rand(ends.size(1), generator=generator) < 0.2)
    x = torch.randn(nodes, width, generator=generator) + 2 * F.one_hot(y, width)
    return x, ends[:, within], y


@pytest.mark.parametrize("norm", [None, "batch_norm", "layer_norm"])
@pytest.mark.parametrize("kind", MODELS)
def test_gradients_of_every_layer(kind, norm, fused):
    """At initialisation every weight's gradient has cosine above 0.99 with float32's, and nsr below 2e-2.

    Of three layers, the first's gradient has passed about fourteen roundings (x, W, h; each layer's dy, dh, H), to
    nearest with nsr of 1e-4, stochastically of 1e-3 or less: about 1e-2. Noise of relative size sigma, here 0.01, also
    turns over the ReLUs of arctan(sigma) / pi of the numbers, which is 2 sigma / pi = 6e-3 of the energy of a gradient
    without a common direction; that of a loss has one.
    """
    x, edge_index, y = planted()
    model = MODELS[kind](32, 32, 3, 4, norm=norm)
    lighter = copy.deepcopy(model)
    gs.lighten_(lighter, "tango")
    for each in (model, lighter):
        F.cross_entropy(each(x, edge_index), y).backward()
    wanted = dict(model.named_parameters())
    top = max(float(p.grad.norm()) for p in model.parameters())
    for name, p in lighter.named_parameters():
        if float(wanted[name].grad.norm()) > 1e-4 * top:  # a bias before a batch norm has no gradient
            assert cosine(p.grad, wanted[name].grad) > 0.99, name
            assert nsr(p.grad, wanted[name].grad) < 2e-2, name


@pytest.mark.parametrize("recipe", ["tango", "feather"])
@pytest.mark.parametrize("kind", MODELS)
def test_training_learns_as_float32_does(kind, recipe, fused):
    x, edge_index, y = planted(nodes=500)
    first, last = {}, {}
    for each in ("float32", recipe):
        torch.manual_seed(3)
        model = MODELS[kind](32, 32, 3, 4, norm="batch_norm")
        gs.lighten_(model, each)
        optimizer = torch.optim.Adam(model.parameters(), 0.01)
        for step in range(20):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x, edge_index), y)
            loss.backward()
            optimizer.step()
            first[each], last[each] = first[each] if step else loss.item(), loss.item()
    assert abs(first[recipe] - first["float32"]) < 0.02 * first["float32"]
    assert last["float32"] < 0.6 * first["float32"] and last[recipe] < last["float32"] + 0.1


# The same bits for any number of threads.


def steps(kind, recipe, threads, count=2):
    """Weights and buffers after some steps. All results are large enough for our kernels."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        torch.manual_seed(1)
        noise.stream.reset()
        x, edge_index, y = planted(nodes=2100, width=64, degree=4)
        model = (MODELS | {"GAT": pyg.GAT})[kind](64, 64, 3, 64, norm="batch_norm", dropout=0.5)
        gs.lighten_(model, recipe)
        optimizer = torch.optim.Adam(model.parameters(), 0.01)
        for _ in range(count):
            optimizer.zero_grad()
            F.cross_entropy(model(x, edge_index), y).backward()
            optimizer.step()
        return model.state_dict()
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize(
    "kind, recipe", [*itertools.product(MODELS, ["tango", "feather"]), ("GAT", "feather")]
)  # of GAT by tango, the narrow product of the last layer's attention is torch's
def test_the_same_weights_for_any_number_of_threads(kind, recipe):
    one = steps(kind, recipe, 1)
    for threads in (2, 3):
        for name, value in steps(kind, recipe, threads).items():
            assert torch.equal(value, one[name]), f"{name} with {threads} threads"


# What is quantised, and what is saved.


@pytest.fixture
def rounded(monkeypatch):
    """The shapes of what quantize_rows was called with."""
    shapes, plain = [], ops.quantize_rows
    monkeypatch.setattr(ops, "quantize_rows", lambda x, seed=None: shapes.append(tuple(x.shape)) or plain(x, seed))
    return shapes


def test_a_tensor_that_two_layers_read_is_rounded_once(rounded):
    model = nn.ModuleList(
        [pyg.GCNConv(COLUMNS, OUTS), pyg.SAGEConv(COLUMNS, OUTS), nn.Linear(COLUMNS, OUTS), nn.Linear(2, 2)]
    )
    gs.lighten_(model, "tango")
    x = torch.randn(NODES, COLUMNS)

    def read():
        rounded.clear()
        for layer in model[:2]:
            layer(x, edges())
        model[2](x)
        return rounded.count((NODES, COLUMNS))

    assert read() == 1
    before = model[2](x)
    assert read() == 0  # in the next epoch neither
    x.mul_(2)
    assert read() == 1
    torch.testing.assert_close(model[2](x) - model[2].bias, 2 * (before - model[2].bias))
    x.requires_grad_()
    model[1](x, edges()).sum().backward()
    with torch.no_grad():
        x -= x.grad
    assert read() == 1


def test_initial_features_of_gcnii_are_rounded_once(rounded):
    """Of four layers with two weights: x_0, and the neighbour sum of each."""
    model = nn.ModuleList([pyg.GCN2Conv(COLUMNS, 0.2, 0.5, k + 1, shared_weights=False) for k in range(4)])
    model.append(nn.Linear(2, 2))
    gs.lighten_(model, "tango")
    x = x_0 = torch.randn(NODES, COLUMNS, requires_grad=True)
    for layer in model[:4]:
        x = layer(x, x_0, edges())
    assert rounded.count((NODES, COLUMNS)) == 1 + 4


def test_rounded_stochastically_a_tensor_is_rounded_anew(rounded):
    layer = lightened(nn.Linear(COLUMNS, OUTS), gs.Recipe(compute=Int8(rounding="stochastic")))
    x = torch.randn(NODES, COLUMNS)
    first, second = layer(x), layer(x)
    assert rounded.count((NODES, COLUMNS)) == 2 and not torch.equal(first, second)
    assert nsr(first - layer.bias, (second - layer.bias).detach()) < 1e-3


ROWS = NODES * (COLUMNS + 4)
WEIGHT = 2 * OUTS * COLUMNS + 8 * OUTS
"""Codes, the same turned round, and scales."""
SAVED = {
    "Linear": ROWS + WEIGHT,
    "GCN": ROWS + WEIGHT,
    "SAGE, mean": ROWS + 2 * WEIGHT,
    "SAGE, no root": ROWS + WEIGHT,
    "GraphConv": ROWS + 2 * WEIGHT,
    "GIN": ROWS + WEIGHT,
}


@pytest.mark.parametrize("requires_grad", [True, False], ids=["hidden", "input"])
@pytest.mark.parametrize("kind", SAVED)
def test_bytes_saved_of_an_operand(kind, requires_grad):
    """N (D + 4) per operand.

    Of an input that needs no gradient, summed first, a layer with a root saves both the rows and their sums.
    """
    layer, args, *_ = LAYERS[kind]()
    x = torch.randn(NODES, COLUMNS, requires_grad=requires_grad)
    found = measure.kept_bytes(lambda: layer(x, *args), exclude=[layer, x, *args])
    two = not requires_grad and SAVED[kind] == ROWS + 2 * WEIGHT
    assert found == SAVED[kind] + (ROWS if two else 0)


@pytest.mark.parametrize("kind", MODELS)
def test_bytes_saved_of_a_model(kind):
    """Float32 with norms saves two float tensors a layer, int8 one and a quarter, with two bits an eighth of that."""
    x, edge_index, _ = planted(nodes=3000, width=64, degree=4)

    def saved(recipe):
        model = MODELS[kind](64, 64, 4, 8, norm="batch_norm", dropout=0.5)
        gs.lighten_(model, recipe)
        return measure.kept_bytes(lambda: model(x, edge_index), exclude=[model, x, edge_index])

    float32, int8, feather = (saved(recipe) for recipe in ("float32", "tango", "feather"))
    assert int8 < 0.8 * float32 and feather < 0.21 * int8
