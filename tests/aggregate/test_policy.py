"""What backward multiplies: nothing is lost by skipping rows of zeros, and settings that mean nothing are refused."""

from __future__ import annotations

import math

import pytest
import torch
from torch_geometric import nn as pyg

import gossamer as gs
from gossamer import ops
from gossamer.aggregate.policy import Exact, NonzeroRows
from gossamer.ops import row_selection
from gossamer.ops.quantize_rows import QRows
from gossamer.ops.row_selection import LEAST_ZEROS, rows_that_count
from gossamer.recipe import Recipe
from gossamer.state import ModelState
from support import graphs
from support.selections import CONVS, KINDS, adjacency, back, gradients, pair_of
from support.tensors import rand, seeded

SHARES = (0.0, 0.1, 0.9, 0.95, 1.0)
SQUARE = [name for name in graphs.GRAPHS if graphs.graph(name).num_src == graphs.graph(name).num_dst]
LABELLED = (torch.arange(400) < 40).unsqueeze(1)
PAIRS = [(name, kind) for name in graphs.GRAPHS for kind in KINDS if kind != "gcn" or name in SQUARE]


@pytest.fixture
def looks(monkeypatch):
    """Zeros are looked for in products of any size, and left out however few there are."""
    monkeypatch.setattr(row_selection, "LEAST_WORK", 0)
    monkeypatch.setattr(row_selection, "LEAST_ZEROS", 0)


def some_zeros(rows, columns, share):
    x = rand(rows, columns, seed=2)
    x[torch.rand(rows, generator=torch.Generator().manual_seed(3)) < share] = 0.0
    return x


@pytest.mark.parametrize("name, kind", PAIRS)
def test_skipping_zeros_loses_nothing(name, kind, looks):
    """Of float rows and of int8 rows, in and out."""
    exact = adjacency(name, kind)
    for share, columns in zip(SHARES, (1, 7, 16, 33, 64), strict=True):
        dout = some_zeros(exact.graph.num_dst, columns, share)
        g, factor = QRows(*ops.quantize_rows(dout)), rand(columns, seed=4)
        skipping = exact.under(NonzeroRows())
        assert torch.equal(back(skipping, dout), back(exact, dout))
        assert torch.equal(skipping.back_of_rows(g), exact.back_of_rows(g))
        for noise in (None, 5):
            assert all(map(torch.equal, skipping.back_rows(g, factor, noise), exact.back_rows(g, factor, noise)))


def test_zeros_are_really_skipped(looks):
    """Rows that are zero, no others: not those of denormals or NaN, nor those of int8 rows with a scale."""
    x = some_zeros(400, 7, 0.5)
    x[0], x[1], x[2] = -0.0, 1e-45, math.nan
    keep = rows_that_count(x, 3000)
    assert torch.equal(keep, (x != 0).any(1)) and not keep[0] and keep[1] and keep[2]
    codes, scale = ops.quantize_rows(some_zeros(400, 7, 0.5))
    assert torch.equal(rows_that_count(QRows(codes, scale), 3000), scale != 0)


def test_zeros_are_not_looked_for_where_that_does_not_pay():
    x = some_zeros(2000, 8, 0.5)
    enough = row_selection.LEAST_WORK
    assert rows_that_count(x, enough) is not None and rows_that_count(x, enough - 1) is None
    assert rows_that_count(some_zeros(2000, 8, LEAST_ZEROS / 2), enough) is None
    assert rows_that_count(x[:0], enough) is None


@pytest.mark.parametrize("kind", CONVS)
def test_models_lightened_by_default_are_exact(kind, looks):
    model, exact = pair_of(kind, NonzeroRows())
    edges = graphs.graph("power law").edge_index
    got, want = (gradients(m, edges, share=0.1) for m in (model, exact))
    assert all(map(torch.equal, got, want))


@pytest.mark.parametrize("kind", CONVS)
def test_second_derivatives_by_rows_of_zeros(kind, looks):
    """The gradient of a row that has no loss is zero; its derivative is not."""
    edges, found = graphs.graph("power law").edge_index, []
    for model in pair_of(kind, NonzeroRows()):
        x, weight = rand(400, 8).requires_grad_(), torch.zeros(400, 1).requires_grad_()
        loss = (model(x, edges) * (weight + LABELLED)).sum()
        (slope,) = torch.autograd.grad(loss, x, create_graph=True)
        found.append(torch.autograd.grad(slope.square().sum(), [weight, *model.convs[0].parameters()]))
    assert all(map(torch.equal, *found)) and found[0][0][~LABELLED].any()


@pytest.mark.parametrize("norm", [None, "batch_norm", "layer_norm"])
def test_norms_make_no_difference(norm, looks):
    found = []
    for setting in (NonzeroRows(), Exact()):
        seeded()
        gs.lighten_(model := pyg.GCN(8, 16, 3, 4, norm=norm), gs.Recipe(backward=setting))
        found.append(gradients(model, graphs.graph("power law").edge_index, share=0.1))
    assert all(map(torch.equal, *found))


# TopRows --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name, value",
    [
        *(("budget", value) for value in (0, -1, 1.5, math.nan, math.inf, True, "0.1", None)),
        *((name, value) for name in ("refresh", "warmup", "reallocate") for value in (0, -2, 1.5, True, "3")),
        *(("exact_after", value) for value in (0.0, 1.0, 1.5, -3, True, math.nan, "0.8")),
        *(("rank", value) for value in ("degree", None, 1)),
        ("allocation", "equal"),
        ("edge_grad", "none"),
        *(("sample", value) for value in (1, "yes", None)),
    ],
)
def test_settings_that_mean_nothing(name, value):
    with pytest.raises(ValueError) as error:
        gs.TopRows(**{name: value})
    assert f"`{name}` must be" in str(error.value) and f"(got {value!r})" in str(error.value)


@pytest.mark.parametrize("setting", [{"budget": 1}, {"budget": 1.0}, {"exact_after": 0}, {"exact_after": None}])
def test_settings_at_their_limits(setting):
    assert gs.TopRows(**setting) == gs.TopRows(**setting) != gs.TopRows()


OWN = gs.Recipe(backward=gs.TopRows(0.2, exact_after=500, sample=False, rank="score"))


@pytest.mark.parametrize("recipe", [gs.recipes["rsc"], gs.recipes["tango-rsc"], OWN], ids=["rsc", "tango-rsc", "own"])
def test_json_and_back(recipe):
    again = Recipe.from_json(recipe.to_json())
    assert again == recipe and type(again.backward.exact_after) is type(recipe.backward.exact_after)
    assert eval(repr(recipe), vars(gs)) == recipe


def test_only_top_rows_remember_something():
    model = ModelState(gs.Recipe())
    for setting in (Exact(), NonzeroRows()):
        assert setting.bound_to("conv", model) is setting and model.backward is None and setting.edge_rows() is None
    one, two = (gs.TopRows().bound_to(name, model) for name in "ab")
    assert one is not two and one.budget is two.budget is model.backward
