"""The setting gs.Int8: its arguments, which modules it reaches, and which stay in float32."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch import nn
from torch_geometric import nn as pyg

import gossamer as gs
from gossamer.engine.choice import FEEDS_LOSS, NAMED, engine_of
from gossamer.engine.int8.engine import Int8Engine
from gossamer.engine.rules import fits_int8, least
from gossamer.engine.settings import Float32, Int8
from gossamer.ops.int8_linear import MAX_COLUMNS
from support.compare import nsr
from support.int8 import Quantised
from support.paths import forced
from support.traces import Calls

NODES, WIDTH = 100, 16


@pytest.fixture(autouse=True)
def _small_tensors_take_fused_ops():
    torch.manual_seed(0)
    with forced(least=1):
        yield


def graph():
    return torch.randn(NODES, WIDTH), torch.randint(0, NODES, (2, 400))


def used(model, *args, recipe=None, **setting):
    """Names of the modules that multiply in int8 once the model is lightened, in training and in evaluation."""
    report = gs.lighten_(model, gs.Recipe(compute=Int8(**setting)) if recipe is None else recipe)
    found = []
    for mode in (True, False):
        with Quantised(model) as weights:
            model.train(mode)(*args).sum().backward()
        found.append(weights.names)
    assert sorted(found[0]) == sorted(found[1])
    return found[0], report


# Arguments.


def test_defaults_and_values():
    assert Int8() == Int8("nearest", "stochastic", False, 1e-3, ()) and hash(Int8()) == hash(Int8())
    assert Int8(float32=["convs.0"]) == Int8(float32=("convs.0",))
    assert repr(gs.Recipe(compute=Int8(rounding="stochastic"))).startswith("Recipe(compute=Int8(rounding='stochastic'")
    with pytest.raises(dataclasses.FrozenInstanceError):
        Int8().auto = True


BAD = {
    "rounding": (["up", "", None, 0], r"`rounding` must be 'nearest' or 'stochastic' \(got "),
    "gradients": (["exact", None, True], r"`gradients` must be 'nearest' or 'stochastic' \(got "),
    "auto": (["yes", 1, None], r"`auto` must be True or False \(got "),
    "tolerance": ([0, 1, -1e-3, float("nan"), float("inf"), "1e-3", None, True], "`tolerance` must be between 0 and 1"),
    "float32": (["convs.0", [1], (None,)], r"`float32` must be names of modules, as \('convs.0',\) \(got "),
}


@pytest.mark.parametrize("name, value", [(name, value) for name, (values, _) in BAD.items() for value in values])
def test_wrong_arguments(name, value):
    with pytest.raises(ValueError, match=BAD[name][1]):
        Int8(**{name: value})


@pytest.mark.parametrize("value", [None, 3])
def test_float32_that_is_no_list(value):
    with pytest.raises(ValueError, match="`float32` must be names of modules"):
        Int8(float32=value)


def test_float32_from_a_generator():
    assert Int8(float32=(f"convs.{k}" for k in range(2))).float32 == ("convs.0", "convs.1")


@pytest.mark.parametrize(
    "setting", [Int8(), Int8(rounding="stochastic", gradients="nearest"), Int8(tolerance=0.01, float32=("a", "b.c"))]
)
def test_json(setting):
    recipe = gs.Recipe(compute=setting, activations=gs.Blockwise(bits=2))
    assert gs.Recipe.from_json(recipe.to_json()) == recipe


def test_recipes_have_it():
    assert gs.recipes["tango"] == gs.Recipe(compute=Int8())
    assert gs.recipes["feather"].compute == Int8() and gs.recipes["feather"].activations.bits == 2


def test_unknown_names():
    model = pyg.GCN(WIDTH, WIDTH, 2, 3)
    before = type(model.convs[0])
    with pytest.raises(
        ValueError, match=r"`float32` must name modules of the model \(there is no 'conv.0'\); they are "
    ):
        gs.lighten_(model, gs.Recipe(compute=Int8(float32=("convs.0", "conv.0"))))
    assert type(model.convs[0]) is before  # nothing was changed


# Which products are int8.

READY = {
    "GCN": (lambda **k: pyg.GCN(WIDTH, WIDTH, 3, 5, **k), ["convs.0.lin", "convs.1.lin"], "convs.2"),
    "GraphSAGE": (
        lambda **k: pyg.GraphSAGE(WIDTH, WIDTH, 3, 5, **k),
        ["convs.0.lin_l", "convs.0.lin_r", "convs.1.lin_l", "convs.1.lin_r"],
        "convs.2",
    ),
    "GIN": (
        lambda **k: pyg.GIN(WIDTH, WIDTH, 3, 5, **k),
        [f"convs.{k}.nn.lins.{j}" for k in range(3) for j in range(2)][:-1],
        "convs.2.nn.lins.1",
    ),
}


@pytest.mark.parametrize("norm", [None, "batch_norm"])
@pytest.mark.parametrize("kind", READY)
def test_all_but_the_last_product_of_a_ready_model(kind, norm):
    make, want, last = READY[kind]
    found, report = used(make(norm=norm), *graph())
    assert found == want
    notes = {row.name: row.note for row in report.rows}
    assert notes[last] == FEEDS_LOSS
    assert not any(note == FEEDS_LOSS for name, note in notes.items() if not name.startswith(last))


@pytest.mark.parametrize("kind", READY)
def test_with_jumping_knowledge_the_last_is_another(kind):
    make, want, _ = READY[kind]
    found, report = used(make(jk="cat"), *graph())
    assert set(want) < set(found) and "lin" not in found
    assert [row.name for row in report.rows if row.note == FEEDS_LOSS] == ["lin"]


NAMES = {
    "a convolution": ("GCN", "convs.0", ["convs.1.lin"]),
    "its linear layer": ("GCN", "convs.1.lin", ["convs.0.lin"]),
    "a container": ("GCN", "convs", []),
    "neighbours of a first layer": ("GraphSAGE", "convs.0.lin_l", ["convs.0.lin_r", "convs.1.lin_l", "convs.1.lin_r"]),
    "roots of a first layer": ("GraphSAGE", "convs.0.lin_r", ["convs.0.lin_l", "convs.1.lin_l", "convs.1.lin_r"]),
    "neighbours after an epilogue": (
        "GraphSAGE",
        "convs.1.lin_l",
        ["convs.0.lin_l", "convs.0.lin_r", "convs.1.lin_r"],
    ),
    "roots after an epilogue": ("GraphSAGE", "convs.1.lin_r", ["convs.0.lin_l", "convs.0.lin_r", "convs.1.lin_l"]),
    "first of an MLP": ("GIN", "convs.1.nn.lins.0", [READY["GIN"][1][k] for k in (0, 1, 3, 4)]),
    "second of an MLP": ("GIN", "convs.0.nn.lins.1", [READY["GIN"][1][k] for k in (0, 2, 3, 4)]),
    "an MLP": ("GIN", "convs.1.nn", [READY["GIN"][1][k] for k in (0, 1, 4)]),
}


@pytest.mark.parametrize("norm", [None, "layer_norm"])
@pytest.mark.parametrize("case", NAMES)
def test_named_modules_stay_in_float32(case, norm):
    kind, name, want = NAMES[case]
    found, report = used(READY[kind][0](norm=norm), *graph(), float32=(name,))
    assert sorted(found) == want
    assert all(row.note == NAMED for row in report.converted if row.name == name)


@pytest.mark.parametrize("case", [name for name in NAMES if "epilogue" in name])
def test_named_modules_stay_in_float32_beside_few_bits(case):
    """With codecs an epilogue may wait for products that are not int8; none that was named is."""
    kind, name, want = NAMES[case]
    recipe = gs.Recipe(compute=Int8(float32=(name,)), activations=gs.Blockwise(bits=8))
    model = READY[kind][0](norm="layer_norm")
    gs.lighten_(model, recipe)
    with Quantised(model) as weights:
        model(*graph()).sum().backward()
    assert set(weights.names) <= set(want)


def test_modules_by_themselves():
    mlp = pyg.MLP([WIDTH, WIDTH, WIDTH, 3])
    assert used(mlp, graph()[0])[0] == ["lins.0", "lins.1"]
    sequence = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 3))
    assert used(sequence, graph()[0])[0] == ["0", "2"]
    assert used(nn.Sequential(nn.Linear(WIDTH, 3)), graph()[0])[0] == []  # it feeds the loss


def test_a_convolution_alone_stays_in_float32():
    assert used(pyg.GCNConv(WIDTH, 4), *graph())[0] == []


@pytest.mark.parametrize("aggr", ["max", "mean"])
def test_maxima_are_float32(aggr):
    """The sum of a mean goes through integers; a maximum is no sum, and its product is by float32 rows."""
    model = pyg.GraphSAGE(WIDTH, WIDTH, 2, 3, aggr=aggr)
    found, _ = used(model, *graph())
    assert "convs.0.lin_r" in found and torch.isfinite(model(*graph())).all()


def test_an_epsilon_that_requires_grad():
    """GIN's own factor gets its gradient: the sum is float32, the products int8."""
    model = nn.ModuleList([pyg.GINConv(pyg.MLP([WIDTH, WIDTH, WIDTH], norm=None), train_eps=True), nn.Linear(2, 2)])
    gs.lighten_(model, "tango")
    with Quantised(model) as weights:
        model[0](*graph()).square().sum().backward()
    assert model[0].eps.grad.abs() > 0 and weights.names == ["0.nn.lins.0", "0.nn.lins.1"]


def test_an_epsilon_that_requires_grad_in_evaluation():
    """Nothing needs a gradient, so that the sum is int8, too."""
    model = nn.ModuleList([pyg.GINConv(pyg.MLP([WIDTH, WIDTH, WIDTH], norm=None), train_eps=True), nn.Linear(2, 2)])
    given = graph()
    want = model.eval()[0](*given).detach()
    gs.lighten_(model, "tango")
    with torch.no_grad(), Calls() as calls:
        out = model[0](*given)
    assert {"spmm_rows", "spmm_int8"} & set(calls.names) and "spmm" not in calls.names
    assert nsr(out, want) < 1e-3


def test_edge_weights_that_require_grad():
    """The sum is float32, the products are int8."""
    model = nn.ModuleList([pyg.GraphConv(WIDTH, WIDTH), nn.Linear(2, 2)])
    gs.lighten_(model, "tango")
    weight = torch.rand(400, requires_grad=True)
    with Quantised(model) as weights:
        model[0](*graph(), weight).square().sum().backward()
    assert sorted(weights.names) == ["0.lin_rel", "0.lin_root"] and bool((weight.grad != 0).all())


# What is quantised.


def test_what_is_quantised():
    assert fits_int8(torch.zeros(least.int8, 1)) and not fits_int8(torch.zeros(least.int8 - 1, 1))
    assert not fits_int8(torch.zeros(8, 8, 64)) and not fits_int8(torch.zeros(least.int8, 1, dtype=torch.float64))
    assert fits_int8(torch.zeros(1, MAX_COLUMNS)) and not fits_int8(torch.zeros(1, MAX_COLUMNS + 1))
    assert not torch.vmap(lambda x: torch.tensor(fits_int8(x)))(torch.zeros(3, least.int8, 2)).any()


def test_small_inputs_are_float32():
    model = pyg.GCN(WIDTH, WIDTH, 3, 5)
    x, edge_index = torch.randn(7, WIDTH), torch.randint(0, 7, (2, 20))
    want = model(x, edge_index)
    gs.lighten_(model, "tango")
    with Quantised(model) as weights:
        torch.testing.assert_close(model(x, edge_index), want)
    assert not weights.names


def in_int8(module):
    return isinstance(engine_of(module), Int8Engine)


def test_the_last_recipe_counts():
    model = pyg.GCN(WIDTH, WIDTH, 2, 3)
    assert not in_int8(model.convs[0])
    gs.lighten_(model, "tango")
    assert in_int8(model.convs[0]) and not in_int8(model.convs[1])
    gs.lighten_(model, "float32")
    assert not in_int8(model.convs[0])
    gs.lighten_(model, "tango")
    gs.restore_(model)
    assert not in_int8(model.convs[0]) and gs.Recipe().compute == Float32()
