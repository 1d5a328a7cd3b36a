"""Which engine computes a module: a recipe, lowered; exceptions of int8; modules that no engine knows."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch_geometric import nn as pyg

import gossamer as gs
from gossamer.engine.choice import FEEDS_LOSS, NAMED, engine_of, exceptions_of, lower, products_of
from gossamer.engine.float32 import FLOAT32, Float32
from gossamer.engine.int8.engine import Int8Engine
from gossamer.engine.published import Published
from gossamer.engine.saved.engine import Saved
from support.pyg_models import Gcnii

CODEC = gs.Blockwise(bits=4)


@pytest.fixture(autouse=True)
def _same_numbers():
    torch.manual_seed(0)


# A recipe, lowered ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "activations,kind,saves",
    [
        (gs.Keep(), Float32, False), (CODEC, Saved, True), (gs.Uniform(bits=2), Saved, True),
        (gs.Projected(ratio=8, then=CODEC), Saved, True), (gs.Published(CODEC), Published, True),
    ],
)  # fmt: skip
def test_what_a_recipe_becomes(activations, kind, saves):
    floats, int8 = lower(gs.Float32(), activations), lower(gs.Int8(), activations)
    assert type(floats) is kind and floats.saves is saves and floats.floats is floats
    assert type(int8) is Int8Engine and int8.saves is saves and int8.floats is int8.beneath
    assert int8.beneath == floats and int8.setting == gs.Int8()


def test_equal_recipes_become_equal_engines():
    assert lower(gs.Int8(), CODEC) == lower(gs.Int8(), gs.Blockwise(bits=4))
    assert lower(gs.Int8(), CODEC) != lower(gs.Int8(rounding="stochastic"), CODEC)
    assert lower(gs.Float32(), CODEC) != lower(gs.Float32(), gs.Blockwise(bits=2))


@pytest.mark.parametrize("recipe", [name for name, recipe in gs.recipes.items() if recipe.training is None])
def test_each_lightened_module_has_the_engine_of_the_recipe(recipe):
    model = pyg.GCN(16, 32, 3, 5, norm="batch_norm")
    assert all(engine_of(module) is FLOAT32 for module in model.modules())
    gs.lighten_(model, recipe)
    chosen = gs.recipes[recipe]
    int8 = isinstance(chosen.compute, gs.Int8)
    engine = engine_of(model.convs[0])
    assert isinstance(engine, Int8Engine) is int8 and engine.saves is (chosen.activations != gs.Keep())
    assert engine_of(model.convs[0].lin) == engine
    last = engine_of(model.convs[2])
    assert last == engine.floats and not isinstance(last, Int8Engine)
    gs.restore_(model)
    assert all(engine_of(module) is FLOAT32 for module in model.modules())


@pytest.mark.parametrize("recipe", [name for name, recipe in gs.recipes.items() if recipe.training is not None])
def test_what_is_trained_for_integers_has_an_engine_of_its_own(recipe):
    """With the quantisers of its module; the linear layers inside of a convolution have none."""
    model = pyg.GCN(16, 32, 2, 5)
    gs.lighten_(model, recipe)
    for conv in model.convs:
        assert engine_of(conv).sites is conv.quantisers and engine_of(conv.lin) == FLOAT32
    gs.restore_(model)
    assert not any(hasattr(conv, "quantisers") for conv in model.convs)


def test_beside_int8_float32_does_not_depend_on_the_number_of_threads():
    model = pyg.GCN(16, 32, 2, 5)
    gs.lighten_(model, "tango")
    assert engine_of(model.convs[1]) == Float32(deterministic=True)
    gs.lighten_(model, "float32")
    assert engine_of(model.convs[1]) == Float32(deterministic=False)


# Exceptions of int8 ---------------------------------------------------------------------------------------------


class Own(nn.Module):
    """Modules in an order of the user's."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = pyg.MLP([16, 32, 32])
        self.gin = pyg.GINConv(nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 32)))
        self.sage, self.act = pyg.SAGEConv(32, 32), nn.ReLU()

    def forward(self, x, edge_index):
        return self.sage(self.gin(self.encoder(x), edge_index), edge_index)


PRODUCTS = {
    "gcn": (lambda: pyg.GCN(16, 8, 2, 5), ["convs.0", "convs.1"]),
    "jumping knowledge": (lambda: pyg.GCN(16, 8, 2, 5, jk="cat"), ["convs.0", "convs.1", "lin"]),
    "gat": (lambda: pyg.GAT(16, 8, 2, 5), ["convs.0", "convs.1"]),
    "gin": (lambda: pyg.GIN(16, 8, 2, 5), [f"convs.{k}.nn.lins.{lin}" for k in range(2) for lin in range(2)]),
    "own": (Own, ["encoder.lins.0", "encoder.lins.1", "gin.nn.0", "gin.nn.2", "sage"]),
    "one linear layer": (lambda: nn.Linear(16, 5), [""]),
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_the_last_product_feeds_the_loss(name):
    """A convolution with all it holds, or a linear layer; in an MLP of GIN's, the last linear layer alone."""
    make, products = PRODUCTS[name]
    model = make()
    assert products_of(model) == products
    found = exceptions_of(model, gs.Recipe(compute=gs.Int8()))
    last = products[-1]
    inside = [n for n, _ in model.named_modules() if n == last or not last or n.startswith(f"{last}.")]
    assert found == dict.fromkeys(inside, FEEDS_LOSS)
    assert exceptions_of(model, gs.Recipe(compute=gs.Float32())) == {}


def test_layers_that_keep_their_width_do_not_feed_the_loss():
    """GCNII lists its linear layers first; without them the last of its convolutions does."""
    model = Gcnii(16, 8, 2, 5)
    assert products_of(model) == ["lins.0", "lins.1", "convs.0", "convs.1"]
    assert exceptions_of(model, gs.Recipe(compute=gs.Int8())) == {"lins.1": FEEDS_LOSS}
    assert exceptions_of(model.convs, gs.Recipe(compute=gs.Int8())) == {"1": FEEDS_LOSS, "1.aggr_module": FEEDS_LOSS}


def test_modules_that_are_named():
    model = Own()
    found = exceptions_of(model, gs.Recipe(compute=gs.Int8(float32=("encoder", "gin.nn.0"))))
    named = {"encoder", "encoder.lins.0", "encoder.lins.1", "gin.nn.0"}
    assert named <= {name for name, why in found.items() if why == NAMED}
    assert {name for name, why in found.items() if why == FEEDS_LOSS} >= {"sage", "sage.lin_l", "sage.lin_r"}
    assert "gin.nn.2" not in found and "gin" not in found


def test_a_name_is_not_the_beginning_of_another():
    model = nn.Sequential(*(nn.Linear(16, 16) for _ in range(12)))
    assert set(exceptions_of(model, gs.Recipe(compute=gs.Int8(float32=("1",))))) == {
        "1",
        "11",
    }  # 11 feeds the loss, 10 begins with 1


def test_the_last_layer_named_too_feeds_the_loss():
    model = pyg.GCN(16, 8, 2, 5)
    assert exceptions_of(model, gs.Recipe(compute=gs.Int8(float32=("convs.1",))))["convs.1"] == FEEDS_LOSS


def test_all_of_a_lone_convolution_feeds_the_loss():
    conv = pyg.SAGEConv(8, 4)
    assert set(exceptions_of(conv, gs.recipes["tango"])) == {name for name, _ in conv.named_modules()}


def test_an_unknown_name_is_an_error_that_lists_the_known():
    model = pyg.GCN(16, 8, 2, 5)
    with pytest.raises(ValueError, match=r"`float32` must name modules.*there is no 'conv'.*they are .*convs\.0"):
        exceptions_of(model, gs.Recipe(compute=gs.Int8(float32=("conv",))))


@pytest.mark.parametrize("name", ["gcn", "gin", "own"])
def test_the_report_says_which_stay_in_float32(name):
    model = PRODUCTS[name][0]()
    first = PRODUCTS[name][1][0]
    report = gs.lighten_(model, gs.Recipe(compute=gs.Int8(float32=(first,))))
    notes = {row.name: row.note for row in report.converted}
    assert notes[first] == NAMED and notes[PRODUCTS[name][1][-1]] == FEEDS_LOSS
    kinds = {row.name: isinstance(engine_of(model.get_submodule(row.name)), Int8Engine) for row in report.converted}
    assert all(kinds[n] == (notes[n] not in (NAMED, FEEDS_LOSS)) for n in notes)


def test_automatic_precision_measures_a_convolution_as_one():
    model = pyg.GraphSAGE(16, 32, 3, 5)
    gs.lighten_(model, "tango-auto")
    watches = [engine_of(model.get_submodule(f"convs.0{part}")).watch for part in ("", ".lin_l", ".lin_r")]
    assert watches[0] is watches[1] is watches[2] is not None
    assert engine_of(model.convs[1]).watch is not watches[0]
    assert list(gs.precision(model)) == ["convs.0", "convs.1"]  # the last feeds the loss and is not measured


# What no engine knows -------------------------------------------------------------------------------------------


class OwnMessages(pyg.GCNConv):
    def message(self, x_j, edge_weight):
        return 2 * super().message(x_j, edge_weight)


@pytest.mark.parametrize("recipe", ["float32", "exact-int8", "tango"])
@pytest.mark.parametrize("make", [lambda: pyg.ChebConv(16, 64, 2), lambda: OwnMessages(16, 64)])
def test_an_unknown_convolution_computes_as_before(make, recipe):
    """It has no state; what it holds may be lightened, and computes near enough."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.act, self.head = make(), nn.ReLU(), nn.Linear(64, 5)

        def forward(self, x, edge_index):
            return self.head(self.act(self.conv(x, edge_index)))

    model = Net()
    x, edge_index = torch.randn(100, 16), torch.randint(0, 100, (2, 400))
    hidden, want = model.conv(x, edge_index), model(x, edge_index)
    report = gs.lighten_(model, recipe)
    assert next(row for row in report.rows if row.name == "conv").became is None
    assert engine_of(model.conv) is FLOAT32
    rounding = 0.05 if recipe == "tango" else 1e-5
    assert (model.conv(x, edge_index) - hidden).norm() <= rounding * hidden.norm()
    out = model(x, edge_index)
    assert (out - want).norm() <= rounding * want.norm()
    out.sum().backward()
    assert all(p.grad is not None for p in model.parameters())
