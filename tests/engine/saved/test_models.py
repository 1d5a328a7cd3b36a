"""Whole models whose activations are saved in few bits: the outputs of float32, and gradients right on average."""

from __future__ import annotations

import copy
import io
import pickle

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint
from torch_geometric import nn as pyg

import gossamer as gs
from gossamer import measure, native
from support.codecs import EXACT
from support.paths import forced
from support.planted import planted
from support.pyg_models import Gcnii
from support.saved import dots
from support.tensors import seeded, tensors
from support.traces import Calls
from support.unbiased import assert_unbiased

NODES, IN, HIDDEN, OUT = 130, 12, 16, 9  # so that every tensor has the 1024 elements from which codecs are worth it
NAMED = ["exact-int2", "exact-int4", "exact-int8"]
LOSSLESS = gs.Recipe(activations=EXACT)


@pytest.fixture(autouse=True)
def fused_from(request):
    """Elements from which float32 takes fused ops: one, or None for as many as usual."""
    torch.manual_seed(0)
    with forced(least=getattr(request, "param", 1)):
        yield


class HandWritten(nn.Module):
    """A forward as users write it."""

    def __init__(self):
        super().__init__()
        self.convs = nn.ModuleList([pyg.GCNConv(IN, HIDDEN), pyg.SAGEConv(HIDDEN, HIDDEN)])
        self.norm, self.lin = nn.BatchNorm1d(HIDDEN), nn.Linear(HIDDEN, OUT)

    def forward(self, x, edge_index):
        x = functional.dropout(x, 0.5, self.training)
        x = functional.relu(self.norm(self.convs[0](x, edge_index)))
        x = functional.dropout(x, 0.5, self.training)
        x = functional.gelu(self.convs[1](x, edge_index))
        x = functional.elu(functional.leaky_relu(x, 0.1))
        return functional.dropout(self.lin(x), 0.5, self.training)


def ready(kind, norm="batch_norm", act="relu", **named):
    return lambda: kind(IN, HIDDEN, 3, OUT, dropout=0.5, norm=norm, act=act, **named)


def plain_sequence():
    norms = nn.BatchNorm1d(HIDDEN), nn.LayerNorm(HIDDEN)
    first = nn.Linear(IN, HIDDEN), norms[0], nn.LeakyReLU(), nn.Dropout(), nn.Linear(HIDDEN, HIDDEN), norms[1], nn.ELU()
    return nn.Sequential(*first, nn.Linear(HIDDEN, HIDDEN), nn.ReLU(), nn.Dropout(), nn.Linear(HIDDEN, OUT), nn.GELU())


MODELS = {
    "gcn": ready(pyg.GCN),
    "gcn, layer norm": ready(pyg.GCN, "layer_norm", "leaky_relu"),
    "gcn, row norm": ready(pyg.GCN, "layer_norm", norm_kwargs={"mode": "node"}),
    "gcn, no norm": ready(pyg.GCN, None),
    "gcn, elu": ready(pyg.GCN, act="elu"),
    "gcn, gelu": ready(pyg.GCN, None, "gelu"),
    "gcn, jumping": ready(pyg.GCN, jk="cat"),
    "gcn, act first": ready(pyg.GCN, act_first=True),
    "sage": ready(pyg.GraphSAGE),
    "sage, layer norm": ready(pyg.GraphSAGE, "layer_norm", "elu"),
    "sage, no norm": ready(pyg.GraphSAGE, None, "leaky_relu"),
    "sage, maximum": ready(pyg.GraphSAGE, aggr="max"),
    "gin": ready(pyg.GIN),
    "gin, no norm": ready(pyg.GIN, None, "gelu"),
    "gat": ready(pyg.GAT, heads=2),
    "gat, residual": ready(pyg.GAT, heads=2, residual=True),
    "gcnii": lambda: Gcnii(IN, HIDDEN, 3, OUT, dropout=0.5),
    "gcnii, two weights": lambda: Gcnii(IN, HIDDEN, 3, OUT, dropout=0.5, shared_weights=False),
    "mlp": lambda: pyg.MLP([IN, HIDDEN, HIDDEN, OUT], dropout=0.5),
    "mlp, no norm": lambda: pyg.MLP([IN, HIDDEN, HIDDEN, OUT], dropout=0.5, norm=None, act="gelu", plain_last=False),
    "sequence": plain_sequence,
    "hand-written": HandWritten,
}
SMOOTH = ("elu", "gelu", "gin, no norm", "mlp, no norm", "sequence", "hand-written", "sage, layer norm")


def made(name):
    torch.manual_seed(0)
    return MODELS[name]()


def arguments(name, needs_grad=False):
    x = tensors((NODES, IN), seed=2)[0].detach().requires_grad_(needs_grad)
    if "mlp" in name or name == "sequence":
        return (x,)
    return x, torch.randint(0, NODES, (2, 600), generator=torch.Generator().manual_seed(1))


def lightened(model, recipe):
    model = copy.deepcopy(model)
    gs.lighten_(model, recipe)
    return model


def run(model, args, seed=5):
    """The output, and the gradients of all parameters and of x."""
    seeded(seed)
    out = model(*args)
    leaves = [*model.parameters(), *(a for a in args if a.requires_grad)]
    return out, torch.autograd.grad(dots([out]), leaves)


def assert_near(actual, expected):
    """Products behind an epilogue are our own, others the BLAS library's: the same terms, summed in another order.

    Of an x that requires grad x is saved and products are summed, not sums multiplied: another rounding, too.
    """
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)


@pytest.fixture(params=MODELS)
def name(request):
    return request.param


# Exactness ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("recipe", NAMED)
def test_outputs_are_those_of_float32(name, recipe):
    """Also the running statistics, and to the bit the generator's state: later masks are the same too."""
    model, args = made(name), arguments(name)
    results = []
    for each in ("float32", recipe):
        light = lightened(model, each)
        torch.manual_seed(5)
        outs = [light(*args).detach() for _ in range(2)]
        results.append([torch.get_rng_state(), *outs, *light.buffers()])
    (state, *whole), (few_state, *few) = results
    assert torch.equal(state, few_state)
    for a, b in zip(few, whole, strict=True):
        assert_near(a, b)


@pytest.mark.skipif(native.library is None, reason="without kernels float32 is torch's own")
@pytest.mark.parametrize("nodes", [600, 8200])
@pytest.mark.parametrize("kind", ["gcn", "gcn, layer norm", "sage"])
@pytest.mark.parametrize("fused_from", [None], indirect=True)
def test_outputs_at_the_sizes_where_float32_is_fused_and_where_not(kind, nodes):
    """Below 2^17 elements torch's norms run without compression, which round elsewhere; dropout masks are the same."""
    x, edge_index = tensors((nodes, IN))[0].detach(), torch.randint(0, nodes, (2, 5 * nodes))
    outs = []
    for recipe in ("float32", "exact-int2"):
        light = lightened(made(kind), recipe)
        torch.manual_seed(5)
        outs.append(light(x, edge_index))
    assert_near(*outs)


def test_gradients_from_codes_that_lose_nothing(name):
    """What epilogues and products share changes nothing; derivatives of smooth activations have eight bits."""
    model = made(name)
    for needs_grad in (False, True):
        args = arguments(name, needs_grad)
        (out, exact), (few, grads) = (run(lightened(model, r), args) for r in ("float32", LOSSLESS))
        assert_near(few, out)
        near = 0.05 if any(word in name for word in SMOOTH) else 1e-5
        # a gradient that is zero mathematically is a sum that cancels
        top = max(float(truth.norm()) for truth in exact)
        for grad, truth in zip(grads, exact, strict=True):
            assert float((grad - truth).norm()) <= near * float(truth.norm()) + 1e-6 * top


@pytest.mark.parametrize("recipe", [*NAMED, "exact-int2-published"])
def test_gradients_are_noisy_and_near(name, recipe):
    model, args = made(name), arguments(name)
    _, exact = run(lightened(model, "float32"), args)
    _, grads = run(lightened(model, recipe), args)
    whole, noisy = (torch.cat([g.reshape(-1) for g in each]) for each in (exact, grads))
    off = float((noisy - whole).norm() / whole.norm())
    assert 0 < off < {"exact-int8": 0.05, "exact-int4": 0.4, "exact-int2": 3, "exact-int2-published": 12}[recipe]


CONVS = {
    "gcn": lambda: pyg.GCNConv(IN, OUT),
    "sage": lambda: pyg.SAGEConv(IN, OUT),
    "sage, sum": lambda: pyg.SAGEConv(IN, OUT, aggr="sum"),
    "sage, no root": lambda: pyg.SAGEConv(IN, OUT, root_weight=False),
    "graph conv": lambda: pyg.GraphConv(IN, OUT),
    "gin": lambda: pyg.GINConv(nn.Sequential(nn.Linear(IN, OUT))),
}


@pytest.mark.parametrize("kind", CONVS)
@pytest.mark.parametrize("recipe", ["exact-int2", "exact-int2-published"])
def test_convolutions_are_unbiased(kind, recipe):
    conv, args = CONVS[kind](), arguments("gcn", needs_grad=True)
    leaves = [*conv.parameters(), args[0]]
    exact = torch.autograd.grad(dots([conv(*args)]), leaves)
    gs.lighten_(conv, recipe)
    assert_unbiased(lambda: torch.autograd.grad(dots([conv(*args)]), leaves), exact, 120)


@pytest.mark.parametrize("kind", [k for k in CONVS if "sage" in k])
def test_sage_saves_one_tensor(kind):
    conv, args = CONVS[kind](), arguments("gcn", needs_grad=True)
    gs.lighten_(conv, "exact-int2")
    with measure.kept(exclude=[conv]) as account:
        out = conv(args[0] * 1, args[1])
    assert account.bytes == gs.Blockwise(bits=2).nbytes((NODES, IN)) and out.requires_grad


@pytest.mark.parametrize("norm", [False, True])
def test_initial_features_of_gcnii_that_a_norm_made_are_saved_once(norm):
    """With two weights a layer saves its neighbour sum, and of x_0 nothing that its norm has saved already."""

    class Model(nn.Module):
        def __init__(self, layers):
            super().__init__()
            self.norm = nn.BatchNorm1d(IN) if norm else nn.Identity()
            self.convs = nn.ModuleList([pyg.GCN2Conv(IN, 0.2, 0.5, k + 1, shared_weights=False) for k in range(layers)])

        def forward(self, x, edge_index):
            x = x_0 = functional.relu(self.norm(x))
            for conv in self.convs:
                x = conv(x, x_0, edge_index)
            return x

    def bytes_of(layers):
        model, args = lightened(Model(layers), "exact-int2"), arguments("gcn", needs_grad=True)
        return measure.kept_bytes(lambda: model(*args), exclude=[model, args])

    codes, weights = gs.Blockwise(bits=2).nbytes((NODES, IN)), 2 * 4 * IN * IN  # scaled by alpha and beta, so copies
    assert bytes_of(3) - bytes_of(2) == (1 if norm else 2) * codes + weights


def test_dropout_of_input_that_needs_no_gradient_costs_nothing_and_is_exact():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.lin = pyg.SAGEConv(IN, HIDDEN), nn.Linear(IN, HIDDEN)

        def forward(self, x, edge_index):
            x = functional.dropout(x, 0.5, self.training)
            return self.conv(x, edge_index) + self.lin(x)

    model, args = Model(), arguments("gcn")
    _, exact = run(lightened(model, "float32"), args)
    light = lightened(model, "exact-int2")
    with measure.kept(exclude=[light, args]) as account:
        out = light(*args)
    assert account.bytes == 0 and out.requires_grad
    for grad, truth in zip(run(light, args)[1], exact, strict=True):
        torch.testing.assert_close(grad, truth, rtol=1e-5, atol=1e-5)


# Where nothing is saved in few bits -----------------------------------------------------------------------------


def encodes(function, *args):
    """Whether an op that encodes ran, and the result of `function`."""
    with Calls() as calls:
        out = function(*args)
    return bool({"pack", "pack_fixed", "save_epilogue"} & set(calls.names)), out


@pytest.mark.parametrize("training", [True, False])
def test_without_gradients_nothing_is_encoded(name, training):
    model, args = made(name).train(training), arguments(name)
    outs = []
    for recipe in ("float32", "exact-int2", "exact-int2-published"):
        assert encodes(lightened(model, recipe), *args)[0] == (recipe != "float32")
        torch.manual_seed(5)
        with torch.no_grad():
            encoded, out = encodes(lightened(model, recipe), *args)
        assert not encoded and out.grad_fn is None
        outs.append(out)
    assert torch.equal(outs[0], outs[1]) and torch.equal(outs[0], outs[2])


def test_evaluation_with_gradients(name):
    """Fixed statistics, no dropout: the same outputs, and gradients from codes that lose nothing."""
    model, args = made(name).eval(), arguments(name, needs_grad=True)
    (out, exact), (few, grads) = (run(lightened(model, r), args) for r in ("float32", LOSSLESS))
    assert_near(few, out)
    near = 0.05 if any(word in name for word in SMOOTH) else 1e-5
    top = max(float(truth.norm()) for truth in exact)
    for grad, truth in zip(grads, exact, strict=True):
        assert float((grad - truth).norm()) <= near * float(truth.norm()) + 1e-6 * top


def assert_whole(model, args):
    """Nothing is encoded, and gradients are those of the float32 recipe."""
    encoded, (_, grads) = encodes(run, model, args)
    assert not encoded
    torch.testing.assert_close(grads, run(lightened(model, "float32"), args)[1], rtol=1e-4, atol=1e-5)


def test_small_tensors_are_saved_whole():
    """Fewer than 1024 elements are not worth a codec."""
    x, edge_index = arguments("gcn")
    assert_whole(lightened(made("gcn"), "exact-int2"), (x[:60], edge_index % 60))


def test_restored():
    model = lightened(made("sage").eval(), "exact-int2")  # without dropout, as torch's masks are others
    gs.restore_(model)
    assert_whole(model, arguments("sage"))


# Projections ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("compute", [gs.Float32(), gs.Int8()], ids=["float32", "int8"])
@pytest.mark.parametrize("kind", ["gcn", "sage", "gin", "gat", "mlp"])
@pytest.mark.parametrize("norm", ["batch_norm", None])
def test_models_whose_operands_are_projected_train(kind, norm, compute):
    """Without a norm an epilogue has nothing to save but its result, which is an operand."""
    kinds = {"gcn": pyg.GCN, "sage": pyg.GraphSAGE, "gin": pyg.GIN, "gat": pyg.GAT}
    x, edge_index, y = planted()
    sizes, named = (x.size(1), HIDDEN, 3, int(y.max()) + 1), {"dropout": 0.1, "norm": norm}
    args = (x,) if kind == "mlp" else (x, edge_index)
    model = pyg.MLP([sizes[0], HIDDEN, HIDDEN, sizes[-1]], **named) if kind == "mlp" else kinds[kind](*sizes, **named)
    gs.lighten_(model, gs.Recipe(compute=compute, activations=gs.Projected(ratio=2, then=gs.Blockwise(bits=4))))
    optimizer, losses = torch.optim.Adam(model.parameters(), lr=0.02), []
    for _ in range(40):
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(*args), y)
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert sum(losses[-5:]) < 0.5 * sum(losses[:5])


# Autograd -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("recipe", ["exact-int2", "exact-int2-published"])
def test_two_backwards_agree_and_second_derivatives_are_refused(name, recipe):
    model, args = lightened(made(name), recipe), arguments(name)
    leaves = list(model.parameters())
    loss = dots([model(*args).square()])
    first, again = (torch.autograd.grad(loss, leaves, retain_graph=True) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    grads = torch.autograd.grad(loss, leaves, create_graph=True)
    with pytest.raises(RuntimeError, match=r"allow one derivative.*activations=gs.Keep\(\)"):
        torch.stack([g.square().sum() for g in grads]).sum().backward()


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpointing(name, reentrant):
    """The second run draws the masks of the first."""
    model, args = made(name), arguments(name, needs_grad=True)
    out, exact = run(lightened(model, "float32"), args)
    light = lightened(model, LOSSLESS)
    seeded(5)
    again = checkpoint(light, *args, use_reentrant=reentrant)
    assert_near(again, out)
    dots([again]).backward()
    grads = [*(p.grad for p in light.parameters()), args[0].grad]
    near = 0.05 if any(word in name for word in SMOOTH) else 1e-5
    top = max(float(truth.norm()) for truth in exact)
    for grad, truth in zip(grads, exact, strict=True):
        assert float((grad - truth).norm()) <= near * float(truth.norm()) + 1e-6 * top


@pytest.mark.parametrize("recipe", ["exact-int2", "exact-int4"])
def test_not_a_number_shows_in_the_gradient(name, recipe):
    """Or stops the run in forward, where attention's codec finds it."""
    model, args = lightened(made(name), recipe), arguments(name, needs_grad=True)
    args[0].data[7, 3] = torch.nan
    if name.startswith("gat"):
        with pytest.raises(ValueError, match="must be finite to be encoded"):
            run(model, args)
        return
    out, grads = run(model, args)
    assert out.isnan().any()
    assert all(grad.isnan().any() for grad, p in zip(grads, model.parameters(), strict=False) if p.dim() == 2)


def test_threads_make_no_difference_to_codes():
    model, args = lightened(made("sage"), "exact-int2"), arguments("sage")
    results = []
    for threads in (1, 8):
        torch.set_num_threads(threads)
        results.append(run(model, args)[1])
    torch.testing.assert_close(*results, rtol=1e-4, atol=1e-4)  # another code would be off by a tenth and more


def test_a_repeated_run_repeats_its_noise(name):
    model, args = made(name), arguments(name)
    first, again, other = (run(lightened(model, "exact-int2"), args, seed)[1] for seed in (5, 5, 6))
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(first, other, strict=True))


# Models as objects ----------------------------------------------------------------------------------------------


def pickled(model):
    return pickle.loads(pickle.dumps(model))


def saved(model):
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


@pytest.mark.parametrize("again", [copy.deepcopy, pickled, saved])
def test_copies_have_the_same_recipe(name, again):
    model, args = lightened(made(name), "exact-int2"), arguments(name)
    twin = again(model)
    for a, b in zip(run(model, args)[1], run(twin, args)[1], strict=True):
        assert torch.equal(a, b)


def test_frozen_parts():
    model, args = made("sage"), arguments("sage")
    for p in model.convs[:2].parameters():
        p.requires_grad_(False)
    found = []
    for recipe in ("float32", LOSSLESS):
        light = lightened(model, recipe)
        seeded(5)
        light(*args).square().sum().backward()
        assert all((p.grad is not None) == p.requires_grad for p in light.parameters())
        found.append([p.grad for p in light.parameters() if p.requires_grad])
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    "part", ["convs.0", "convs.1", "convs.1.lin_l", "convs.1.lin_r", "norms.0", "norms.1.module", "act"]
)
@pytest.mark.parametrize("kind", ["forward_hook", "forward_pre_hook", "full_backward_hook"])
def test_hooked_modules_are_called(part, kind):
    """Someone listens to one part, so that it is not fused: outputs and gradients stay."""
    args, model, heard = arguments("sage", needs_grad=True), made("sage"), []
    out, exact = run(lightened(model, "float32"), args)
    light = lightened(model, LOSSLESS)
    getattr(light.get_submodule(part), f"register_{kind}")(lambda *given: heard.append(part))
    got, grads = run(light, args)
    assert heard
    assert_near(got, out)
    torch.testing.assert_close(grads, exact, rtol=1e-3, atol=1e-3)
