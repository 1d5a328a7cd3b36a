"""Gradients that go from a chain to the product before it as int8 rows: the same gradients, whoever else listens."""

from __future__ import annotations

import contextlib
import copy
import io

import pytest
import torch
from gossamer.compute import box as boxes
from gossamer.compute.box import Box, box_of, drop_box
from gossamer.compute.conv import products
from gossamer.compute.entry import Entry
from gossamer.compute.plan import Int8
from torch import nn
from torch.nn import functional as F
from torch_geometric import nn as pyg

import gossamer as gs
from support.compare import cosine
from support.paths import forced
from support.planted import CLASSES, NODES, WIDTH, planted
from support.tensors import seeded

MODELS = {"GCN": pyg.GCN, "GraphSAGE": pyg.GraphSAGE, "GIN": pyg.GIN}
FILLED = {"GCN": 2, "GraphSAGE": 2, "GIN": 5}
"""Chains behind a product, of three layers; GIN's have one inside of each, too."""


@pytest.fixture(autouse=True)
def _begin_anew():
    """Small tensors take the fused ops, and noise begins as in a new process."""
    seeded()
    with forced(least=1):
        yield


@pytest.fixture
def filled(monkeypatch):
    """One entry for each box that was filled."""
    found, fill = [], Box.fill
    monkeypatch.setattr(Box, "fill", lambda self, *args: found.append(self) or fill(self, *args))
    return found


@pytest.fixture
def no_boxes(monkeypatch):
    """A context in which no chain finds a box."""

    @contextlib.contextmanager
    def without():
        with monkeypatch.context() as patch:
            patch.setattr(boxes, "box_of", lambda x: None)
            yield

    return without


def model_of(kind, recipe="tango", dropout=0.0):
    torch.manual_seed(1)
    model = MODELS[kind](WIDTH, WIDTH, 3, CLASSES, norm="batch_norm", dropout=dropout)
    gs.lighten_(model, recipe)
    return model


def step(model, learned=False, more=lambda: 0.0):
    """The result, and all gradients by name; `more` is added to the loss. Noise begins anew."""
    seeded()
    model.zero_grad()
    x, edge_index, y = planted()
    x.requires_grad_(learned)
    out = model(x, edge_index)
    (F.cross_entropy(out, y) + more()).backward()
    found = {name: p.grad.clone() for name, p in model.named_parameters()}
    return out.detach(), found | ({"x": x.grad} if learned else {})


def assert_alike(found, expected, least):
    """The cosine of each; a bias before a batch norm has no gradient but noise."""
    top = max(float(g.norm()) for g in expected.values())
    for name, want in expected.items():
        if float(want.norm()) > 1e-3 * top:
            assert cosine(found[name], want) > least, name


# The same gradients with boxes and without.


@pytest.mark.parametrize("dropout", [0.0, 0.5])
@pytest.mark.parametrize("kind", MODELS)
def test_gradients_differ_by_noise_alone(kind, dropout, filled, no_boxes):
    """Stochastic rounding has an nsr of 1e-3 or less each time, and a few of them lie between: cosine 1 - nsr."""
    model = model_of(kind, dropout=dropout)
    out, found = step(model)
    assert len(filled) == FILLED[kind]
    with no_boxes():
        want_out, want = step(model)
    assert len(filled) == FILLED[kind], "without boxes none is filled"
    torch.testing.assert_close(out, want_out, rtol=1e-4, atol=1e-5)  # the last product is a sum in another order
    assert_alike(found, want, 0.999)


@pytest.mark.parametrize("kind", MODELS)
def test_rounded_to_nearest_they_are_the_same_bits(kind, filled, no_boxes, monkeypatch):
    """But for the biases of products: their sums of columns are taken in another order."""
    monkeypatch.setattr(boxes, "multiplies", lambda act: False)  # products apart from their chain, as without a box
    model = model_of(kind, gs.Recipe(compute=Int8(gradients="nearest")), dropout=0.5)
    out, found = step(model, learned=True)
    with no_boxes():
        want_out, want = step(model, learned=True)
    assert len(filled) == FILLED[kind] and torch.equal(out, want_out)
    for name, grad in want.items():
        if name.endswith("bias") and "norm" not in name:
            torch.testing.assert_close(found[name], grad, rtol=1e-4, atol=1e-5)
        else:
            assert torch.equal(found[name], grad), name


@pytest.mark.parametrize("kind", MODELS)
def test_frozen_layers(kind, no_boxes):
    """Whatever needs no gradient has none; the rest is as without boxes."""
    for frozen in ("convs.0", "convs.1", "norms.0"):
        model = model_of(kind, gs.Recipe(compute=Int8(gradients="nearest")))
        model.get_submodule(frozen).requires_grad_(False)
        grads = []
        for around in (contextlib.nullcontext, no_boxes):
            seeded()
            model.zero_grad()
            x, edge_index, y = planted()
            with around():
                F.cross_entropy(model(x, edge_index), y).backward()
            grads.append({name: p.grad for name, p in model.named_parameters() if p.grad is not None})
        assert grads[0].keys() == grads[1].keys()
        assert not any(name.startswith(frozen) for name in grads[0])
        assert_alike(*grads, 0.999)


# Somebody else reads the result.


def in_float32(model):
    plain = copy.deepcopy(model)
    gs.restore_(plain)
    return plain


def listening(model, name):
    """Hooks the module called so, and gives what the loss adds: a function of the result it had last."""
    heard = []
    model.get_submodule(name).register_forward_hook(lambda module, args, out: heard.append(out))
    return lambda: heard[-1].sin().mean()


HOOKED = {
    "a convolution": ("GCN", "convs.0", 1),
    "the second": ("GraphSAGE", "convs.1", 1),
    "a convolution's product": ("GCN", "convs.1.lin", 1),
    "a convolution's MLP": ("GIN", "convs.0.nn", 3),
    "the first product of an MLP": ("GIN", "convs.1.nn.lins.0", 4),
    "the last product of an MLP": ("GIN", "convs.0.nn.lins.1", 4),
    "a norm": ("GCN", "norms.0", 1),
}


@pytest.mark.parametrize("case", HOOKED)
def test_what_a_hook_captures_may_be_part_of_the_loss(case, filled):
    """Its box is dropped, the others are not; gradients are float32's up to rounding and the ReLUs it turns over.

    That is an nsr of 2e-2 at most (test_int8_models.py), hence a cosine of 0.99; the loss has a rougher part here.
    """
    kind, name, least = HOOKED[case]
    model = model_of(kind)
    plain = in_float32(model)
    _, want = step(plain, more=listening(plain, name))
    _, found = step(model, more=listening(model, name))
    assert least <= len(filled) < FILLED[kind]
    assert_alike(found, want, 0.98)


def test_hooks_on_all_modules(filled):
    model = model_of("GIN")
    plain = in_float32(model)
    heard = []
    handle = nn.modules.module.register_module_forward_hook(lambda module, args, out: heard.append((module, out)))

    def more():
        outs = [out for module, out in heard if isinstance(module, (pyg.GINConv, nn.Linear, pyg.Linear))]
        heard.clear()
        return sum(out.sin().mean() for out in outs)

    try:
        _, want = step(plain, more=more)
        _, found = step(model, more=more)
    finally:
        handle.remove()
    assert not filled
    assert_alike(found, want, 0.98)


class Residual(nn.Module):
    """Both a sequence and what is added to it read the convolution's result."""

    def __init__(self):
        super().__init__()
        self.conv = pyg.GCNConv(WIDTH, WIDTH)
        self.then = nn.Sequential(nn.BatchNorm1d(WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH))
        self.last = nn.Linear(WIDTH, CLASSES)

    def forward(self, x, edge_index):
        h = self.conv(x, edge_index)
        return self.last(h + self.then(h))


class Inside(nn.Module):
    """A sequence that begins with a product: nobody else can have its result."""

    def __init__(self, *between):
        super().__init__()
        products = [nn.Linear(WIDTH, WIDTH) for _ in range(2)]
        self.then = nn.Sequential(products[0], *between, nn.BatchNorm1d(WIDTH), nn.ReLU(), products[1])
        self.last = nn.Linear(WIDTH, CLASSES)

    def forward(self, x, edge_index):
        return self.last(self.then(x))


class Keep(nn.Module):
    """Gives back what it was given, and keeps it."""

    def forward(self, x):
        self.kept = x
        return x


def of_own(module):
    seeded()
    model = module()
    gs.lighten_(model, "tango")
    return model, in_float32(model)


def test_a_sequence_does_not_know_who_else_has_its_input(filled):
    model, plain = of_own(Residual)
    assert_alike(step(model)[1], step(plain)[1], 0.98)
    assert not filled


def test_within_a_sequence_it_does(filled):
    model, plain = of_own(Inside)
    assert_alike(step(model)[1], step(plain)[1], 0.98)
    assert len(filled) == 1


def test_but_not_behind_a_module_that_may_have_kept_it(filled):
    model, plain = of_own(lambda: Inside(Keep()))
    found = step(model, more=lambda: model.then[1].kept.sin().mean())[1]
    assert_alike(found, step(plain, more=lambda: plain.then[1].kept.sin().mean())[1], 0.98)
    assert not filled


def test_a_second_reader_that_nobody_could_know_of_is_told():
    """Kept at the end of a convolution's own sequence, behind which the model's chain takes the box along."""
    kept = Keep()
    inner = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), kept)
    model = pyg.GIN(WIDTH, WIDTH, 2, CLASSES, norm="batch_norm")
    model.convs[0].nn = inner
    gs.lighten_(model, "tango")
    kept = model.convs[0].nn[3]
    with pytest.raises(RuntimeError, match=r"used a second time, outside of it; register a forward hook.*restore_"):
        step(model, more=lambda: kept.kept.sin().mean())
    step(model)  # the next step is as good as the first


# Autograd and files.


@pytest.mark.parametrize("kind", MODELS)
def test_backward_twice(kind, filled):
    model = model_of(kind)
    x, edge_index, y = planted()
    loss = F.cross_entropy(model(x, edge_index), y)
    grads = []
    for retain in (True, False):
        found = torch.autograd.grad(loss, list(model.parameters()), retain_graph=retain)
        grads.append(dict(zip(dict(model.named_parameters()), found, strict=True)))
    assert len(filled) == 2 * FILLED[kind]
    assert_alike(*grads, 0.999)


def test_a_backward_that_does_not_reach_the_product(filled):
    """What lies in a box that nobody opened is void in the next backward."""
    model = model_of("GCN")
    x, edge_index, y = planted()
    loss = F.cross_entropy(model(x, edge_index), y)
    weight = model.norms[0].module.weight
    (alone,) = torch.autograd.grad(loss, [weight], retain_graph=True)
    together = torch.autograd.grad(2 * loss, [weight, model.convs[0].lin.weight])
    assert len(filled) == 4
    assert cosine(alone, together[0]) > 0.999
    want = torch.autograd.grad(2 * F.cross_entropy(model(x, edge_index), y), [model.convs[0].lin.weight])[0]
    assert cosine(together[1], want) > 0.999 and 0.9 < float(together[1].norm() / want.norm()) < 1.1


@pytest.mark.filterwarnings("ignore:Anomaly Detection")
@pytest.mark.parametrize("kind", MODELS)
def test_anomaly_mode_changes_nothing(kind, filled):
    model = model_of(kind)
    out, want = step(model)
    with torch.autograd.detect_anomaly():
        again, found = step(model)
    assert len(filled) == 2 * FILLED[kind] and torch.equal(again, out)
    assert all(torch.equal(found[name], grad) for name, grad in want.items())


def test_results_and_features_are_written_as_ever():
    layer = pyg.GCNConv(WIDTH, WIDTH)
    gs.lighten_(nn.ModuleList([layer, nn.Linear(2, 2)]), "tango")
    x, edge_index, _ = planted()
    out = layer(x, edge_index)
    assert box_of(out) is not None
    for tensor in (out.detach(), out, x):
        file = io.BytesIO()
        torch.save(tensor, file)
        file.seek(0)
        read = torch.load(file)
        assert torch.equal(read, tensor) and box_of(read) is None


# The box itself.


def product(rows=None, **named):
    generator = torch.Generator().manual_seed(2)
    x, w, b = (torch.randn(s, generator=generator).requires_grad_() for s in ((NODES, WIDTH), (8, WIDTH), (8,)))
    return products(x, [w], [b], Entry(Int8(**named)), rows=rows)[0]


def test_when_there_is_a_box():
    out = product()
    assert box_of(out) is not None and box_of(out + 0) is None and box_of(out.detach()) is None
    drop_box(out)
    assert box_of(out) is None and drop_box("no tensor") == "no tensor"
    out = product()
    with torch.no_grad():
        out.mul_(2)
    assert box_of(out) is None, "changed in place"
    assert box_of(product(rows=torch.randn(NODES, 8))) is None, "the rows that were added want their gradient, too"
    with torch.inference_mode():
        assert box_of(product()) is None


@pytest.mark.parametrize("gradients", ["stochastic", "nearest"])
def test_taking(gradients):
    """Empty, a box leaves the gradient as it is; filled, it knows its own stand-in, and gives once."""
    out = product(gradients=gradients)
    box = box_of(out)
    dout = torch.randn(NODES, 8)
    assert box.take(dout) is None
    settings = (1, 1e-5, 1, 0.0, 0.0, 0)  # fixed statistics, ReLU
    gradient = (dout, out.detach(), None, None, torch.zeros(8), torch.ones(8))
    stand_in, *_ = box.fill(gradient, settings)
    assert stand_in.shape == dout.shape and stand_in.isnan().all() and stand_in.untyped_storage().nbytes() == 4
    (rows,), sums, dots = box.take(stand_in)
    assert dots is None, "nobody asked for products"
    torch.testing.assert_close(sums, torch.where(out > 0, dout, 0.0).sum(0), rtol=1e-4, atol=1e-4)
    assert rows.codes.shape == dout.shape and box.take(dout) is None
    box.fill(gradient, settings)
    with pytest.raises(RuntimeError, match="used a second time, outside of it"):
        box.take(stand_in + dout)
    assert box.take(dout) is None, "an error leaves nothing behind"
