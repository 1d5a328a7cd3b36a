"""A float32 product behind an epilogue that answers a request: made along with it, whose result is not saved."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint
from torch_geometric import nn as pyg

import gossamer as gs
from gossamer import measure, native
from support.compare import cosine
from support.paths import forced
from support.planted import CLASSES, NODES, WIDTH, planted
from support.tensors import seeded
from support.traces import Calls

NEAREST = gs.Recipe(compute=gs.Int8(gradients="nearest"))
PRODUCTS = {"GCN": 1, "GraphSAGE": 2, "GIN": 1, "GAT": 2, "MLP": 1, "Sequential": 1}
"""Behind each model's last epilogue: GAT has one for the terms of its logits."""
pytestmark = pytest.mark.skipif(native.library is None, reason="containers fuse epilogues only with kernels")


@pytest.fixture(autouse=True)
def _begin_anew():
    seeded()
    with forced(least=1):
        yield


class NoEdges(nn.Module):
    """A model of rows alone, called as the others are."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x, edge_index):
        return self.inner(x)


def model_of(kind, recipe=NEAREST, dropout=0.5, **more):
    torch.manual_seed(1)
    given = {"norm": "batch_norm", "dropout": dropout} | more
    if kind == "MLP":
        model = NoEdges(pyg.MLP([WIDTH, WIDTH, WIDTH, CLASSES], **given))
    elif kind == "Sequential":
        parts = (nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH), nn.ReLU(), nn.Dropout(dropout))
        model = NoEdges(nn.Sequential(*parts, nn.Linear(WIDTH, CLASSES)))
    else:
        heads = {"heads": 2} if kind == "GAT" else {}
        model = getattr(pyg, kind)(WIDTH, WIDTH, 3, CLASSES, **given, **heads)
    gs.lighten_(model, recipe)
    return model


def step(model):
    """The result, and all gradients by name."""
    seeded()
    model.zero_grad()
    x, edge_index, y = planted()
    x.requires_grad_()
    out = model(x, edge_index)
    F.cross_entropy(out, y).backward()
    found = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    return out.detach(), found | {"x": x.grad}


def assert_alike(found, want, least=0.999):
    assert found.keys() == want.keys()
    top = max(float(grad.norm()) for grad in want.values())
    for name, grad in want.items():  # a bias before a batch norm has no gradient but what rounding leaves
        assert float(grad.norm()) < 1e-3 * top or cosine(found[name], grad) > least, name


@pytest.mark.parametrize("dropout", [0.0, 0.5])
@pytest.mark.parametrize("kind", PRODUCTS)
def test_results_and_gradients_are_those_of_products_apart(kind, dropout):
    """Sums in another order: a gradient's code may be the next one, no more."""
    model = model_of(kind, dropout=dropout)
    with Calls() as calls:
        out, found = step(model)
    assert calls.names.count("epilogue_products_backward") == 1 and calls.names.count("save_epilogue") == 1
    with forced(together=False), Calls() as calls:
        want_out, want = step(model)
    assert "epilogue_products_backward" not in calls.names
    torch.testing.assert_close(out, want_out, rtol=1e-4, atol=1e-5)
    assert_alike(found, want)


class Products(TorchDispatchMode):
    """Of each call of ops.save_epilogue, how many products it makes."""

    def __init__(self):
        super().__init__()
        self.counts = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        if func._schema.name == "gossamer::save_epilogue":
            products, *_ = out
            self.counts.append(len(products))
        return out


@pytest.mark.parametrize("kind", PRODUCTS)
def test_all_products_are_made_at_once(kind):
    model = model_of(kind)
    with Products() as products:
        step(model)
    assert products.counts == [PRODUCTS[kind]]


@pytest.mark.parametrize("kind", PRODUCTS)
def test_the_epilogues_result_is_not_saved(kind):
    """Float rows of its width less, which is within an MLP in GIN; GAT saves the small weight of terms."""

    def saved():
        model = model_of(kind, "tango")
        x, edge_index, _ = planted()
        return measure.kept_bytes(lambda: model(x, edge_index).sum(), exclude=[model, x, edge_index])

    together = saved()
    with forced(together=False):
        less = saved() - together
    assert less + 4 * 2 * 2 * WIDTH >= 4 * NODES * (CLASSES if kind == "GIN" else WIDTH)


def test_smooth_activations_run_by_themselves():
    with Calls() as calls:
        step(model_of("GCN", act="elu"))
    assert "epilogue_products_backward" not in calls.names and "norm_act_backward_rows" in calls.names


@pytest.mark.parametrize("kind", ["GCN", "GraphSAGE", "GAT"])
def test_frozen_parameters(kind):
    """What needs no gradient has none; the others are the same."""
    model = model_of(kind)
    model.convs[2].requires_grad_(False)
    _, found = step(model)
    assert not any(name.startswith("convs.2") for name in found)
    model.convs[2].requires_grad_(True)
    for name, parameter in model.convs[2].named_parameters():
        parameter.requires_grad_("weight" not in name)
    with forced(together=False):
        _, want = step(model)
    assert_alike(found, {name: grad for name, grad in want.items() if name in found})


def test_without_gradients_nothing_is_different():
    model = model_of("GraphSAGE").eval()
    x, edge_index, _ = planted()
    with torch.no_grad():
        out = model(x, edge_index)
    with forced(together=False), torch.no_grad():
        assert torch.equal(out, model(x, edge_index))


def test_running_statistics_follow():
    found = []
    for together in (True, False):
        model = model_of("GCN")
        with forced(together=together):
            step(model)
        found.append([b.clone() for b in model.norms[1].buffers()])
    assert all(map(torch.equal, *found))


def test_a_hook_on_the_last_layers_product_hears_the_epilogues_result():
    model, heard = model_of("GCN"), []
    model.convs[2].lin.register_forward_pre_hook(lambda module, args: heard.append(args[0].shape))
    with Calls() as calls:
        step(model)
    assert heard == [(NODES, WIDTH)] and "epilogue_products_backward" not in calls.names


def test_checkpointing():
    model = model_of("GCN", dropout=0.0)
    x, edge_index, y = planted()
    _, want = step(model)
    seeded()
    model.zero_grad()
    x.requires_grad_()
    F.cross_entropy(checkpoint(model, x, edge_index, use_reentrant=False), y).backward()
    found = {name: p.grad for name, p in model.named_parameters()} | {"x": x.grad}
    assert_alike(found, want)


def test_second_derivatives_are_refused():
    model, (x, edge_index, y) = model_of("GCN"), planted()
    loss = F.cross_entropy(model(x, edge_index), y)
    grads = torch.autograd.grad(loss, list(model.convs[2].parameters()), create_graph=True)
    with pytest.raises(RuntimeError, match="one derivative"):
        sum(grad.square().sum() for grad in grads).backward()
