"""The state of a lightened model: checkpoints, copies that do not share it, and nothing left by `restore_`."""

from __future__ import annotations

import copy
import io
import json
import pickle

import pytest
import torch
from torch import nn
from torch_geometric import nn as pyg

import gossamer as gs
from gossamer.engine.int8.precision import STEPS
from gossamer.state import model_state_of, state_of
from gossamer.state.layer import ATTRIBUTE
from support.tensors import seeded

RECIPES = tuple(gs.recipes)


@pytest.fixture(autouse=True)
def _same_numbers():
    torch.manual_seed(0)


@pytest.fixture
def graph():
    return torch.randn(100, 16), torch.randint(0, 100, (2, 400))


def made(recipe):
    model = pyg.GCN(16, 32, 3, 5, norm="batch_norm")
    gs.lighten_(model, recipe)
    return model


def train(model, graph, steps=1):
    for _ in range(steps):
        model.zero_grad()
        model(*graph).square().sum().backward()
        model_state_of(model).step += 1


def through_torch_save(model):
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


COPIES = {
    "deepcopy": copy.deepcopy,
    "pickle": lambda model: pickle.loads(pickle.dumps(model)),
    "torch.save": through_torch_save,
}


# One object per module, one per model ---------------------------------------------------------------------------


@pytest.mark.parametrize("recipe", RECIPES)
def test_every_lightened_module_has_a_state(recipe):
    model = pyg.GCN(16, 32, 3, 5, norm="batch_norm")
    report = gs.lighten_(model, recipe)
    state = model_state_of(model)
    assert state.recipe == gs.recipes[recipe] and state.step == state.epoch == 0
    assert list(state.layers) == [row.name for row in report.converted]
    for name, module in model.named_modules():
        own = state_of(module)
        assert own is state.layers.get(name)
        assert own is None or (own.model is state and own.name == name)


def test_what_is_no_lightened_module():
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh())
    assert model_state_of(model) is None and state_of(model) is None and state_of(None) is None
    gs.lighten_(model)
    assert state_of(model[0]) is not None and state_of(model[1]) is None


def test_an_exception_has_its_own_part_of_the_recipe():
    model = made(gs.Recipe(compute=gs.Int8(float32=("convs.0",)), activations=gs.Blockwise(bits=4)))
    compute = [state_of(conv).recipe.compute for conv in model.convs]
    assert compute == [gs.Float32(), model_state_of(model).recipe.compute, gs.Float32()]  # the last feeds the loss
    assert state_of(model.convs[0]).recipe.activations == gs.Blockwise(bits=4)


def test_lightened_anew_it_begins_anew(graph):
    model = made("tango-auto")
    train(model, graph)
    before = model_state_of(model)
    gs.lighten_(model, "exact-int2")
    state = model_state_of(model)
    assert state is not before and state.step == 0 and state.recipe == gs.recipes["exact-int2"]
    assert all(state_of(module) in (None, state.layers.get(name)) for name, module in model.named_modules())


# Checkpoints ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("steps", [0, 1, STEPS])
@pytest.mark.parametrize("recipe", RECIPES)
def test_a_checkpoint_goes_through_json(recipe, steps, graph):
    model, other = made(recipe), made(recipe)
    train(model, graph, steps)
    model_state_of(model).epoch = 7
    written = json.dumps(model_state_of(model).state())
    model_state_of(other).restore(json.loads(written))
    state = model_state_of(other)
    assert (state.step, state.epoch) == (steps, 7)
    assert json.dumps(state.state()) == written
    assert dict(gs.precision(other)) == dict(gs.precision(model))


def test_measurements_go_on_where_they_stopped(graph):
    """A model restored after one step is decided after the same steps, with the same numbers, as one that ran on."""
    model = made("tango-auto")
    train(model, graph)
    other = made("tango-auto")
    other.load_state_dict(model.state_dict())
    model_state_of(other).restore(json.loads(json.dumps(model_state_of(model).state())))
    for each in (model, other):
        seeded(3)
        train(each, graph, STEPS - 1)
    found = gs.precision(other)
    assert len(found) == 2 and all(decision.decided for decision in found.values())
    assert dict(found) == dict(gs.precision(model))


def test_a_decision_is_restored(graph):
    """Also the engine follows: a module found too noisy computes in float32, to the bit."""
    recipe = gs.Recipe(compute=gs.Int8(auto=True, tolerance=1e-9))
    model, fresh, plain = made(recipe), made(recipe), made("float32")
    for other in (fresh, plain):
        other.load_state_dict(model.state_dict())
    train(model, graph, STEPS)
    assert {decision.compute for decision in gs.precision(model).values()} == {"float32"}
    before = fresh.eval()(*graph)
    model_state_of(fresh).restore(model_state_of(model).state())
    after, want = fresh(*graph), plain.eval()(*graph)
    assert not torch.equal(before, after)
    torch.testing.assert_close(after, want)
    model_state_of(fresh).restore({"step": 0, "epoch": 0, "layers": {}})  # layers not named begin anew
    assert torch.equal(fresh(*graph), before)


# Copies ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", COPIES)
@pytest.mark.parametrize("recipe", RECIPES)
def test_a_copy_has_a_state_of_its_own(recipe, kind, graph):
    model = made(recipe)
    train(model, graph)
    copied = COPIES[kind](model)
    own, other = model_state_of(model), model_state_of(copied)
    assert other is not own and other.recipe == own.recipe and other.state() == own.state()
    assert other.layers.keys() == own.layers.keys()
    for name, module in copied.named_modules():
        layer = state_of(module)
        assert layer is other.layers.get(name)
        assert layer is None or (layer.model is other and layer is not own.layers[name])
    before = own.state()
    train(copied, graph, STEPS)
    assert other.step == STEPS + 1 and own.state() == before
    assert all(decision.decided for decision in gs.precision(copied).values())
    gs.restore_(copied)
    assert model_state_of(copied) is None and model_state_of(model) is own


@pytest.mark.parametrize("kind", COPIES)
@pytest.mark.parametrize("recipe", RECIPES)
def test_a_copy_computes_the_same(recipe, kind, graph):
    """Results and gradients, to the bit: the same noise for the same generator."""
    model = made(recipe)
    copied = COPIES[kind](model)
    found = []
    for each in (model, copied):
        seeded(3)
        train(each, graph)
        found.append([p.grad for p in each.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


def test_decisions_of_a_copy_are_its_own(graph):
    """Measured by the copy alone, its layers change to float32 and those of the model do not."""
    model = made(gs.Recipe(compute=gs.Int8(auto=True, tolerance=1e-9)))
    copied = copy.deepcopy(model)
    before = model.eval()(*graph)
    train(copied, graph, STEPS)
    assert {decision.compute for decision in gs.precision(copied).values()} == {"float32"}
    assert {decision.compute for decision in gs.precision(model).values()} == {"int8"}
    assert torch.equal(model(*graph), before)


# Nothing is left ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("recipe", RECIPES)
def test_restore_removes_it(recipe, graph):
    model = pyg.GCN(16, 32, 3, 5, norm="batch_norm")
    keys, attributes = list(model.state_dict()), [sorted(module.__dict__) for module in model.modules()]
    gs.lighten_(model, recipe)
    train(model, graph)
    assert [key for key in model.state_dict() if ".quantisers." not in key] == keys
    gs.restore_(model)
    assert list(model.state_dict()) == keys
    assert model_state_of(model) is None and not any(ATTRIBUTE in module.__dict__ for module in model.modules())
    assert [sorted(module.__dict__) for module in model.modules()] == attributes
