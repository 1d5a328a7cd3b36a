"""Int8 models together with what else users do: codecs, checkpoints, autocast, batches, copies, own forwards."""

from __future__ import annotations

import copy
import functools
import io
import pickle

import pytest
import torch
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint
from torch_geometric import nn as pyg
from torch_geometric.data import Batch, Data

import gossamer as gs
from gossamer import ops
from gossamer.aggregate import Adjacency
from gossamer.engine import noise
from gossamer.engine.choice import engine_of
from gossamer.engine.epilogue import Deferred
from gossamer.engine.gradient import QGradient
from gossamer.engine.int8.entry import Entry
from gossamer.engine.int8.products import products
from gossamer.engine.settings import Int8
from support.compare import cosine, nsr
from support.paths import forced
from support.tensors import seeded

NODES, WIDTH = 300, 32
MODELS = {"GCN": pyg.GCN, "GraphSAGE": pyg.GraphSAGE, "GIN": pyg.GIN}
NEAR = 0.97
"""Cosine of int8's gradient with float32's, at least, of three layers and a random gradient of the result.

Rounding adds an nsr of 1e-2 or less, and turns over the ReLU of numbers near zero: noise of relative size sigma, 0.01
or so, turns over arctan(sigma) / pi of them, hence 2 sigma / pi of the gradient's energy; of up to six ReLUs 4e-2. The
cosine is 1 - 5e-2 / 2.
"""
ROUGH = 0.65
"""The same with activations in two bits: nsr about 1 for each of the weights' gradients, of biases none."""


@pytest.fixture(autouse=True)
def _begin_anew():
    """Small tensors take the fused ops, and noise begins as in a new process."""
    seeded()
    with forced(least=1):
        yield


@pytest.fixture(params=MODELS)
def model(request):
    return MODELS[request.param](WIDTH, WIDTH, 3, 5, norm="batch_norm")


def data(nodes=NODES, seed=1, width=WIDTH):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(nodes, width, generator=generator)
    return x, torch.randint(0, nodes, (2, 6 * nodes), generator=generator)


def gradients(model, *args, run=None):
    """Gradients of all parameters, in one vector."""
    model.zero_grad()
    out = model(*args) if run is None else run(model, *args)
    direction = torch.randn(out.shape, generator=torch.Generator().manual_seed(9))
    (out.float() * direction).sum().backward()
    return torch.cat([p.grad.flatten() for p in model.parameters()])


# Codecs of activations.


def test_with_activations_in_few_bits(model):
    """Products in int8 multiply in backward what two bits decode to: noisier, of the same direction."""
    plain, two = copy.deepcopy(model), copy.deepcopy(model)
    gs.lighten_(model, "tango")
    gs.lighten_(two, "feather")
    want = gradients(plain, *data())
    found = torch.stack([gradients(two, *data()) for _ in range(8)])
    assert cosine(gradients(model, *data()), want) > NEAR
    assert cosine(found[0], want) > ROUGH
    # the mean of eight draws is nearer, as it must be of noise: errors of one sign would stay
    assert nsr(found.mean(0), want) < 0.5 * nsr(found[0], want)


CODECS = [gs.Blockwise(bits=8), gs.Projected(ratio=2, then=gs.Blockwise(bits=8)), gs.Published()]


@pytest.mark.parametrize("codec", CODECS)
def test_with_any_codec(codec, model):
    plain = copy.deepcopy(model)
    gs.lighten_(model, gs.Recipe(compute=Int8(), activations=codec))
    rough = codec != gs.Blockwise(bits=8)
    assert cosine(gradients(model, *data()), gradients(plain, *data())) > (0.3 if rough else NEAR)


def test_eight_bits_are_unbiased_for_weights():
    """Stochastic codes of x and stochastic gradients are independent: dW is right on average."""
    x = torch.randn(NODES, 8, requires_grad=True)
    layer = nn.Linear(8, 6)
    gs.lighten_(nn.ModuleList([layer, nn.Linear(2, 2)]), gs.Recipe(compute=Int8(), activations=gs.Blockwise(bits=4)))
    dout = torch.randn(NODES, 6)
    draws = torch.stack([torch.autograd.grad(layer(x), [layer.weight], dout)[0].double() for _ in range(200)])
    want = dout.double().t() @ x.detach().double()
    error = (draws.var(0) / 200).sqrt()
    assert float(((draws.mean(0) - want) / error).abs().max()) < 5.5


# Autograd.


def test_backward_twice_with_retain_graph(model):
    """Both are unbiased draws; what is saved is not used up."""
    plain = copy.deepcopy(model)
    gs.lighten_(model, "tango")
    out = model(*data()).square().sum()
    want = torch.autograd.grad(plain(*data()).square().sum(), list(plain.parameters()))
    for retain in (True, False):
        found = torch.autograd.grad(out, list(model.parameters()), retain_graph=retain)
        big = max(float(w.norm()) for w in want)
        assert all(cosine(f, w) > NEAR - 0.04 for f, w in zip(found, want, strict=True) if float(w.norm()) > 1e-3 * big)
    with pytest.raises(RuntimeError, match="second time"):
        out.backward()


@pytest.mark.parametrize("recipe", ["tango", "feather"])
def test_a_second_derivative_is_refused(recipe, model):
    gs.lighten_(model, recipe)
    x = data()[0].requires_grad_()
    (dx,) = torch.autograd.grad(model(x, data()[1]).square().sum(), [x], create_graph=True)
    with pytest.raises(RuntimeError, match="one derivative"):
        dx.square().sum().backward()


@pytest.mark.parametrize("reentrant", [True, False])
@pytest.mark.parametrize("recipe", ["tango", "feather"])
def test_checkpointed(recipe, reentrant, model):
    """With dropout: the second forward draws the masks of the first."""
    model.dropout = nn.Dropout(0.5)
    plain = copy.deepcopy(model)
    gs.lighten_(plain, "float32")
    gs.lighten_(model, recipe)
    x, edge_index = data()
    x.requires_grad_()

    def run(model, x, edge_index):
        return checkpoint(model, x, edge_index, use_reentrant=reentrant)

    torch.manual_seed(4)
    want = gradients(plain, x, edge_index)
    torch.manual_seed(4)
    found = gradients(model, x, edge_index, run=run)
    assert cosine(found, want) > (NEAR if recipe == "tango" else ROUGH)


def test_checkpointed_is_the_same_forward(model):
    gs.lighten_(model, "tango")
    model.eval()
    x, edge_index = data()
    x.requires_grad_()
    assert torch.equal(checkpoint(model, x, edge_index, use_reentrant=False), model(x, edge_index))


def test_frozen_parts(model):
    gs.lighten_(model, "tango")
    first = model.convs[0].requires_grad_(False)
    model(*data()).sum().backward()
    assert all(p.grad is None for p in first.parameters())
    assert all(p.grad is not None for p in model.convs[1].parameters())
    model.requires_grad_(False)
    assert not model(*data()).requires_grad


def test_gradient_of_the_input_alone(model):
    plain = copy.deepcopy(model)
    grads = []
    gs.lighten_(model, "tango")
    for each in (plain, model):
        each.requires_grad_(False)
        x = data()[0].requires_grad_()
        each(x, data()[1]).square().sum().backward()
        grads.append(x.grad)
    assert cosine(*grads) > NEAR - 0.02  # without a weight's sum over nodes


# Modes.


def test_without_gradients(model):
    """no_grad and inference_mode agree; an evaluation with gradients may sum first elsewhere, hence round otherwise."""
    plain = copy.deepcopy(model).eval()
    gs.lighten_(model, "tango")
    model.eval()
    want = plain(*data())
    with torch.no_grad():
        quiet = model(*data())
    with torch.inference_mode():
        inference = model(*data())
        made_there = model(data()[0].clone(), data()[1])
    assert torch.equal(quiet, inference) and torch.equal(quiet, made_there)
    assert not quiet.requires_grad and nsr(quiet, want.detach()) < 1e-3 and nsr(model(*data()), want.detach()) < 1e-3


def test_autocast(model):
    """Int8 products stay int8; the rest is bfloat16 as autocast has it. Gradients as good as PyG's own in bfloat16."""
    plain, own = copy.deepcopy(model), copy.deepcopy(model)
    gs.lighten_(model, "tango")

    def cast(model, *args):
        with torch.autocast("cpu", torch.bfloat16):
            return model(*args)

    want = gradients(plain, *data())
    found, theirs = gradients(model, *data(), run=cast), gradients(own, *data(), run=cast)
    assert cosine(found, want) > NEAR
    assert nsr(found, want) < 2 * nsr(theirs, want) + 5e-2
    assert cosine(gradients(model, *data()), want) > NEAR  # and off again


def test_autocast_of_a_root_in_float32():
    """Its product is bfloat16 then, and is added to one in int8: summed first, as the layer widens its rows."""
    x, edges = data()
    model = nn.ModuleList([pyg.SAGEConv(WIDTH, 4 * WIDTH), nn.Linear(2, 2)])
    want = model[0](x, edges)
    gs.lighten_(model, gs.Recipe(compute=Int8(float32=("0.lin_r",))))
    with torch.autocast("cpu", torch.bfloat16):
        out = model[0](x, edges)
        out.float().square().sum().backward()
    assert nsr(out, want.detach()) < 1e-3
    assert all(bool(p.grad.isfinite().all()) for p in model[0].parameters())


def test_autocast_of_blocks_with_few_destinations():
    """Rows that bfloat16 made are added to a float32 product."""
    conv = pyg.SAGEConv(WIDTH, 16)
    gs.lighten_(nn.ModuleList([conv, nn.Linear(2, 2)]), "tango")
    edge_index = torch.stack([torch.randint(0, NODES, (90,)), torch.randint(0, 7, (90,))])
    with torch.autocast("cpu", torch.bfloat16):
        out = conv((torch.randn(NODES, WIDTH), torch.randn(7, WIDTH)), edge_index)
    out.float().sum().backward()
    assert out.shape == (7, 16) and out.isfinite().all()


def test_a_model_in_bfloat16_stays_in_bfloat16(model):
    gs.lighten_(model, "tango")
    model.bfloat16()
    out = model(data()[0].bfloat16(), data()[1])
    out.sum().backward()
    assert out.dtype == torch.bfloat16 and all(p.grad.dtype == torch.bfloat16 for p in model.parameters())


def test_float64_is_left_to_torch(model):
    plain = copy.deepcopy(model).double()
    gs.lighten_(model, "tango")
    model.double()
    torch.testing.assert_close(model(data()[0].double(), data()[1]), plain(data()[0].double(), data()[1]))


# Batches.


def blocks(num_src, num_dst, count=1500, seed=3):
    generator = torch.Generator().manual_seed(seed)
    return torch.stack([torch.randint(0, n, (count,), generator=generator) for n in (num_src, num_dst)])


class Sampled(nn.Module):
    """Two convolutions over sampled blocks; destinations are the first of the sources."""

    def __init__(self, conv):
        super().__init__()
        self.first, self.second, self.last = conv(WIDTH, WIDTH), conv(WIDTH, WIDTH), nn.Linear(WIDTH, 4)

    def forward(self, x, outer, inner):
        x = self.first((x, x[:120]), outer).relu()
        return self.last(self.second((x, x[:40]), inner).relu())


@pytest.mark.parametrize("recipe", ["tango", "feather"])
@pytest.mark.parametrize("conv", [pyg.SAGEConv, pyg.GraphConv])
def test_blocks_of_sampled_neighbours(conv, recipe):
    plain = Sampled(conv)
    lighter = copy.deepcopy(plain)
    gs.lighten_(lighter, recipe)
    args = (data()[0], blocks(NODES, 120), blocks(120, 40))
    assert nsr(lighter(*args), plain(*args).detach()) < 1e-3
    assert cosine(gradients(lighter, *args), gradients(plain, *args)) > (NEAR if recipe == "tango" else ROUGH)


class OnGraphs(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = pyg.GIN(WIDTH, WIDTH, 2, norm="layer_norm")
        self.head = pyg.MLP([WIDTH, WIDTH, 3])

    def forward(self, batch):
        x = self.body(batch.x, batch.edge_index, batch=batch.batch, batch_size=batch.num_graphs)
        return self.head(pyg.global_mean_pool(x, batch.batch))


@pytest.mark.parametrize("recipe", ["tango", "feather"])
def test_batches_of_graphs(recipe):
    graphs = [Data(*data(nodes, seed=nodes)) for nodes in range(5, 69)]
    batch = Batch.from_data_list(graphs)
    plain = OnGraphs()
    lighter = copy.deepcopy(plain)
    gs.lighten_(lighter, recipe)
    assert nsr(lighter(batch), plain(batch).detach()) < 1e-3
    assert cosine(gradients(lighter, batch), gradients(plain, batch)) > (NEAR if recipe == "tango" else ROUGH)


# Copies.


def test_copies_and_pickles_compute_the_same(model):
    gs.lighten_(model, "tango")
    model.eval()
    want = model(*data())
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert torch.equal(other(*data()), want)
        assert cosine(gradients(other, *data()), gradients(model, *data())) > NEAR


def test_state_dicts_are_those_of_the_original(model):
    plain, other = copy.deepcopy(model), copy.deepcopy(model)
    gs.lighten_(model, "tango")
    gradients(model, *data())
    assert list(model.state_dict()) == list(plain.state_dict())
    buffer = io.BytesIO()
    torch.save(model.state_dict(), buffer)
    buffer.seek(0)
    other.load_state_dict(torch.load(buffer))
    assert all(torch.equal(a, b) for a, b in zip(model.state_dict().values(), other.state_dict().values(), strict=True))


def test_restored(model):
    kind, plain = type(model), copy.deepcopy(model)
    gs.lighten_(model, "tango")
    assert not torch.equal(model(*data()), plain(*data()))
    gs.restore_(model)
    model.load_state_dict(plain.state_dict())
    assert type(model) is kind and torch.equal(model.eval()(*data()), plain.eval()(*data()))


def _read():
    """A tensor changed twice, after a layer has read it; and the layer."""
    layer = nn.Linear(WIDTH, WIDTH)
    gs.lighten_(nn.ModuleList([layer, nn.Linear(2, 2)]), "tango")
    x = data()[0].mul_(2).mul_(2)
    layer(x)
    return x, layer


def test_a_copy_of_the_input_is_another_tensor():
    """Its count of changes begins anew, so that it may come to the one at which the original was rounded."""
    x, layer = _read()
    other = copy.deepcopy(x)
    while other._version < x._version:
        other.mul_(10)
    torch.testing.assert_close(layer(other), layer(other.clone()))


def test_an_input_is_saved_and_loaded_as_before():
    x, _ = _read()
    buffer = io.BytesIO()
    torch.save({"x": x}, buffer)
    buffer.seek(0)
    assert torch.equal(torch.load(buffer, weights_only=True)["x"], x)


def test_an_input_whose_data_was_exchanged():
    x, layer = _read()
    x.data = torch.randn(NODES, WIDTH)
    torch.testing.assert_close(layer(x), layer(x.clone()))


# Models as users write them.


class Own(nn.Module):
    def __init__(self, p=0.5):
        super().__init__()
        self.first, self.second, self.third = pyg.GCNConv(WIDTH, WIDTH), pyg.SAGEConv(WIDTH, WIDTH), nn.Linear(WIDTH, 5)
        self.norm, self.p = nn.LayerNorm(WIDTH), p

    def forward(self, x, edge_index):
        x = F.dropout(F.relu(self.first(x, edge_index)), self.p, self.training)
        return self.third(F.elu(self.norm(self.second(x, edge_index))) + x)


@pytest.mark.parametrize("recipe", ["tango", "feather"])
def test_a_hand_written_model(recipe):
    plain = Own()
    lighter = copy.deepcopy(plain)
    gs.lighten_(plain, "float32")
    gs.lighten_(lighter, recipe)
    found = []
    for each in (plain, lighter):
        torch.manual_seed(6)  # the same masks
        found.append(gradients(each, *data()))
    assert cosine(*found) > (0.99 if recipe == "tango" else 0.9)


def test_dropout_masks_are_those_of_float32():
    """Noise takes nothing from torch's generator."""
    plain = Own()
    lighter = copy.deepcopy(plain)
    gs.lighten_(plain, "float32")
    gs.lighten_(lighter, "tango")
    states = []
    for each in (plain, lighter):
        torch.manual_seed(6)
        each(*data()).sum().backward()
        states.append(torch.get_rng_state())
    assert torch.equal(*states)


def test_hooks_see_what_they_saw(model):
    gs.lighten_(model, "tango")
    seen = []
    handles = [conv.register_forward_hook(lambda conv, args, out: seen.append(out.shape)) for conv in model.convs]
    gradients(model, *data())
    assert seen == [(NODES, WIDTH), (NODES, WIDTH), (NODES, 5)]
    for handle in handles:
        handle.remove()
    before = len(seen)
    gradients(model, *data())
    assert len(seen) == before


def test_a_weight_used_twice():
    """Its gradients add up."""
    shared = nn.Linear(WIDTH, WIDTH)
    plain = nn.Sequential(shared, nn.ReLU(), shared, nn.ReLU(), nn.Linear(WIDTH, 3))
    lighter = copy.deepcopy(plain)
    gs.lighten_(lighter, "tango")
    assert cosine(gradients(lighter, data()[0]), gradients(plain, data()[0])) > 0.99


def test_edge_weights_that_require_grad(model):
    """Products stay int8, the weighted sums are float32: the weights of edges get their gradient."""
    if not model.supports_edge_weight:
        conv = pyg.GraphConv(WIDTH, WIDTH)
        plain, lighter = nn.ModuleList([conv, nn.Linear(2, 2)]), nn.ModuleList([copy.deepcopy(conv), nn.Linear(2, 2)])
        gs.lighten_(lighter, "tango")
        plain, lighter = plain[0], lighter[0]
    else:
        plain, lighter = model, copy.deepcopy(model)
        gs.lighten_(lighter, "tango")
    grads = []
    for each in (plain, lighter):
        weight = (torch.arange(6 * NODES) % 7 + 1.0).requires_grad_()
        each(*data(), weight).square().sum().backward()
        grads.append(weight.grad)
    assert cosine(*grads) > 0.99


def test_an_epilogue_before_a_convolution_whose_edge_weights_require_grad():
    conv = pyg.GraphConv(WIDTH, WIDTH)
    gs.lighten_(nn.ModuleList([conv, nn.Linear(2, 2)]), "tango")
    x, edge_index = data()
    weight = torch.rand(edge_index.size(1), requires_grad=True)
    deferred = engine_of(conv).epilogue(x, act=nn.ReLU(), defer=True)
    assert isinstance(deferred, Deferred)
    torch.testing.assert_close(conv(deferred, edge_index, weight), conv(x.relu(), edge_index, weight))


# Every instruction set.


def test_every_instruction_set_computes_the_same(isa):
    """Integer products and hashed noise leave nothing to the instruction set but the rounding of float32."""
    x, w = torch.randn(NODES, 17, requires_grad=True), torch.randn(9, 17, requires_grad=True)
    dout = torch.randn(NODES, 9)
    kernel = _run(x, w, dout)
    with pytest.MonkeyPatch.context() as change:
        for name in ("quantize_rows", "quantize_times", "int8_linear", "int8_grad"):
            change.setattr(ops, name, functools.partial(_defined, name))
        defined = _run(x, w, dout)
    for a, b in zip(kernel, defined, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)


def _run(x, w, dout):
    noise.stream.reset()
    (out, *_) = products(x, [w], [None], Entry(Int8()))
    return out, *torch.autograd.grad(out, [x, w], dout)


def _defined(name, *args):
    return ops.OPS[name].reference(*args, *([None] if name == "quantize_rows" and len(args) == 1 else []))


class ConvAndLinear(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.conv, self.lin = kind(WIDTH, WIDTH), nn.Linear(WIDTH, 5)

    def forward(self, x, edges):
        return self.lin(self.conv(x, edges))


@pytest.mark.parametrize("kind", [pyg.GCNConv, pyg.SAGEConv, pyg.GATConv, pyg.GATv2Conv])
def test_training_after_inference_mode(kind):
    """What evaluation remembers of input and edges serves training: the result is the one of training alone."""
    x, edges = data()
    model = ConvAndLinear(kind)
    gs.lighten_(model, gs.Recipe(compute=gs.Int8()))
    alone = model(x.clone(), edges.clone())
    with torch.inference_mode():
        model(x, edges)
    trained = model(x, edges)
    trained.square().sum().backward()
    assert torch.equal(trained, alone)
    assert all(p.grad is not None and bool(p.grad.isfinite().all()) for p in model.parameters())


# With activations in few bits ------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [pyg.GCNConv, pyg.SAGEConv])
def test_an_epilogues_input_is_free_before_neighbours_are_summed(kind, monkeypatch):
    conv = kind(WIDTH, WIDTH)
    gs.lighten_(nn.ModuleList([conv, nn.Linear(2, 2)]), "feather")
    x, edge_index = data()
    weight = torch.eye(WIDTH, requires_grad=True)
    deferred = engine_of(conv).epilogue(x @ weight, act=nn.ReLU(), defer=True)
    assert isinstance(deferred, Deferred)
    held, alive = StorageWeakRef(deferred.x.untyped_storage()), []
    summed = Adjacency.product_of_rows

    def noting(*args):
        alive.append(not held.expired())
        return summed(*args)

    monkeypatch.setattr(Adjacency, "product_of_rows", noting)
    conv(deferred, edge_index).square().sum().backward()
    assert alive == [False] and weight.grad is not None


def test_gradients_between_layers_are_int8_rows(model):
    """No product of a hidden layer is handed a gradient in float32, which would be the largest tensor of backward."""
    gs.lighten_(model, "feather")
    x, edges = data()
    out = model(x, edges)
    given, nodes = [], [out.grad_fn]
    while nodes:
        node = nodes.pop()
        if getattr(node, "request", None) is not None:
            node.register_prehook(lambda grads: given.extend(type(grad) for grad in grads[:1]))
        nodes += [following for following, _ in node.next_functions if following is not None]
    out.square().sum().backward()
    assert given and set(given) == {QGradient}
