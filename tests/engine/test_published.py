"""The published layout, for comparison with EXACT's numbers: every op saves its own operand, nothing is shared."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch_geometric import nn as pyg

import gossamer as gs
from gossamer import measure
from gossamer.engine.saved.policy import saving_of
from support.codecs import EXACT
from support.paths import forced
from support.saved import dots
from support.tensors import seeded, tensors
from support.unbiased import assert_unbiased

NODES, IN, HIDDEN, OUT = 130, 24, 16, 9
ROWS = gs.Uniform(bits=2, meta="bfloat16")
EXACT_BY_OP = gs.Recipe(activations=gs.Published(EXACT))


@pytest.fixture(autouse=True)
def _small_tensors_take_fused_ops():
    torch.manual_seed(0)
    with forced(least=1):
        yield


def inputs(needs_grad=False):
    x = tensors((NODES, IN), seed=2)[0].detach().requires_grad_(needs_grad)
    return x, torch.randint(0, NODES, (2, 600), generator=torch.Generator().manual_seed(1))


def lightened(model, recipe="exact-int2-published"):
    model = copy.deepcopy(model)
    gs.lighten_(model, recipe)
    return model


def saved_by(model, *args):
    with measure.kept(exclude=[model]) as account:
        out = model(*args)
    assert out.requires_grad
    return account


def run(model, args):
    seeded(5)
    out = model(*args)
    leaves = [*model.parameters(), *(a for a in args if a.requires_grad)]
    return out.detach(), torch.autograd.grad(dots([out]), leaves)


# The setting ----------------------------------------------------------------------------------------------------


def test_the_setting():
    usual = gs.Published()
    assert usual == gs.Published(gs.Projected(ratio=8, then=ROWS)) and hash(usual) == hash(gs.Published())
    assert repr(usual).startswith("Published(codec=Projected(ratio=8, then=Uniform(bits=2")
    with pytest.raises(ValueError, match=r"`codec` must be a codec such as gs.Blockwise\(\) \(got 2\)"):
        gs.Published(2)
    with pytest.raises(ValueError, match=r"`codec` must be a codec .*got Published"):
        gs.Published(gs.Published())


def test_norms_are_never_projected():
    saving = saving_of(gs.Published())
    assert saving.rows == gs.Published().codec and saving.values == ROWS


# What each op saves ---------------------------------------------------------------------------------------------


def test_each_op_saves_its_own():
    """Rows of a product projected, the norm's input, a bit for the activation, a bit for dropout."""
    model = lightened(nn.Sequential(nn.Linear(IN, HIDDEN), nn.BatchNorm1d(HIDDEN), nn.ReLU(), nn.Dropout()))
    account = saved_by(model, inputs()[0])
    few = sum(t.bytes for t in account.tensors if t.dtype in (torch.uint8, torch.bfloat16))
    rows, bits = gs.Published().codec.nbytes((NODES, IN)) - 8, NODES * HIDDEN // 8
    assert few == rows + ROWS.nbytes((NODES, HIDDEN)) + 2 * bits
    apart = [t for t in account.tensors if t.dtype not in (torch.uint8, torch.bfloat16)]
    assert sorted(t.bytes for t in apart) == [8, 4 * HIDDEN, 4 * HIDDEN]  # the seed, mean and variance


def test_a_product_saves_its_rows():
    """Also of input that needs no gradient."""
    codec = gs.Blockwise(bits=2)
    for needs_grad in (False, True):
        model = lightened(nn.Linear(IN, OUT), gs.Recipe(activations=gs.Published(codec)))
        assert saved_by(model, inputs(needs_grad)[0] * 1).bytes == codec.nbytes((NODES, IN))


def test_sage_saves_its_rows_and_their_sums():
    """Also of input that needs no gradient."""
    for needs_grad in (False, True):
        x, edge_index = inputs(needs_grad)
        account = saved_by(lightened(pyg.SAGEConv(IN, HIDDEN)), x * 1, edge_index)
        assert account.bytes == 2 * gs.Published().codec.nbytes((NODES, IN))


def test_gcn_saves_one_operand():
    account = saved_by(lightened(pyg.GCNConv(IN, HIDDEN)), *inputs())
    assert account.bytes == gs.Published().codec.nbytes((NODES, IN))


# Exactness ------------------------------------------------------------------------------------------------------


MODELS = {
    "gcn": lambda: pyg.GCN(IN, HIDDEN, 3, OUT, dropout=0.5, norm="batch_norm"),
    "sage": lambda: pyg.GraphSAGE(IN, HIDDEN, 3, OUT, dropout=0.5, norm="layer_norm", act="leaky_relu"),
    "gin": lambda: pyg.GIN(IN, HIDDEN, 3, OUT, dropout=0.5),
}


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("needs_grad", [False, True])
def test_gradients_from_codes_that_lose_nothing(name, needs_grad):
    """One op at a time, hence one rounding more here and there than fused ones."""
    model, args = MODELS[name](), inputs(needs_grad)
    (out, exact), (few, grads) = (run(lightened(model, r), args) for r in ("float32", EXACT_BY_OP))
    torch.testing.assert_close(few, out, rtol=1e-4, atol=1e-5)
    top = max(float(truth.norm()) for truth in exact)
    for grad, truth in zip(grads, exact, strict=True):
        assert float((grad - truth).norm()) <= 1e-4 * float(truth.norm()) + 1e-6 * top


@pytest.mark.parametrize("codec", [gs.Published().codec, gs.Blockwise(bits=2), gs.RowInt8()], ids=repr)
def test_products_are_unbiased(codec):
    model, (x, _) = nn.Linear(IN, OUT), inputs()
    exact = torch.autograd.grad(dots([model(x)]), list(model.parameters()))
    gs.lighten_(model, gs.Recipe(activations=gs.Published(codec)))
    assert_unbiased(lambda: torch.autograd.grad(dots([model(x)]), list(model.parameters())), exact, 200)


def test_a_norm_that_saves_its_input_has_unbiased_parameter_gradients():
    """dweight is linear in the decoded input; dx is biased as documented for x_hat (saved/test_epilogue.py)."""
    model, (x, _) = nn.BatchNorm1d(IN), inputs(needs_grad=True)
    exact = torch.autograd.grad(dots([model(x)]), list(model.parameters()))
    gs.lighten_(model, "exact-int2-published")
    assert_unbiased(lambda: torch.autograd.grad(dots([model(x)]), list(model.parameters())), exact, 200)


@pytest.mark.parametrize("act", [nn.ReLU(), nn.LeakyReLU(0.3), nn.Dropout(0.5)], ids=lambda act: type(act).__name__)
def test_bits_are_exact(act):
    x = inputs(needs_grad=True)[0]
    results = []
    for recipe in ("float32", "exact-int2-published"):
        torch.manual_seed(0)
        out = lightened(nn.Sequential(nn.Identity(), act, nn.Linear(IN, OUT)), recipe)[1](x)
        results.append((out.detach(), torch.autograd.grad(dots([out]), x)[0]))
    assert torch.equal(results[0][0], results[1][0])
    torch.testing.assert_close(results[0][1], results[1][1], rtol=1e-6, atol=1e-6)


def test_not_a_number_is_refused():
    """Where the codec itself encodes: an error that says what to do, before backward could give a finite number."""
    x, edge_index = inputs()
    x[7, 3] = torch.nan
    with pytest.raises(ValueError, match=r"`x` must be finite to be encoded \(got \d+ NaN"):
        lightened(MODELS["gcn"]())(x, edge_index)
