"""Linear layers, norms, activations and dropout compute what torch's and PyG's do."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch_geometric import nn as pyg

import gossamer as gs
from support.pyg_models import assert_same


def alone(module: nn.Module) -> nn.Module:
    """As a part of a model that holds something to lighten in any case."""
    return nn.Sequential(module, nn.Linear(12, 3))


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("kind", [nn.Linear, pyg.Linear])
@pytest.mark.parametrize("shape", [(0, 12), (1, 12), (50, 12), (12,), (4, 5, 12)])
def test_linear(kind, bias, shape, paths):
    assert_same(kind(12, 7, bias=bias), torch.randn(shape, requires_grad=True))


def test_linear_on_rows_that_are_not_contiguous(paths):
    assert_same(nn.Linear(12, 7), torch.randn(12, 50).t().requires_grad_())


NORMS = {
    "batch": lambda: nn.BatchNorm1d(12),
    "batch, no affine": lambda: nn.BatchNorm1d(12, affine=False),
    "batch, mean of all": lambda: nn.BatchNorm1d(12, momentum=None),
    "batch, momentum 1": lambda: nn.BatchNorm1d(12, momentum=1.0),
    "batch, momentum 0": lambda: nn.BatchNorm1d(12, momentum=0.0),
    "batch, no statistics": lambda: nn.BatchNorm1d(12, track_running_stats=False),
    "batch, large eps": lambda: nn.BatchNorm1d(12, eps=0.1),
    "pyg batch": lambda: pyg.BatchNorm(12),
    "pyg batch, single": lambda: pyg.BatchNorm(12, allow_single_element=True),
    "layer": lambda: nn.LayerNorm(12),
    "layer, no affine": lambda: nn.LayerNorm(12, elementwise_affine=False),
    "layer, no bias": lambda: nn.LayerNorm(12, bias=False),
    "pyg layer, graph": lambda: pyg.LayerNorm(12),
    "pyg layer, node": lambda: pyg.LayerNorm(12, mode="node"),
    "pyg layer, no affine": lambda: pyg.LayerNorm(12, affine=False),
}


def with_random_parameters(module: nn.Module) -> nn.Module:
    with torch.no_grad():
        for name, tensor in [*module.named_parameters(), *module.named_buffers()]:
            if tensor.is_floating_point():
                tensor.copy_(torch.rand_like(tensor) + 0.5 if "var" in name else torch.randn_like(tensor))
    return module


@pytest.mark.parametrize("x_learns", [True, False])
@pytest.mark.parametrize("norm", NORMS)
def test_norms(norm, x_learns, paths):
    x = (3 * torch.randn(50, 12) + 1).requires_grad_(x_learns)
    assert_same(alone(with_random_parameters(NORMS[norm]())), x)


@pytest.mark.parametrize("norm", [name for name in NORMS if "batch" in name])
def test_running_statistics_over_several_batches(norm, paths):
    plain = alone(with_random_parameters(NORMS[norm]()))
    lighter = copy.deepcopy(plain)
    gs.lighten_(lighter)
    for rows in (50, 2, 31):
        x = torch.randn(rows, 12) * 2 + 1
        torch.testing.assert_close(lighter(x), plain(x))
        torch.testing.assert_close(dict(lighter.named_buffers()), dict(plain.named_buffers()))
    x = torch.randn(5, 12)
    torch.testing.assert_close(lighter.eval()(x), plain.eval()(x))


def test_statistics_that_are_told_to_stand_still(paths):
    norm = nn.BatchNorm1d(12)
    norm.track_running_stats = False
    model = alone(norm)
    gs.lighten_(model)
    model(torch.randn(50, 12) + 1)
    assert not norm.running_mean.any() and norm.num_batches_tracked == 0


@pytest.mark.parametrize("norm", ["batch", "pyg batch", "batch, no statistics"])
def test_one_row_has_no_variance(norm, paths):
    model = alone(NORMS[norm]())
    gs.lighten_(model)
    with pytest.raises(ValueError, match="Expected more than 1 value per channel when training"):
        model(torch.randn(1, 12))


@pytest.mark.parametrize("norm", ["batch", "pyg batch, single", "layer", "pyg layer, node", "pyg layer, graph"])
def test_one_row_in_evaluation(norm, paths):
    assert_same(alone(with_random_parameters(NORMS[norm]())), torch.randn(1, 12, requires_grad=True), train=False)


@pytest.mark.parametrize("norm", ["batch", "layer"])
def test_constant_columns(norm, paths):
    x = torch.randn(50, 12)
    x[:, 3] = 2.5
    x[7] = -1.0
    assert_same(alone(NORMS[norm]()), x.requires_grad_())


def test_columns_far_from_zero(paths):
    assert_same(alone(nn.BatchNorm1d(12)), (torch.randn(200, 12) + 100).requires_grad_())


@pytest.mark.parametrize("norm", [nn.BatchNorm1d(7), nn.LayerNorm(7), pyg.LayerNorm(7)])
def test_another_width_is_torchs_own_error(norm, paths):
    model = alone(norm)
    gs.lighten_(model)
    with pytest.raises(RuntimeError, match="7"):
        model(torch.randn(50, 12))


@pytest.mark.parametrize("shape", [(5, 12, 9), (5, 12)])
def test_batch_norm_of_channels(shape, paths):
    plain = nn.Sequential(nn.BatchNorm1d(12))
    lighter = copy.deepcopy(plain)
    gs.lighten_(lighter)
    x = torch.randn(shape)
    torch.testing.assert_close(lighter(x), plain(x))


@pytest.mark.parametrize("mode", ["graph", "node"])
@pytest.mark.parametrize("size", [None, 3])
def test_layer_norm_of_several_graphs(mode, size, paths):
    plain = with_random_parameters(nn.ModuleList([pyg.LayerNorm(12, mode=mode)]))
    lighter = copy.deepcopy(plain)
    gs.lighten_(lighter)
    x, batch = torch.randn(50, 12), torch.arange(50) // 17
    torch.testing.assert_close(lighter[0](x, batch, size), plain[0](x, batch, size))
    torch.testing.assert_close(lighter[0](x), plain[0](x))


ACTIVATIONS = {
    "relu": nn.ReLU(),
    "leaky": nn.LeakyReLU(),
    "leaky, steep": nn.LeakyReLU(0.3),
    "leaky, flat": nn.LeakyReLU(0.0),
    "elu": nn.ELU(),
    "elu, large alpha": nn.ELU(1.7),
    "gelu": nn.GELU(),
    "gelu, tanh": nn.GELU(approximate="tanh"),
    "tanh": nn.Tanh(),
    "prelu": nn.PReLU(),
}


@pytest.mark.parametrize("act", ACTIVATIONS)
@pytest.mark.parametrize("scale", [1.0, 30.0])
def test_activations(act, scale, paths):
    x = scale * torch.randn(50, 12)
    x[3] = 0.0
    x[4] = -0.0
    assert_same(alone(copy.deepcopy(ACTIVATIONS[act])), x.requires_grad_())


@pytest.mark.parametrize("kind", [nn.ReLU, nn.LeakyReLU, nn.ELU])
def test_activations_in_place_change_their_input(kind, paths):
    model = nn.Sequential(kind(inplace=True))
    gs.lighten_(model)
    x = torch.randn(50, 12)
    before = x.clone()
    out = model(x)
    assert out is x
    torch.testing.assert_close(x, kind()(before))


@pytest.mark.parametrize("shape", [(400, 250), (100_000,), (10, 100, 100)])
@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_dropout(shape, p, paths):
    model = nn.Sequential(nn.Dropout(p))
    gs.lighten_(model)
    x = torch.full(shape, 3.0, requires_grad=True)
    out = model(x)
    kept = out != 0
    n = x.numel()
    deviation = (p * (1 - p) / n) ** 0.5
    assert abs(kept.float().mean().item() - (1 - p)) < 5 * deviation
    torch.testing.assert_close(out[kept], torch.full_like(out[kept], 3 / (1 - p)))
    (dx,) = torch.autograd.grad(out.sum(), x)
    torch.testing.assert_close(dx, kept / (1 - p))
    assert torch.equal(model.eval()(x), x)


@pytest.mark.parametrize("p,expected", [(0.0, 1.0), (1.0, 0.0)])
def test_dropout_of_nothing_and_of_everything(p, expected, paths):
    model = nn.Sequential(nn.Dropout(p))
    gs.lighten_(model)
    x = torch.ones(50, 12, requires_grad=True)
    out = model(x)
    assert torch.equal(out, torch.full_like(x, expected))
    assert torch.equal(torch.autograd.grad(out.sum(), x)[0], torch.full_like(x, expected))


def test_masks_differ_between_calls_and_repeat_by_seed(paths):
    model = nn.Sequential(nn.Dropout(0.5))
    gs.lighten_(model)
    x = torch.ones(50, 12)
    torch.manual_seed(3)
    first, second = model(x), model(x)
    assert not torch.equal(first, second)
    torch.manual_seed(3)
    assert torch.equal(model(x), first) and torch.equal(model(x), second)


def test_nan_stays_visible(paths):
    model = nn.Sequential(nn.ReLU(), nn.Dropout(0.0))
    gs.lighten_(model)
    x = torch.randn(50, 12)
    x[3, 4] = torch.nan
    assert model(x).isnan().sum() == 1
