"""A user's forward whose norms, activations, dropout and sums wait for each other computes what its Python says.

Each forward runs twice: under the float32 recipe, where nothing waits, and under recipes where it does.
"""

from __future__ import annotations

import copy
import gc
import pickle
import weakref

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils.checkpoint import checkpoint
from torch_geometric import nn as pyg

import gossamer as gs
from gossamer.aggregate import Adjacency
from gossamer.engine.virtual import Pending
from support.compare import cosine
from support.paths import forced, nothing_too_small
from support.planted import CLASSES, WIDTH, planted
from support.tensors import seeded

RECIPES = ("exact-int8", "tango", gs.Recipe(compute=gs.Int8(), activations=gs.Blockwise(bits=8)))
CONVS = {"gcn": pyg.GCNConv, "sage": pyg.SAGEConv, "gat": pyg.GATConv}


@pytest.fixture(autouse=True)
def _begin_anew():
    seeded()
    with nothing_too_small(), forced(least=1):
        yield


class Own(nn.Module):
    """Two convolutions, and between them what a test wants."""

    def __init__(self, between, kind="gcn") -> None:
        super().__init__()
        self.first, self.second = CONVS[kind](WIDTH, WIDTH), CONVS[kind](WIDTH, WIDTH)
        self.norm, self.other = nn.BatchNorm1d(WIDTH), nn.BatchNorm1d(WIDTH)
        self.last = CONVS[kind](WIDTH, CLASSES)
        self.between, self.seen = between, []

    def forward(self, x, edge_index):
        x = F.dropout(F.relu(self.norm(self.first(x, edge_index))), 0.5, self.training)
        x = self.between(self, self.second(x, edge_index), edge_index)
        return self.last(x, edge_index)


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, dout):
        return dout * 2


def usual(m, y, edge_index):
    y = m.other(y)
    y = F.relu(y)
    return F.dropout(y, 0.5, m.training)


def used_twice(m, y, edge_index):
    h = m.other(y)
    return F.relu(h) + h + y


def residual_around_a_convolution(m, y, edge_index):
    h = F.dropout(F.relu(m.other(y)), 0.3, m.training)
    return m.second(h, edge_index) + h


def changed_in_place(m, y, edge_index):
    h = m.other(y)
    h += 1
    h = F.relu(h)
    h[:5] = 0.5
    return h.mul_(2)


def modes_changed_after_the_call(m, y, edge_index):
    h = F.dropout(m.other(y), 0.5, m.training)
    was, m.other.momentum = m.training, 0.9
    m.eval()
    h = m.second(F.relu(h), edge_index)
    m.train(was)
    m.other.momentum = 0.1
    return h


def without_gradient(m, y, edge_index):
    with torch.no_grad():
        h = F.relu(m.other(y))
    return m.second(h, edge_index) + y


def gradient_begins_in_between(m, y, edge_index):
    with torch.no_grad():
        h = m.other(y)
    return m.second(F.relu(h), edge_index) + y


def looked_at(m, y, edge_index):
    h = m.other(y)
    m.seen += [
        repr(h),
        h[3:5].tolist(),
        h.detach().numpy().sum(),
        h.data.mean().item(),
        float(h[0, 0].detach()),
        bool(h[1, 1] > 0),
    ]
    m.seen += [copy.deepcopy(h.detach()), pickle.loads(pickle.dumps(h.detach()))]
    m.seen += [h.shape, h.dim(), len(h), h.dtype, h.requires_grad, isinstance(h, torch.Tensor), type(h.sum())]
    return F.relu(h)


def drawing_numbers(m, y, edge_index):
    h = F.dropout(F.relu(m.other(y)), 0.5, m.training)
    h = h + torch.rand(WIDTH)
    return F.dropout(m.other(h), 0.2, m.training)


def seeded_anew(m, y, edge_index):
    h = F.dropout(F.relu(m.other(y)), 0.5, m.training)
    torch.manual_seed(77)
    return F.dropout(m.second(h, edge_index), 0.5, m.training)


def own_function(m, y, edge_index):
    return Doubled.apply(F.relu(m.other(y)))


def own_function_beside_others(m, y, edge_index):
    h = F.relu(m.other(Doubled.apply(y)))
    return Doubled.apply(h) + h + m.second(h, edge_index)


def hooked(m, y, edge_index):
    h = m.other(y)
    if h.requires_grad:
        h.register_hook(lambda grad: 3 * grad)
    return F.relu(h)


def retained(m, y, edge_index):
    h = F.relu(m.other(y))
    if h.requires_grad:
        h.retain_grad()
    m.seen.append(h)
    return m.second(h, edge_index)


def never_read(m, y, edge_index):
    m.other(y)
    return y


def failing(m, y, edge_index):
    h = m.other(y)
    try:
        F.relu(h).view(3, -1, 7, 11, 13)
    except RuntimeError:
        return h.relu()
    raise AssertionError("no error")


def wrong_columns(m, y, edge_index):
    h = F.relu(m.other(y))
    with pytest.raises((RuntimeError, ValueError)):
        m.other(h[:, 1:])
    return h


def checkpointed(m, y, edge_index):
    return checkpoint(lambda h: F.relu(m.other(h)), y, use_reentrant=False) + y


def jumping(m, y, edge_index):
    hs = [F.relu(m.norm(y))]
    hs.append(F.relu(m.other(m.second(hs[-1], edge_index))))
    return torch.stack(hs).amax(0)


def other_order(m, y, edge_index):
    h = m.other(F.dropout(F.leaky_relu(y, 0.5), 0.5, m.training))
    return F.leaky_relu(F.leaky_relu(h, 0.5), 0.5)


def smooth(m, y, edge_index):
    return F.dropout(F.elu(m.other(y)), 0.5, m.training)


def in_mixed_precision(m, y, edge_index):
    h = m.other(y)
    with torch.autocast("cpu", torch.bfloat16):
        h = F.relu(h)
    return h.float()


def nothing_dropped(m, y, edge_index):
    h = m.other(y)
    assert F.dropout(h, 0.5, training=False) is h and F.dropout(h, 0.0) is h
    return F.relu(h)


BETWEEN = [
    usual, used_twice, residual_around_a_convolution, changed_in_place, modes_changed_after_the_call, without_gradient,
    gradient_begins_in_between, looked_at, drawing_numbers, seeded_anew, own_function, own_function_beside_others,
    hooked, retained, never_read, failing, wrong_columns, checkpointed, jumping, other_order, smooth,
    in_mixed_precision, nothing_dropped,
]  # fmt: skip


def step(recipe, between, kind="gcn", training=True):
    """The model after one step, its result, and its gradients by name."""
    torch.manual_seed(3)
    model = Own(between, kind).train(training)
    gs.lighten_(model, recipe)
    seeded()
    x, edge_index, y = planted()
    with torch.set_grad_enabled(training):
        out = model(x, edge_index)
    assert type(out) is torch.Tensor
    if training:
        F.cross_entropy(out, y).backward()
    return model, out.detach(), {n: p.grad for n, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("recipe", RECIPES, ids=["saved", "int8", "both"])
@pytest.mark.parametrize("between", BETWEEN, ids=lambda function: function.__name__)
def test_it_computes_what_its_python_says(between, recipe):
    exact = recipe == "exact-int8"
    for training in (True, False):
        model, out, grads = step(recipe, between, training=training)
        wanted, want, want_grads = step("float32", between, training=training)
        torch.testing.assert_close(out, want, **({"rtol": 1e-4, "atol": 1e-5} if exact else {"rtol": 0.1, "atol": 0.3}))
        assert grads.keys() == want_grads.keys()
        for name, grad in grads.items():
            if want_grads[name].norm() > 1e-4:  # a bias before a norm has none
                assert cosine(grad, want_grads[name]) > (0.995 if exact else 0.9), name
        for (name, buffer), (_, other) in zip(model.named_buffers(), wanted.named_buffers(), strict=True):
            torch.testing.assert_close(
                buffer, other, rtol=1e-4 if exact else 0.1, atol=1e-4 if exact else 0.05, msg=name
            )


@pytest.mark.parametrize("kind", ["gcn", "sage"])
@pytest.mark.parametrize("recipe", ["exact-int2", "tango", "feather"])
def test_the_same_bits_as_the_ready_model(kind, recipe):
    """Written by hand, the same ops run in the same order."""
    x, edge_index, y = planted()
    ready_class = {"gcn": pyg.GCN, "sage": pyg.GraphSAGE}[kind]
    found = []
    for ready in (True, False):
        torch.manual_seed(3)
        model = Own(usual, kind)
        if ready:
            model = ready_class(WIDTH, WIDTH, 3, CLASSES, norm="batch_norm", dropout=0.5)
        gs.lighten_(model, recipe)
        modules = [m for m in model.modules() if isinstance(m, (*CONVS.values(), nn.BatchNorm1d))]
        modules.sort(key=lambda m: isinstance(m, nn.BatchNorm1d))
        for k, module in enumerate(modules):
            torch.manual_seed(k)
            for parameter in module.parameters():
                nn.init.normal_(parameter, 0.0 if parameter.dim() > 1 else 0.5, 0.3)
        seeded()
        out = model(x, edge_index)
        F.cross_entropy(out, y).backward()
        found.append([out, *(p.grad for module in modules for p in module.parameters())])
    for a, b in zip(*found, strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("recipe", ["exact-int2", "feather"])
def test_what_a_layer_read_is_free_before_its_neighbours_are_summed(recipe, monkeypatch):
    """The memory of the ready model: x, the last layer's result, is the user's until conv returns."""
    inputs, alive = [], []

    def between(m, y, edge_index):
        return usual(m, y, edge_index)

    name = "product_of_rows" if recipe == "feather" else "_by_op"
    summed = getattr(Adjacency, name)

    def noting(*args):
        alive.append([not held.expired() for held in inputs])
        out = summed(*args)
        inputs.append(StorageWeakRef(out.untyped_storage()))
        return out

    monkeypatch.setattr(Adjacency, name, noting)
    torch.manual_seed(3)
    model = Own(between)
    gs.lighten_(model, recipe)
    out = model(*planted()[:2])
    assert alive and inputs and not any(any(each) for each in alive)
    out.sum().backward()


def test_nothing_waits_when_the_model_has_returned():
    def keeping(m, y, edge_index):
        m.seen = [m.other(y), m.second(F.relu(m.other(y)), edge_index)]
        return m.seen[-1]

    class Returning(Own):
        def forward(self, x, edge_index):
            h = F.relu(self.norm(self.first(x, edge_index)))
            return {"h": h, "both": [self.other(h), (h, 3)]}

    model, *_ = step("exact-int2", keeping)
    for kept in model.seen:
        assert isinstance(kept, Pending) and not kept.is_due
        assert type(kept + 1) is torch.Tensor and kept.sum().requires_grad
    model = Returning(None)
    gs.lighten_(model, "exact-int2")
    out = model(*planted()[:2])
    assert all(type(t) is torch.Tensor for t in (out["h"], out["both"][0], out["both"][1][0]))
    assert out["h"] is out["both"][1][0]


def test_gradients_that_are_retained_are_found():
    for recipe in ("float32", "exact-int8"):
        model, *_ = step(recipe, retained)
        (h,) = model.seen
        assert h.grad is not None and h.grad.shape == h.shape and bool(h.grad.any())


def test_hooks_of_modules_see_tensors_and_change_them():
    """Forward hooks, pre-hooks and backward hooks on what waits."""

    def results(recipe):
        torch.manual_seed(3)
        model, seen = Own(usual), []
        model.other.register_forward_hook(lambda m, i, out: out * 2)
        model.second.register_forward_hook(lambda m, i, out: seen.append(float(out.detach().sum())))
        model.last.register_forward_pre_hook(lambda m, given: (given[0] + 1, given[1]))
        model.norm.register_full_backward_hook(lambda m, din, dout: seen.append(float(dout[0].abs().sum())))
        gs.lighten_(model, recipe)
        seeded()
        x, edge_index, y = planted()
        out = model(x, edge_index)
        F.cross_entropy(out, y).backward()
        return out, seen

    (out, seen), (want, wanted) = results("exact-int8"), results("float32")
    torch.testing.assert_close(out, want, rtol=1e-4, atol=1e-5)
    assert seen == pytest.approx(wanted, rel=1e-2)


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpointed_modules(reentrant):
    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.norm = pyg.GCNConv(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH)

        def forward(self, x, edge_index):
            return F.dropout(F.relu(self.norm(self.conv(x, edge_index))), 0.5, self.training)

    class Blocks(nn.Module):
        def __init__(self, again):
            super().__init__()
            self.blocks, self.last = nn.ModuleList([Block(), Block()]), pyg.GCNConv(WIDTH, CLASSES)
            self.again = again

        def forward(self, x, edge_index):
            for block in self.blocks:
                x = checkpoint(block, x, edge_index, use_reentrant=reentrant) if self.again else block(x, edge_index)
            return self.last(x, edge_index)

    found = []
    for again in (False, True):
        torch.manual_seed(3)
        model = Blocks(again)
        gs.lighten_(model, "exact-int8")
        x, edge_index, y = planted()
        seeded()
        out = model(x.requires_grad_(), edge_index)
        F.cross_entropy(out, y).backward()
        found.append([out.detach(), *(p.grad for p in model.parameters())])
    assert all(grad is not None for grad in found[1])
    torch.testing.assert_close(found[0][0], found[1][0], rtol=1e-4, atol=1e-5)
    for a, b in zip(found[0][1:], found[1][1:], strict=True):
        assert a.norm() < 1e-3 or cosine(a, b) > 0.99


def test_two_backwards_through_what_was_read():
    torch.manual_seed(3)
    model = Own(used_twice)
    gs.lighten_(model, "exact-int8")
    x, edge_index, y = planted()
    loss = F.cross_entropy(model(x, edge_index), y)
    loss.backward(retain_graph=True)
    once = [p.grad.clone() for p in model.parameters()]
    loss.backward()
    for a, p in zip(once, model.parameters(), strict=True):
        torch.testing.assert_close(2 * a, p.grad)


@pytest.mark.parametrize("changed", ["input", "parameter", "buffer", "order of draws"])
@pytest.mark.parametrize("training", [True, False])
def test_what_changes_after_a_call_does_not_count(changed, training):
    def between(m, y, edge_index):
        own = y.clone()
        h = F.dropout(F.relu(m.other(own)), 0.5)
        if changed == "input":
            own.zero_()
        elif changed == "parameter":
            m.other.bias.data.fill_(9.0)
        elif changed == "buffer":
            m.other.running_mean[:] = 4.0
        else:
            torch.rand(3)
        return h

    found = []
    for recipe in ("exact-int8", "float32"):
        torch.manual_seed(3)
        model = Own(between).train(training)
        gs.lighten_(model, recipe)
        seeded()
        with torch.no_grad():
            found.append(model(*planted()[:2]))
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-5)


def test_a_change_that_no_function_made_is_an_error():
    def between(m, y, edge_index):
        own = (y * 1).detach()
        view = own.numpy()
        h = m.other(own)
        with torch.overrides._pop_mode_temporarily():
            own.add_(1)
        assert view is not None
        return F.relu(h)

    model = Own(between)
    gs.lighten_(model, "exact-int8")
    with pytest.raises(RuntimeError, match=r"must not be changed in place .* read the result first"):
        model(*planted()[:2])


def test_no_cycle_keeps_what_waited():
    made = []

    def between(m, y, edge_index):
        h = F.relu(m.other(y))
        made.append(weakref.ref(h))
        return h

    gc.collect()
    gc.disable()
    try:
        _, out, _ = step("exact-int2", between)
        assert made[0]() is None and out is not None
    finally:
        gc.enable()


def test_layers_of_one_batch_only_see_each_call_once():
    """Running statistics move once for each call, read or not."""

    def between(m, y, edge_index):
        h = m.other(y)
        m.other(y)
        return F.relu(h) + h

    model, *_ = step("feather", between)
    assert int(model.other.num_batches_tracked) == 2 and int(model.norm.num_batches_tracked) == 1
