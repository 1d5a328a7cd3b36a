"""Sums of a gradient by column that its maker has already: used where it is still that gradient, and only there."""

from __future__ import annotations

import sys
import weakref

import pytest
import torch
from torch import nn
from torch_geometric import nn as pyg

import gossamer as gs
from gossamer import ops
from gossamer.ops.linear import bias_gradient, remember_sums

ROWS, COLUMNS = 50, 8
MADE_UP = torch.full((COLUMNS,), 7.0)


@pytest.fixture
def dout():
    gradient = torch.randn(ROWS, COLUMNS, generator=torch.Generator().manual_seed(0))
    remember_sums(gradient, MADE_UP)
    return gradient


def test_what_is_remembered_is_used(dout):
    assert torch.equal(bias_gradient(dout), MADE_UP)


def test_what_was_changed_is_summed_again(dout):
    dout.add_(1.0)
    assert torch.equal(bias_gradient(dout), ops.column_sums(dout))


@pytest.mark.parametrize(
    "view",
    [lambda x: x[:20], lambda x: x.view(COLUMNS, ROWS), lambda x: x.t(), lambda x: x[1:], lambda x: x.detach()],
)
def test_a_part_or_another_view_is_summed(view, dout):
    assert torch.equal(bias_gradient(view(dout)), ops.column_sums(view(dout).contiguous()))


def test_memory_that_is_used_again_is_not_that_gradient():
    for _ in range(20):
        gradient = gs.memory.empty([2**18, COLUMNS], torch.float32).fill_(2.0)
        assert torch.equal(bias_gradient(gradient), torch.full((COLUMNS,), 2.0**19))
        sums = MADE_UP.clone()
        remember_sums(gradient, sums)
        remembered = weakref.ref(sums)
        del gradient, sums
        assert remembered() is None, "what was known of a gradient outlives it"


class Twice(nn.Module):
    """The result of a convolution goes into an epilogue and, beside it, into the result: its gradients add up."""

    def __init__(self, norm) -> None:
        super().__init__()
        self.conv, self.norm, self.act = pyg.GCNConv(16, 32), norm, nn.ReLU()
        self.last = pyg.GCNConv(32, 32)

    def forward(self, x, edge_index):
        h = self.conv(x, edge_index)
        return self.last(self.act(self.norm(h)), edge_index) + h


@pytest.mark.parametrize("norm", [nn.BatchNorm1d(32), nn.LayerNorm(32), pyg.LayerNorm(32), nn.BatchNorm1d(32).eval()])
def test_gradients_that_meet_on_their_way_are_both_in_the_bias(norm):
    generator = torch.Generator().manual_seed(0)
    x, edge_index = torch.randn(80, 16, generator=generator), torch.randint(0, 80, (2, 400), generator=generator)
    weight = torch.randn(80, 32, generator=generator)
    torch.manual_seed(0)
    model, grads = Twice(norm), []
    for recipe in ("float32", gs.Recipe(activations=gs.Blockwise(bits=8))):
        gs.lighten_(model, recipe)
        norm.train(norm.training)
        model.zero_grad()
        (model(x, edge_index) * weight).sum().backward()
        grads.append(model.conv.bias.grad.clone())
    assert (grads[0] - grads[1]).norm() < 0.02 * grads[0].norm()


def test_a_whole_model_takes_its_biases_from_its_epilogues(monkeypatch):
    generator = torch.Generator().manual_seed(0)
    x, edge_index = torch.randn(400, 16, generator=generator), torch.randint(0, 400, (2, 2000), generator=generator)
    model = pyg.GCN(16, 32, 3, 4, norm="batch_norm")
    gs.lighten_(model, "exact-int8")
    summed = []
    linear = sys.modules["gossamer.ops.linear"]
    column_sums = linear.column_sums
    monkeypatch.setattr(linear, "column_sums", lambda x: summed.append(x.shape) or column_sums(x))
    model(x, edge_index).square().sum().backward()
    assert summed == [(400, 4)]  # the loss has no sums to give
    for conv in model.convs[:2]:
        assert conv.bias.grad.abs().max() < 0.02 * conv.lin.weight.grad.abs().max()  # zero, but for the noise of x_hat
