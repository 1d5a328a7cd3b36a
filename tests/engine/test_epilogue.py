"""norm, activation and dropout in a row, fused: the same numbers, and never past a hook or a user's own class."""

from __future__ import annotations

import copy
import itertools

import pytest
import torch
from torch import nn
from torch_geometric import nn as pyg

import gossamer as gs
from gossamer import ops
from gossamer.layers import chain, models
from support.pyg_models import assert_same

NORMS = {
    "none": lambda: None,
    "batch": lambda: nn.BatchNorm1d(8),
    "pyg batch": lambda: pyg.BatchNorm(8),
    "layer": lambda: nn.LayerNorm(8),
    "graph": lambda: pyg.LayerNorm(8),
}
ACTS = {"none": lambda: None, "relu": nn.ReLU, "elu": nn.ELU, "leaky": nn.LeakyReLU, "gelu": nn.GELU, "tanh": nn.Tanh}


def sequence(*modules: nn.Module | None) -> nn.Sequential:
    return nn.Sequential(nn.Linear(12, 8), *[m for m in modules if m is not None], nn.Linear(8, 3))


@pytest.mark.parametrize("act", ACTS)
@pytest.mark.parametrize("norm", NORMS)
def test_a_sequence(norm, act, paths):
    model = sequence(NORMS[norm](), ACTS[act](), nn.Dropout(0.0))
    assert_same(model, torch.randn(50, 12, requires_grad=True))


@pytest.mark.parametrize("order", list(itertools.permutations(["norm", "act", "drop"])))
def test_any_order(order, paths):
    made = {"norm": nn.BatchNorm1d(8), "act": nn.ReLU(), "drop": nn.Dropout(0.0)}
    assert_same(sequence(*(made[name] for name in order), nn.ReLU(), nn.ELU()), torch.randn(50, 12))


def test_the_last_run_of_a_sequence_is_fused_too(fused):
    assert_same(nn.Sequential(nn.Linear(12, 8), nn.LayerNorm(8), nn.GELU()), torch.randn(50, 12))
    assert_same(nn.Sequential(nn.Sequential(nn.Linear(12, 8), nn.LayerNorm(8)), nn.GELU()), torch.randn(50, 12))


def test_a_chain_is_one_op(fused, monkeypatch):
    calls = []
    whole = ops.norm_act
    monkeypatch.setattr(ops, "norm_act", lambda *args: calls.append(args) or whole(*args))
    model = sequence(nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.5))
    gs.lighten_(model)
    model(torch.randn(50, 12))
    assert len(calls) == 1


@pytest.mark.parametrize("norm", [None, "batch_norm", "layer"])
def test_dropout_within_a_chain(norm, fused):
    """Where an element is kept it is that of the chain without dropout, divided by 1 - p; and so is its gradient."""
    x = torch.randn(300, 40, requires_grad=True)
    made = {None: None, "batch_norm": nn.BatchNorm1d(40), "layer": nn.LayerNorm(40)}[norm]
    modules = [m for m in (made, nn.ELU()) if m is not None]
    model = nn.Sequential(*modules, nn.Dropout(0.25))
    plain = nn.Sequential(*copy.deepcopy(modules))
    gs.lighten_(model)
    out, whole = model(x), plain(x)
    kept = out != 0
    assert abs(kept.float().mean().item() - 0.75) < 5 * (0.25 * 0.75 / x.numel()) ** 0.5
    torch.testing.assert_close(out, whole * kept / 0.75)
    noise = torch.randn_like(out)
    torch.testing.assert_close(
        torch.autograd.grad((out * noise).sum(), x)[0],
        torch.autograd.grad((whole * kept / 0.75 * noise).sum(), x)[0],
        rtol=1e-4, atol=1e-5,
    )  # fmt: skip


class PlusOneReLU(nn.ReLU):
    def forward(self, x):
        return super().forward(x) + 1


class PlusOneNorm(nn.BatchNorm1d):
    def forward(self, x):
        return super().forward(x) + 1


class PlusOneLayerNorm(nn.LayerNorm):
    def forward(self, x):
        return super().forward(x) + 1


class PlusOneDropout(nn.Dropout):
    def forward(self, x):
        return super().forward(x) + 1


@pytest.mark.parametrize(
    "modules",
    [
        (nn.BatchNorm1d(8), PlusOneReLU(), nn.Dropout(0.0)),
        (PlusOneNorm(8), nn.ReLU(), nn.Dropout(0.0)),
        (PlusOneLayerNorm(8), nn.ReLU()),
        (nn.LayerNorm(8), nn.ReLU(), PlusOneDropout(0.0)),
        (nn.BatchNorm1d(8), nn.PReLU(), nn.AlphaDropout(0.0)),
    ],
)
def test_a_subclass_computes_what_it_says(modules, fused):
    assert_same(sequence(*modules), torch.randn(50, 12))


@pytest.mark.parametrize("where", ["norm", "act", "dropout"])
def test_a_subclass_inside_a_ready_model(where, graph, fused):
    model = pyg.GCN(12, 8, 2, 3, norm="batch_norm")
    if where == "norm":
        model.norms[0] = PlusOneNorm(8)
    else:
        setattr(model, where, PlusOneReLU() if where == "act" else PlusOneDropout(0.0))
    assert_same(model, *graph)


def test_a_forward_replaced_on_the_module_runs(fused):
    model = sequence(nn.BatchNorm1d(8), nn.ReLU())
    gs.lighten_(model)
    model[2].forward = lambda x: torch.zeros_like(x)
    assert torch.equal(model(torch.randn(50, 12)), model[3](torch.zeros(50, 8)))


class Residual(nn.Module):
    """Reads what a module in place has changed."""

    def __init__(self, *modules: nn.Module) -> None:
        super().__init__()
        self.lin, self.tail = nn.Linear(12, 8), nn.Sequential(*modules)

    def forward(self, x):
        h = self.lin(x)
        return self.tail(h) + h


@pytest.mark.parametrize(
    "modules",
    [
        (nn.ReLU(inplace=True), nn.Dropout(0.0)),
        (nn.ELU(inplace=True), nn.Dropout(0.0)),
        (nn.Identity(), nn.ReLU(inplace=True), nn.Dropout(0.0)),
    ],
)
def test_a_chain_that_begins_in_place_changes_its_input(modules, fused):
    assert_same(Residual(*modules), torch.randn(50, 12), train=False)


HOOKS = ["register_forward_hook", "register_forward_pre_hook", "register_full_backward_hook"]


@pytest.mark.parametrize("hook", HOOKS)
@pytest.mark.parametrize("part", ["norms.0", "norms.0.module", "act", "dropout", "convs.0", "convs.0.lin", ""])
def test_hooks_fire_inside_a_ready_model(hook, part, graph, fused):
    model = pyg.GCN(12, 8, 2, 3, norm="batch_norm", dropout=0.5)
    fired = []
    getattr(model.get_submodule(part), hook)(lambda module, *args: fired.append(part))
    gs.lighten_(model)
    model(*graph).sum().backward()
    assert fired == [part]


@pytest.mark.parametrize("part", [1, 2, 3])
def test_hooks_fire_inside_a_sequence(part, fused):
    model = sequence(nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.5))
    gs.lighten_(model)
    fired = []
    handle = model[part].register_forward_hook(lambda module, args, out: fired.append(type(module).__name__))
    model(torch.randn(50, 12))
    assert len(fired) == 1
    handle.remove()
    model(torch.randn(50, 12))
    assert len(fired) == 1


@pytest.mark.parametrize(
    "register",
    [
        nn.modules.module.register_module_forward_hook,
        nn.modules.module.register_module_forward_pre_hook,
        nn.modules.module.register_module_full_backward_hook,
    ],
)
def test_hooks_on_all_modules_fire(register, graph, fused):
    model = pyg.GCN(12, 8, 2, 3, norm="batch_norm")
    seen = {}
    for lighter in (False, True):
        if lighter:
            gs.lighten_(model)
        names = seen[lighter] = []
        handle = register(lambda module, *args, names=names: names.append(module))
        try:
            model(*graph).sum().backward()
        finally:
            handle.remove()
    expected = {id(m) for m in seen[False] if not isinstance(m, pyg.Aggregation)}  # our sums need no such module
    assert {id(m) for m in seen[True]} == expected


@pytest.mark.parametrize("act", [torch.tanh, torch.relu, lambda x: x.sin()])
def test_an_activation_that_is_a_function(act, graph, fused):
    assert_same(pyg.GCN(12, 8, 2, 3, act=act, norm="batch_norm"), *graph)


class CentredPerGraph(nn.Module):
    """A user's norm that asks which rows are one graph."""

    def __init__(self, in_channels: int) -> None:
        super().__init__()

    def forward(self, x, batch=None, batch_size=None):
        return x - x.mean() if batch is None else x - batch.unsqueeze(1)


def test_a_users_norm_is_told_of_the_batch(graph, paths):
    model = pyg.GCN(12, 8, 2, 3, norm=CentredPerGraph(8))
    assert_same(model, *graph, batch=torch.arange(50) // 10)
    assert_same(model, *graph)


def test_what_leads_a_sequence():
    kinds = models._leading_chain
    assert kinds([nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout()]) == [0, 1, 2]
    assert kinds([nn.ReLU(), nn.BatchNorm1d(8)]) == [1]
    assert kinds([nn.Linear(8, 8), nn.ReLU()]) == []
    assert kinds([nn.ReLU(), nn.ReLU()]) == [1]
    assert chain.act_of(PlusOneReLU()) is None
