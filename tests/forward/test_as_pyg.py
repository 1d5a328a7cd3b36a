"""What is too small to gain runs with PyG's own classes, to the same bits; what gains never does."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch_geometric import nn as pyg

import gossamer as gs

pytestmark = pytest.mark.usefixtures("sizes_in_use")
RECIPES = "float32", "exact-int2", "tango", "feather", "rsc"


class ByHand(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = pyg.GCNConv(8, 16), pyg.SAGEConv(16, 4)
        self.norm = nn.BatchNorm1d(16)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        h = F.dropout(F.relu(self.norm(self.conv1(x, edge_index))), 0.5, self.training)
        return self.conv2(h, edge_index)


def ready() -> nn.Module:
    return pyg.GIN(8, 16, 2, 4, norm="batch_norm", dropout=0.5)


def inputs(nodes: int = 30) -> tuple[Tensor, Tensor]:
    rng = torch.Generator().manual_seed(0)
    return torch.randn(nodes, 8, generator=rng), torch.randint(0, nodes, (2, 4 * nodes), generator=rng)


@pytest.fixture(params=[ByHand, ready], ids=["by hand", "ready"])
def model(request) -> nn.Module:
    torch.manual_seed(0)
    return request.param()


def classes(model: nn.Module) -> set[type]:
    return {type(module) for module in model.modules() if not isinstance(module, nn.ModuleList)}


def classes_in_a_call(model: nn.Module, *given: Tensor) -> set[type]:
    """Of all modules, as the first convolution is called."""
    found: list[set[type]] = []
    first = next(module for module in model.modules() if isinstance(module, pyg.MessagePassing))
    hook = first.register_forward_pre_hook(lambda module, args: found.append(classes(model)))
    model(*given)
    hook.remove()
    return found[0]


def train(model: nn.Module, steps: int = 4) -> list[Tensor]:
    torch.manual_seed(1)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(steps):
        optimizer.zero_grad()
        model(*inputs()).square().sum().backward()
        optimizer.step()
    return [tensor.clone() for tensor in model.state_dict().values()]


@pytest.mark.parametrize("recipe", RECIPES)
def test_the_bits_of_pyg(model, recipe):
    plain = copy.deepcopy(model)
    gs.lighten_(model, recipe)
    for ours, own in zip(train(model), train(plain), strict=True):
        assert torch.equal(ours, own)
    assert torch.equal(model.eval()(*inputs()), plain.eval()(*inputs()))


def test_own_classes_while_it_runs_and_ours_after(model):
    own = classes(model)
    gs.lighten_(model)
    ours = classes(model)
    assert own != ours
    assert classes_in_a_call(model, *inputs()) == ours  # nothing is known yet
    assert classes_in_a_call(model, *inputs()) == own
    assert classes(model) == ours


def test_larger_inputs_and_other_modes_are_looked_at_again(model):
    gs.lighten_(model)
    ours = classes(model)
    for _ in range(2):
        model(*inputs())
    assert classes_in_a_call(model, *inputs(31)) == ours
    assert classes_in_a_call(model.eval(), *inputs()) == ours
    with torch.no_grad():
        assert classes_in_a_call(model, *inputs()) == ours


def test_what_gains_stays_ours(model):
    gs.lighten_(model)
    given = inputs(20_000)
    for _ in range(3):
        assert classes_in_a_call(model, *given) == classes(model)


def test_a_graph_of_ours_is_never_given_to_pyg():
    model = ByHand()
    gs.lighten_(model)
    x, edge_index = inputs()
    graph = gs.Graph.from_edge_index(edge_index, len(x))
    expected = model.eval()(x, edge_index)
    for _ in range(3):
        torch.testing.assert_close(model(x, graph), expected)


def test_a_recipe_with_quantisers_is_never_left_out():
    model = ByHand()
    gs.lighten_(model, "degree-quant-int8")
    for _ in range(3):
        assert classes_in_a_call(model, *inputs()) == classes(model)


def test_an_error_leaves_our_classes(model):
    gs.lighten_(model)
    ours = classes(model)
    for _ in range(2):
        model(*inputs())
    x, edge_index = inputs()
    with pytest.raises(RuntimeError):
        model(x[:, :3], edge_index)
    assert classes(model) == ours


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
def test_a_copy_has_modules_of_its_own(copied, model):
    own = classes(model)
    gs.lighten_(model)
    for _ in range(2):
        model(*inputs())
    twin = copied(model)
    ours = classes(model)
    seen: list[set[type]] = []
    first = next(module for module in twin.modules() if isinstance(module, pyg.MessagePassing))
    first.register_forward_pre_hook(lambda module, args: seen.append(classes(model)))
    for _ in range(3):
        assert classes_in_a_call(twin, *inputs()) in (own, ours)
    assert seen == [ours] * 3


def test_restored_while_small(model):
    own = classes(model)
    gs.lighten_(model)
    for _ in range(2):
        model(*inputs())
    gs.restore_(model)
    assert classes(model) == own
    model(*inputs())
