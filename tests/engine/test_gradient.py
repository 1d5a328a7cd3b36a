"""Gradients that go from an epilogue to the product before it as int8 rows: right, and the same for whoever looks."""

from __future__ import annotations

import copy
import io
import pickle

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch_geometric import nn as pyg

import gossamer as gs
from gossamer import native
from gossamer.engine.gradient import QGradient, norm_act, request_of
from gossamer.engine.int8.entry import Entry
from gossamer.engine.int8.products import products
from gossamer.engine.settings import Int8
from gossamer.ops.norm_act import Epilogue, Over
from gossamer.ops.quantize_rows import CODE_MAX
from support.compare import cosine
from support.paths import forced
from support.planted import CLASSES, NODES, WIDTH, planted
from support.tensors import seeded
from support.traces import Calls
from support.unbiased import assert_unbiased

MODELS = {"GCN": pyg.GCN, "GraphSAGE": pyg.GraphSAGE, "GIN": pyg.GIN, "GAT": pyg.GAT}
REQUESTS = {"GCN": 2, "GraphSAGE": 2, "GIN": 5, "GAT": 2}
"""Epilogues behind a product, of three layers; GIN's have one inside of each, too."""
NEAREST = gs.Recipe(compute=Int8(gradients="nearest"))
pytestmark = pytest.mark.skipif(native.library is None, reason="containers fuse epilogues only with kernels")


@pytest.fixture(autouse=True)
def _begin_anew():
    """Small tensors take the fused ops, and noise begins as in a new process."""
    seeded()
    with forced(least=1):
        yield


def model_of(kind, recipe="tango", dropout=0.0, **more):
    torch.manual_seed(1)
    heads = {"heads": 2} if kind == "GAT" else {}
    model = MODELS[kind](WIDTH, WIDTH, 3, CLASSES, **{"norm": "batch_norm", "dropout": dropout} | heads | more)
    gs.lighten_(model, recipe)
    return model


def step(model, requires_grad=False, more=lambda: 0.0):
    """The result, and all gradients by name; `more` is added to the loss. Noise begins anew."""
    seeded()
    model.zero_grad()
    x, edge_index, y = planted()
    x.requires_grad_(requires_grad)
    out = model(x, edge_index)
    (F.cross_entropy(out, y) + more()).backward()
    found = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    return out.detach(), found | ({"x": x.grad} if requires_grad else {})


def assert_alike(found, expected, least):
    """The cosine of each; a bias before a batch norm has no gradient but noise, that of att is made of kinks."""
    top = max(float(g.norm()) for g in expected.values())
    for name, want in expected.items():
        if float(want.norm()) > 1e-3 * top:
            assert cosine(found[name], want) > (least if "att_" not in name else min(least, 0.96)), name


def in_rows(calls):
    """How many epilogues made their gradient as int8 rows."""
    return calls.names.count("norm_act_backward_rows")


# The same gradients with requests and without ---------------------------------------------------------------------


@pytest.mark.parametrize("dropout", [0.0, 0.5])
@pytest.mark.parametrize("kind", MODELS)
def test_gradients_differ_by_noise_alone(kind, dropout):
    """Stochastic rounding has an nsr of 1e-3 or less each time, and a few of them lie between: cosine 1 - nsr."""
    model = model_of(kind, dropout=dropout)
    with Calls() as calls:
        out, found = step(model)
    assert in_rows(calls) == REQUESTS[kind]
    with forced(requests=False), Calls() as calls:
        want_out, want = step(model)
    assert in_rows(calls) == 0
    torch.testing.assert_close(out, want_out, rtol=1e-4, atol=1e-5)  # the last product is a sum in another order
    assert_alike(found, want, 0.999)


@pytest.mark.parametrize("kind", ["GCN", "GraphSAGE", "GIN"])
def test_rounded_to_nearest_they_are_the_same_bits(kind):
    """But for the biases of products: their sums of columns are taken in another order.

    GAT's softmax gets its products of gradients and results in another order.
    """
    model = model_of(kind, NEAREST, dropout=0.5)
    with forced(together=False), Calls() as calls:
        out, found = step(model, requires_grad=True)
    with forced(requests=False):
        want_out, want = step(model, requires_grad=True)
    assert in_rows(calls) == REQUESTS[kind] and torch.equal(out, want_out)
    for name, grad in want.items():
        if name.endswith("bias") and "norm" not in name:
            torch.testing.assert_close(found[name], grad, rtol=1e-4, atol=1e-5)
        else:
            assert torch.equal(found[name], grad), name


@pytest.mark.parametrize("kind", MODELS)
def test_frozen_layers(kind):
    """Whatever needs no gradient has none; the rest is as without requests."""
    for frozen in ("convs.0", "convs.1", "norms.0"):
        model = model_of(kind, NEAREST)
        model.get_submodule(frozen).requires_grad_(False)
        _, found = step(model)
        with forced(requests=False):
            _, want = step(model)
        assert found.keys() == want.keys() and not any(name.startswith(frozen) for name in found)
        assert_alike(found, want, 0.999)


NORMS = {"batch": Over.COLUMNS, "fixed": Over.FIXED}


@pytest.mark.parametrize("norm", NORMS)
def test_the_gradient_is_right_on_average(norm):
    """That of a product's result, seen by a tensor hook, and what the product makes of it."""
    generator = torch.Generator().manual_seed(2)
    shapes = ((70, 9), (8, 9), (8,), (8,), (8,), (70, 8))
    x, w, b, weight, bias, dout = (torch.randn(shape, generator=generator).requires_grad_() for shape in shapes)
    with torch.no_grad():  # outputs of alike scale, so that none of their weights is rounded a second time for d x
        w.add_(2 * w.sign())
    fixed = (torch.zeros(8), torch.ones(8)) if NORMS[norm] == Over.FIXED else (None, None)
    epilogue = Epilogue(weight, bias, *fixed, int(NORMS[norm]), 1e-5, 1, 0.0, 0.5, 7)

    def run(asks):
        (y, *_) = products(x, [w], [b], Entry(Int8()))
        seen = []
        y.register_hook(lambda g: seen.append(g.clone()))
        out = norm_act(y, epilogue, request_of(y))[0] if asks else gs.ops.norm_act(y, epilogue)[0]
        grads = torch.autograd.grad(out, [x, w], dout.detach())
        return [*seen, *grads]

    exact, *_ = run(asks=False)
    codes = gs.ops.quantize_rows(x.detach()), gs.ops.quantize_rows(w.detach())
    xs, ws = (c.double() * s.double().unsqueeze(1) for c, s in codes)
    assert_unbiased(lambda: run(asks=True), [exact, exact.double() @ ws, exact.double().t() @ xs])


# Somebody looks at a gradient --------------------------------------------------------------------------------------


def listening(model, name, listen):
    """Calls `listen` with the result of the module of that name."""
    return model.get_submodule(name).register_forward_hook(lambda module, args, out: listen(out))


def by_tensor_hook(model, name):
    seen = []

    def listen(out):
        out.register_hook(lambda g: seen.append(g))

    listening(model, name, listen)
    step(model)
    return seen[-1]


def by_retain_grad(model, name):
    seen = []

    def listen(out):
        out.retain_grad()
        seen.append(out)

    listening(model, name, listen)
    step(model)
    return seen[-1].grad


def by_full_backward_hook(model, name):
    seen = []
    model.get_submodule(name).register_full_backward_hook(lambda module, inwards, outwards: seen.append(outwards[0]))
    step(model, requires_grad=True)  # torch warns of such hooks on modules whose input needs no gradient
    return seen[-1]


def by_full_backward_pre_hook(model, name):
    seen = []
    model.get_submodule(name).register_full_backward_pre_hook(lambda module, outwards: seen.append(outwards[0]))
    step(model, requires_grad=True)  # torch warns of such hooks on modules whose input needs no gradient
    return seen[-1]


def by_capture(model, name):
    """torch.autograd.grad with respect to the result."""
    seen, (x, edge_index, y) = [], planted()
    listening(model, name, seen.append)
    seeded()
    loss = F.cross_entropy(model(x, edge_index), y)
    return torch.autograd.grad(loss, [seen[-1]])[0]


LOOKS = [by_tensor_hook, by_retain_grad, by_full_backward_hook, by_full_backward_pre_hook, by_capture]


def in_float32(model):
    plain = copy.deepcopy(model)
    gs.restore_(plain)
    return plain


@pytest.mark.filterwarnings("ignore:Anomaly Detection")
@pytest.mark.parametrize("anomaly", [False, True])
@pytest.mark.parametrize("look", LOOKS)
@pytest.mark.parametrize("name", ["convs.0", "convs.1"])
@pytest.mark.parametrize("kind", MODELS)
def test_who_looks_sees_the_gradient(kind, name, look, anomaly):
    """Within a step of the float gradient, and near that of float32, from which ReLUs that turned over part it.

    A step is that of the row's largest number; factors of outputs, by which it may have been multiplied before, differ
    by four at most. Behind convs.1 nothing else is rounded, but in GIN's last MLP.
    """
    model = model_of(kind)
    plain = in_float32(model)
    with torch.autograd.set_detect_anomaly(anomaly):
        found = look(copy.deepcopy(model), name)
    with forced(requests=False):
        exact = look(model, name)
    want = look(plain, name)
    assert found.shape == want.shape and found.dtype == torch.float32
    largest = exact.abs().amax(1, keepdim=True)
    if name == "convs.1" and kind != "GIN":
        assert bool(((found - exact).abs() <= 4 * largest / CODE_MAX + 1e-4 * largest.max()).all())
    assert cosine(found, exact) > 0.998
    assert cosine(found, want) > 0.97 and 0.97 < float(found.norm() / want.norm()) < 1.03


@pytest.mark.filterwarnings("ignore:Anomaly Detection")
@pytest.mark.parametrize("kind", MODELS)
def test_looking_changes_nothing(kind):
    """Whoever reads a gradient without changing it: the same bits."""
    _, want = step(model_of(kind))
    for look in (by_tensor_hook, by_retain_grad):
        model = model_of(kind)
        seen = look(model, "convs.0")
        assert isinstance(seen, QGradient) == (look is by_tensor_hook), "retain_grad makes a copy"
        found = {name: p.grad for name, p in model.named_parameters()}
        assert all(torch.equal(found[name], grad) for name, grad in want.items() if name.startswith("convs.0"))
    with torch.autograd.set_detect_anomaly(True):
        _, found = step(model_of(kind))
    assert all(torch.equal(found[name], grad) for name, grad in want.items())


def in_place(g):
    g.mul_(2)


def into(g):
    torch.mul(g, 2, out=g)


def of_a_list(g):
    torch._foreach_mul_([g], 2)


@pytest.mark.parametrize("change", [lambda g: g * 2, in_place, into, of_a_list], ids=["new", "*=", "out=", "foreach"])
@pytest.mark.parametrize("kind", MODELS)
def test_a_hook_may_change_the_gradient(kind, change):
    """The layer before gets twice its gradient, those behind the same bits as without the hook."""
    model = model_of(kind)
    listening(model, "convs.0", lambda out: None)  # a hooked convolution takes no epilogue along
    _, want = step(model)
    handle = listening(model, "convs.0", lambda out: out.register_hook(change) and None)
    _, found = step(model)
    handle.remove()
    top = max(float(grad.norm()) for grad in want.values())
    for name, grad in want.items():
        if not name.startswith("convs.0"):
            assert torch.equal(found[name], grad), name
        elif float(grad.norm()) > 1e-3 * top:
            assert cosine(found[name], grad) > 0.995 and 1.95 < float(found[name].norm() / grad.norm()) < 2.05, name
    assert all(torch.equal(step(model)[1][name], grad) for name, grad in want.items())


# Somebody else reads the result -----------------------------------------------------------------------------------


def kept_by(model, name):
    """What the loss adds: a function of the last result of the module of that name."""
    heard = []
    listening(model, name, heard.append)
    return lambda: heard[-1].sin().mean()


READ = {
    "a convolution": ("GCN", "convs.0"),
    "the second": ("GraphSAGE", "convs.1"),
    "a convolution's product": ("GCN", "convs.1.lin"),
    "a convolution's MLP": ("GIN", "convs.0.nn"),
    "the first product of an MLP": ("GIN", "convs.1.nn.lins.0"),
    "the last product of an MLP": ("GIN", "convs.0.nn.lins.1"),
    "attention": ("GAT", "convs.0"),
    "the second attention": ("GAT", "convs.1"),
    "its projection": ("GAT", "convs.1.lin"),
    "a norm": ("GCN", "norms.0"),
}


@pytest.mark.parametrize("case", READ)
def test_what_a_hook_captures_may_be_part_of_the_loss(case):
    """Gradients are float32's up to rounding and the ReLUs it turns over.

    That is an nsr of 2e-2 at most (int8/test_models.py), hence a cosine of 0.99; the loss has a rougher part here.
    """
    kind, name = READ[case]
    model = model_of(kind)
    plain = in_float32(model)
    _, want = step(plain, more=kept_by(plain, name))
    _, found = step(model, more=kept_by(model, name))
    _, without = step(model)
    assert_alike(found, want, 0.98)
    assert any(cosine(found[key], grad) < 0.999 for key, grad in without.items()), "the second reader has a say"


def test_hooks_on_all_modules():
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
    assert_alike(found, want, 0.98)


class Residual(nn.Module):
    """Both a sequence and what is added to it read the convolution's result."""

    def __init__(self, conv=pyg.GCNConv):
        super().__init__()
        self.conv = conv(WIDTH, WIDTH)
        self.then = nn.Sequential(nn.BatchNorm1d(WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH))
        self.last = nn.Linear(WIDTH, CLASSES)

    def forward(self, x, edge_index):
        h = self.conv(x, edge_index)
        return self.last(h + self.then(h))


class Keep(nn.Module):
    """Returns what it was given, and keeps it."""

    def forward(self, x):
        self.kept = x
        return x


class Inside(nn.Module):
    """A sequence that begins with a product."""

    def __init__(self, *between):
        super().__init__()
        lins = [nn.Linear(WIDTH, WIDTH) for _ in range(2)]
        self.then = nn.Sequential(lins[0], *between, nn.BatchNorm1d(WIDTH), nn.ReLU(), lins[1])
        self.last = nn.Linear(WIDTH, CLASSES)

    def forward(self, x, edge_index):
        return self.last(self.then(x))


class Keeping(nn.Module):
    """Keeps the result of a convolution's own sequence, which the model's epilogue reads."""

    def __init__(self):
        super().__init__()
        self.model = pyg.GIN(WIDTH, WIDTH, 2, CLASSES, norm="batch_norm")
        self.model.convs[0].nn = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), Keep())

    def forward(self, x, edge_index):
        return self.model(x, edge_index)


def keeper_of(model):
    return next(module for module in model.modules() if isinstance(module, Keep))


OWN = {
    "residual of GCNConv": Residual,
    "residual of SAGEConv": lambda: Residual(pyg.SAGEConv),
    "residual of GATConv": lambda: Residual(pyg.GATConv),
    "within a sequence": Inside,
    "kept within a sequence": lambda: Inside(Keep()),
    "kept within a convolution": Keeping,
}


@pytest.mark.parametrize("case", OWN)
def test_a_second_reader_of_a_product(case):
    """Outside of a container, inside of it, or one that nobody could know of."""
    model = OWN[case]()
    gs.lighten_(model, "tango")
    plain = in_float32(model)
    grads = []
    for each in (model, plain):
        keeps = "kept" in case
        grads.append(step(each, more=lambda each=each: keeper_of(each).kept.sin().mean() if keeps else 0.0)[1])  # noqa: B023
    assert_alike(*grads, 0.98)


@pytest.mark.parametrize("kind", MODELS)
def test_a_result_that_was_changed_where_autograd_does_not_look(kind):
    """The epilogue reads other numbers than the product made."""

    @torch.no_grad()
    def change(out):
        out.mul_(torch.linspace(0.5, 2, WIDTH))

    model = model_of(kind)
    plain = in_float32(model)
    for each in (model, plain):
        listening(each, "convs.0", change)
    assert_alike(step(model)[1], step(plain)[1], 0.98)


# Autograd and files ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", MODELS)
def test_backward_twice(kind):
    model = model_of(kind)
    x, edge_index, y = planted()
    loss = F.cross_entropy(model(x, edge_index), y)
    grads = []
    for retain in (True, False):
        with Calls() as calls:
            found = torch.autograd.grad(loss, list(model.parameters()), retain_graph=retain)
        grads.append(dict(zip(dict(model.named_parameters()), found, strict=True)))
        assert in_rows(calls) == REQUESTS[kind]
    assert_alike(*grads, 0.999)


def test_a_backward_that_does_not_reach_the_product():
    """What it made of the product's gradient has no part in the next backward."""
    model = model_of("GCN")
    x, edge_index, y = planted()
    loss = F.cross_entropy(model(x, edge_index), y)
    weight = model.norms[0].module.weight
    (alone,) = torch.autograd.grad(loss, [weight], retain_graph=True)
    together = torch.autograd.grad(2 * loss, [weight, model.convs[0].lin.weight])
    assert cosine(alone, together[0]) > 0.999
    want = torch.autograd.grad(2 * F.cross_entropy(model(x, edge_index), y), [model.convs[0].lin.weight])[0]
    assert cosine(together[1], want) > 0.999 and 0.9 < float(together[1].norm() / want.norm()) < 1.1


@pytest.mark.parametrize("act", ["relu", "elu"])
@pytest.mark.parametrize("kind", MODELS)
def test_second_derivatives_are_refused(kind, act):
    """Of every parameter's gradient; the first derivatives are right."""
    model, (x, edge_index, y) = model_of(kind, act=act), planted()
    _, want = step(model)
    seeded()
    loss = F.cross_entropy(model(x, edge_index), y)
    named = {name: p for name, p in model.named_parameters() if name in want}
    grads = torch.autograd.grad(loss, list(named.values()), create_graph=True)
    assert_alike(dict(zip(named, grads, strict=True)), want, 0.995)
    for name, grad in zip(named, grads, strict=True):
        if not name.startswith("convs.2"):  # that is in float32
            with pytest.raises(RuntimeError, match="one derivative"):
                grad.square().sum().backward(retain_graph=True)


def test_results_and_features_are_written_as_ever():
    layer = pyg.GCNConv(WIDTH, WIDTH)
    gs.lighten_(nn.ModuleList([layer, nn.Linear(2, 2)]), "tango")
    x, edge_index, _ = planted()
    out = layer(x, edge_index)
    assert request_of(out) is not None
    for tensor in (out.detach(), out, x):
        read = reloaded(tensor)
        assert torch.equal(read, tensor) and request_of(read) is None


def reloaded(tensor):
    file = io.BytesIO()
    torch.save(tensor, file)
    file.seek(0)
    return torch.load(file)


# A request, and the gradient that answers it ----------------------------------------------------------------------

RELU = Epilogue(None, None, torch.zeros(8), torch.ones(8), int(Over.FIXED), 1e-5, 1)


def product(add=None, **named):
    generator = torch.Generator().manual_seed(2)
    x, w, b = (torch.randn(s, generator=generator).requires_grad_() for s in ((NODES, WIDTH), (8, WIDTH), (8,)))
    return products(x, [w], [b], Entry(Int8(**named)), add=add)[0]


def answered(out, dout):
    """The gradient of `out` behind a ReLU."""
    return request_of(out).fill(dout, out.detach(), RELU)[0]


def test_when_there_is_a_request():
    out = product()
    assert request_of(out) is not None and request_of(out + 0) is None and request_of(out.detach()) is None
    with torch.no_grad():
        out.mul_(2)
    assert request_of(out) is None, "changed in place"
    assert request_of(product(add=torch.randn(NODES, 8))) is None, "the addend needs the gradient, too"
    with torch.inference_mode():
        assert request_of(product()) is None


@pytest.mark.parametrize("gradients", ["stochastic", "nearest"])
def test_an_answer(gradients):
    out, dout = product(gradients=gradients), torch.randn(NODES, 8)
    request, exact = request_of(out), torch.where(out > 0, dout, 0.0) / (1 + RELU.eps) ** 0.5
    assert request.answer(dout) is None, "any other tensor"
    found = answered(out, dout)
    assert request.answer(found) is found and request_of(product()).answer(found) is None
    assert found.dots is None, "nobody asked for products"
    torch.testing.assert_close(found.sums, exact.sum(0), rtol=1e-4, atol=1e-4)
    ((codes, scale),) = found.rows.values()
    assert codes.shape == dout.shape and codes.dtype == torch.int8 and scale.shape == (NODES,)
    step_size = 4 * exact.abs().amax(1, keepdim=True) / CODE_MAX  # of outputs whose factors differ by four at most
    assert bool(((found - exact).abs() <= step_size).all())
    found.add_(dout)
    assert request.answer(found) is None, "its rows are void"
    assert bool(((found - exact - dout).abs() <= step_size).all())


@pytest.fixture
def gradient():
    return answered(product(), torch.randn(NODES, 8))


def test_it_holds_no_float_rows(gradient):
    assert sum(t.nbytes for rows in gradient.rows.values() for t in rows) == NODES * (8 + 4)
    before = gradient.rows
    assert gradient.shape == (NODES, 8) and gradient.dtype == torch.float32 and not gradient.requires_grad
    assert (gradient + 0).isfinite().all() and gradient.rows is before, "reading leaves the rows"


def test_it_is_copied_and_written_as_a_plain_tensor(gradient):
    whole = gradient + 0
    assert type(whole) is torch.Tensor
    for other in (copy.deepcopy(gradient), copy.copy(gradient), pickle.loads(pickle.dumps(gradient)), gradient.clone()):
        assert torch.equal(other + 0, whole)
    for other in (copy.deepcopy(gradient), pickle.loads(pickle.dumps(gradient)), reloaded(gradient), gradient.clone()):
        assert type(other) is torch.Tensor and torch.equal(other, whole)
        other.zero_()
    assert torch.equal(gradient + 0, whole), "they share nothing"


def test_it_is_shown_as_numbers(gradient):
    whole = gradient + 0
    assert torch.equal(torch.from_numpy(gradient.numpy()), whole) and gradient.tolist() == whole.tolist()
    assert gradient[3].tolist() == whole[3].tolist() and gradient[3, 2].item() == whole[3, 2].item()
    assert f"{whole[0, 0].item():.4f}" in repr(gradient) and f"{whole[0, 0].item():.4f}" in str(gradient)
    assert float(gradient.norm()) == float(whole.norm()) and bool(gradient.isfinite().all())
    assert torch.equal(gradient.double(), whole.double()) and torch.equal(gradient.t(), whole.t())
    assert torch.equal(gradient @ whole.t(), whole @ whole.t()) and torch.equal(whole - gradient, whole * 0)


def test_it_may_be_changed_in_place(gradient):
    whole = gradient + 0
    gradient.mul_(3)
    assert torch.equal(gradient + 0, whole * 3)
    gradient[0] = 1
    assert bool((gradient[0] == 1).all()) and torch.equal(gradient[1:] + 0, whole[1:] * 3)
    gradient.zero_()
    assert not gradient.any()
    other = torch.zeros(NODES, 8)
    other.copy_(whole)
    gradient.copy_(other)
    assert torch.equal(gradient + 0, whole)
