"""gs.selection: what is kept, what it may have cost, what can be gained; for people and for programs."""

from __future__ import annotations

import json

import pytest
import torch
from torch import nn

import gossamer as gs
from support import graphs
from support.selections import Net, pair_of, policy_of
from support.tensors import rand

EDGES = graphs.graph("power law").edge_index


def trained(passes, budget=0.2, **settings):
    model, _ = pair_of(
        "SAGE, mean",
        gs.TopRows(budget, **({"warmup": 2, "refresh": 10, "sample": False, "exact_after": None} | settings)),
    )
    for _ in range(passes):
        model(rand(400, 8), EDGES).square().sum().backward()
    return model


@pytest.mark.parametrize("passes, phase", [(0, "warm-up"), (1, "warm-up"), (3, "selected"), (9, "exact")])
def test_it_goes_to_json_in_every_phase(passes, phase):
    found = gs.selection(trained(passes, exact_after=8))
    plain = json.loads(found.to_json(), parse_constant=pytest.fail)  # neither NaN nor infinity
    assert plain["phase"] == found.phase == phase and plain["passes"] == passes and plain["budget"] == 0.2
    assert list(plain["layers"]) == list(found.layers) and plain["bytes"] == found.bytes
    assert str(found)


def test_what_is_told_of_a_layer():
    model = trained(6)
    found = gs.selection(model)
    assert list(found.layers) == ["convs.2", "convs.1"]  # in backward; the first layer's input needs no gradient
    for name, layer in found.layers.items():
        policy = policy_of(model.get_submodule(name))
        assert (layer.columns, layer.edges, layer.draws) == (policy.product(0).width, 3000, 1)
        assert 0 < layer.kept <= layer.share + 1 / 3000 and not layer.at_floor
        assert 0 < layer.estimated < 1 and 0 < layer.measured < 1
    assert found.kept <= found.budget and 1 < found.bound < 1 / 0.2 and 0 < found.product_share <= 1


def test_it_prints_a_table():
    told = str(gs.selection(trained(6)))
    assert "convs.2" in told and "6 passes: selected" in told and "budget 20%" in told
    assert "x faster at most" in " ".join(told.split()) and max(map(len, told.splitlines())) <= 110
    assert "measured in the warm-up" in " ".join(str(gs.selection(trained(1))).split())
    assert "(floor)" in str(gs.selection(trained(4, budget=1e-9)))
    assert "no backward product has been selected yet" in str(gs.selection(trained(0)))


def test_bytes_are_those_of_masks_and_of_the_edges_that_are_kept():
    """Two truth values and a norm for each row; later a row pointer and 4 bytes for each kept edge."""
    first, later = gs.selection(trained(3)), gs.selection(trained(4))
    assert first.bytes == 2 * 400 * (1 + 1 + 4)
    edges = [round(layer.kept * layer.edges) for layer in later.layers.values()]
    assert later.bytes == first.bytes + sum(8 * 401 + 4 * count for count in edges)


@pytest.mark.parametrize(
    "model, error, message",
    [
        (nn.Linear(3, 3), ValueError, r"`model` must be lightened.*backward=gs.TopRows.*'rsc'.*not lightened"),
        ("rsc", TypeError, r"`model` must be a torch.nn.Module \(got str\)"),
        (None, TypeError, "got NoneType"),
    ],
)
def test_models_without_a_selection(model, error, message):
    with pytest.raises(error, match=message):
        gs.selection(model)


@pytest.mark.parametrize("recipe", ["float32", "tango"])
def test_models_of_another_recipe(recipe):
    gs.lighten_(model := Net("GCN"), recipe)
    with pytest.raises(ValueError, match=r"`model` must be lightened by a recipe with backward=gs.TopRows.*got Recipe"):
        gs.selection(model)


def test_looking_changes_nothing():
    models = [trained(5), trained(5)]
    str(gs.selection(models[0]))
    found = [torch.autograd.grad(m(rand(400, 8), EDGES).sum(), list(m.parameters())) for m in models]
    assert all(map(torch.equal, *found))
