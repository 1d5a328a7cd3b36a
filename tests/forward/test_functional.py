"""A user's own forward: F.relu, F.dropout and their like run on our ops, and mean what they mean in torch."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch_geometric import nn as pyg

import gossamer as gs
from gossamer.forward import functional
from support.pyg_models import assert_same
from support.traces import Calls


class Own(nn.Module):
    """One function between two layers."""

    def __init__(self, function) -> None:
        super().__init__()
        self.first, self.second, self.function = nn.Linear(12, 8), nn.Linear(8, 3), function

    def forward(self, x):
        return self.second(self.function(self.first(x)))


FUNCTIONS = {
    "F.relu": F.relu,
    "F.relu by name": lambda h: F.relu(input=h),
    "torch.relu": torch.relu,
    "Tensor.relu": lambda h: h.relu(),
    "F.leaky_relu": F.leaky_relu,
    "F.leaky_relu, slope": lambda h: F.leaky_relu(h, 0.3),
    "F.elu": F.elu,
    "F.elu, alpha": lambda h: F.elu(h, alpha=1.4),
    "F.gelu": F.gelu,
}
LEFT = {
    "F.relu in place": lambda h: F.relu(h, inplace=True),
    "relu_": lambda h: h.relu_(),
    "F.elu in place": lambda h: F.elu(h, 1.0, True),
    "F.gelu, tanh": lambda h: F.gelu(h, approximate="tanh"),
    "F.tanh": torch.tanh,
    "F.dropout, off": lambda h: F.dropout(h, 0.5, training=False),
    "F.dropout, 0": lambda h: F.dropout(h, 0.0),
}


@pytest.mark.parametrize("name", [*FUNCTIONS, *LEFT])
def test_the_same_numbers(name, paths):
    assert_same(Own((FUNCTIONS | LEFT)[name]), torch.randn(50, 12, requires_grad=True))


def fused_calls(model):
    """The ops of ours that a call makes for an activation or dropout."""
    with Calls() as calls:
        model(torch.randn(50, 12))
    return [name for name in calls.names if name in ("norm_act", "relu_dropout", "dropout")]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_replaced(name, fused):
    model = Own(FUNCTIONS[name])
    gs.lighten_(model)
    assert len(fused_calls(model)) == 1


@pytest.mark.parametrize("name", LEFT)
def test_left_alone(name, fused):
    model = Own(LEFT[name])
    gs.lighten_(model)
    assert fused_calls(model) == []


def test_nothing_is_replaced_outside_of_the_model(fused):
    model = Own(F.relu)
    gs.lighten_(model)
    assert fused_calls(model) == ["relu_dropout"]
    assert fused_calls(lambda h: F.dropout(F.relu(h))) == []
    assert not torch.overrides._get_current_function_mode_stack()


def test_nothing_stays_replaced_after_an_error(fused):
    def fail(h):
        raise KeyError("from the user's function")

    model = Own(fail)
    gs.lighten_(model)
    with pytest.raises(KeyError, match="from the user"):
        model(torch.randn(50, 12))
    assert not torch.overrides._get_current_function_mode_stack()


def test_restored_models_call_torch(fused):
    model = Own(F.relu)
    gs.lighten_(model)
    assert fused_calls(gs.restore_(model)) == []


@pytest.mark.parametrize("call", [lambda h: F.dropout(h), lambda h: F.dropout(h, p=0.5, training=True)])
def test_dropout_is_ours(call, fused):
    model = Own(call)
    gs.lighten_(model)
    assert fused_calls(model) == ["dropout"]


def test_dropout_rejects_what_torch_rejects(fused):
    model = Own(lambda h: F.dropout(h, 1.5))
    gs.lighten_(model)
    with pytest.raises(ValueError, match="dropout probability has to be between 0 and 1"):
        model(torch.randn(50, 12))


# Gradient checkpointing -----------------------------------------------------------------------------------------


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = pyg.GCNConv(8, 8), nn.LayerNorm(8)

    def forward(self, x, edge_index):
        return F.dropout(F.relu(self.norm(self.conv(x, edge_index))), 0.5, self.training)


class Stack(nn.Module):
    """Two blocks, each kept in full, or computed again in backward in one of several ways."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.first = pyg.Linear(12, 8)
        self.blocks = nn.ModuleList([Block(), Block()])
        self.tail = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Dropout(0.5))
        self.how, self.reentrant = how, False

    def forward(self, x, edge_index):
        x = self.first(x)
        for block in self.blocks:
            if self.how == "module":
                x = checkpoint(block, x, edge_index, use_reentrant=self.reentrant)
            elif self.how == "lambda":
                again = lambda h, block=block: F.dropout(block.norm(F.relu(block.conv(h, edge_index))), 0.5)  # noqa: E731
                x = checkpoint(again, x, use_reentrant=self.reentrant)
            elif self.how == "sequence":
                x = checkpoint(self.tail, x, use_reentrant=self.reentrant)
            else:
                x = block(x, edge_index)
        return x


def gradients(model, x, edge_index):
    torch.manual_seed(5)
    out = model(x, edge_index)
    model.zero_grad()
    out.square().sum().backward()
    return out.detach(), {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("reentrant", [True, False])
def test_a_checkpointed_module_gives_the_same_gradients(reentrant, graph, paths):
    plain = Stack("none")
    lighter = Stack("module")
    lighter.load_state_dict(plain.state_dict())
    lighter.reentrant = reentrant
    gs.lighten_(plain)
    gs.lighten_(lighter)
    out, grads = gradients(lighter, *graph)
    want, want_grads = gradients(plain, *graph)
    assert torch.equal(out, want) and grads.keys() == want_grads.keys()
    for name, grad in grads.items():
        torch.testing.assert_close(grad, want_grads[name])


@pytest.mark.parametrize("how", ["lambda", "sequence", "module"])
@pytest.mark.parametrize("reentrant", [True, False])
def test_a_checkpointed_run_draws_the_same_masks_again(how, reentrant, graph, fused, monkeypatch):
    """Without the second run the gradients must be the same: it is cut out by calling the function directly."""
    model = Stack(how)
    model.reentrant = reentrant
    gs.lighten_(model)
    _, grads = gradients(model, *graph)

    def directly(function, *args, use_reentrant):
        return in_checkpoint_file(function, *args)

    # Code that counts as torch's checkpoint file, so that the same functions are left alone.
    namespace: dict = {}
    exec(
        compile("def call(function, *args):\n    return function(*args)", functional.checkpoint.__file__, "exec"),
        namespace,
    )
    in_checkpoint_file = namespace["call"]
    monkeypatch.setitem(globals(), "checkpoint", directly)
    _, want = gradients(model, *graph)
    assert grads.keys() == want.keys()
    for name, grad in grads.items():
        torch.testing.assert_close(grad, want[name])


def test_deepcopies_follow_too(fused):
    model = Own(torch.relu)
    gs.lighten_(model)
    assert fused_calls(copy.deepcopy(model)) == ["relu_dropout"]


def test_layers_of_ours_run_outside_of_the_mode(monkeypatch):
    """The mode would see every attribute of a tensor that they read; a user's module inside of them is seen again."""
    seen = []
    watched = functional._Replacing.__torch_function__

    def noting(mode, func, types, args=(), kwargs=None):
        seen.append(func)
        return watched(mode, func, types, args, kwargs)

    class Inner(nn.Module):
        def forward(self, x):
            return torch.nn.functional.relu(x)

    class Outer(nn.Module):
        def __init__(self):
            super().__init__()
            self.both = nn.Sequential(nn.Linear(4, 4), Inner())

        def forward(self, x):
            return self.both(x).sigmoid()

    monkeypatch.setattr(functional._Replacing, "__torch_function__", noting)
    model = Outer()
    gs.lighten_(model)
    model(torch.randn(8, 4))
    assert torch.nn.functional.relu in seen and torch.Tensor.sigmoid in seen
    assert torch.nn.functional.linear not in seen and torch.Tensor.dtype.__get__ not in seen
