"""Where lightened layers meet what PyG also takes: autocast, learned matrices, missing rows, second derivatives."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch_geometric.nn import GATConv, GATv2Conv, GCNConv, GraphConv, SAGEConv

import gossamer as gs
from support.paths import forced

NODES, EDGES = 20, 60


@pytest.fixture
def edges() -> Tensor:
    return torch.randint(0, NODES, (2, EDGES), generator=torch.Generator().manual_seed(0))


@pytest.fixture
def x() -> Tensor:
    return torch.randn(NODES, 8, generator=torch.Generator().manual_seed(1))


def pair(module: nn.Module) -> tuple[nn.Module, nn.Module]:
    """A module, and a lightened copy of it."""
    light = copy.deepcopy(module)
    gs.lighten_(light)
    return module, light


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    "make", [lambda: SAGEConv(8, 4, aggr="max", project=True), lambda: GCNConv(8, 4), lambda: GraphConv(8, 4)]
)
def test_autocast(make: Any, dtype: torch.dtype, x: Tensor, edges: Tensor) -> None:
    plain, light = pair(make())
    with torch.autocast("cpu", dtype):
        torch.testing.assert_close(light(x, edges).float(), plain(x, edges).float(), rtol=0.03, atol=0.03)


@pytest.mark.parametrize("kind", [GCNConv, GraphConv])
def test_weights_learned_under_autocast(kind: Any, x: Tensor, edges: Tensor) -> None:
    plain, light = pair(kind(8, 4))
    found = []
    for model in (plain, light):
        weight = torch.rand(EDGES, 1, generator=torch.Generator().manual_seed(2)).requires_grad_()
        with torch.autocast("cpu", torch.bfloat16):
            scaled = functional.linear(weight, torch.full((1, 1), 0.5)).view(-1)  # bfloat16, as from a network
            model(x, edges, scaled).float().sum().backward()
        found.append(weight.grad)
    torch.testing.assert_close(found[1], found[0], rtol=0.05, atol=0.05)


def test_a_matrix_with_learned_entries_is_left_to_pyg(x: Tensor, edges: Tensor) -> None:
    plain, light = pair(GraphConv(8, 4))
    grads = []
    for model in (plain, light):
        value = torch.ones(EDGES, requires_grad=True)
        matrix = torch.sparse_coo_tensor(edges, value, (NODES, NODES)).to_sparse_csr()
        model(x, matrix).sum().backward()
        grads.append(value.grad)
    torch.testing.assert_close(grads[1], grads[0])


def test_whole_numbers_as_weights(x: Tensor, edges: Tensor) -> None:
    plain, light = pair(GCNConv(8, 4))
    weight = torch.arange(EDGES) % 3 + 1
    torch.testing.assert_close(light(x, edges, weight), plain(x, edges, weight.float()))


def test_no_destination_rows_but_a_matrix_that_knows_them(x: Tensor) -> None:
    plain, light = pair(SAGEConv((8, 8), 4, root_weight=False))
    rectangle = torch.rand(6, NODES).round().to_sparse_csr()
    want = plain((x, None), rectangle)
    torch.testing.assert_close(light((x, None), rectangle), want)
    torch.testing.assert_close(light((x, None), gs.Graph.from_torch_sparse(rectangle)), want)


@pytest.mark.parametrize("kind", [GATConv, GATv2Conv])
def test_attention_takes_a_graph_in_any_precision(kind: Any, x: Tensor, edges: Tensor) -> None:
    plain, light = pair(kind(8, 4, heads=2))
    graph = gs.Graph.from_edge_index(edges, NODES)
    with torch.autocast("cpu", torch.bfloat16):
        torch.testing.assert_close(light(x, graph).float(), plain(x, edges).float(), rtol=0.03, atol=0.03)
    torch.testing.assert_close(light.double()(x.double(), graph), plain.double()(x.double(), edges))


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(8, 8), nn.ReLU())

    def forward(self, x: Tensor) -> Tensor:
        return functional.relu(self.inner(x))


def test_a_part_may_be_compiled(x: Tensor) -> None:
    model = Net()
    want = model(x)
    gs.lighten_(model)
    model.inner = torch.compile(model.inner, backend="eager", fullgraph=True)
    torch.testing.assert_close(model(x), want)


@pytest.mark.parametrize("least", [1, 2**30])
@pytest.mark.parametrize(
    "make",
    [
        lambda: nn.Sequential(nn.Linear(8, 6), nn.LayerNorm(6), nn.GELU(), nn.Linear(6, 3)),
        lambda: nn.Sequential(nn.Linear(8, 6), nn.BatchNorm1d(6), nn.ELU(), nn.Linear(6, 3)),
    ],
)
def test_second_derivatives(make: Any, least: int, x: Tensor) -> None:
    grads = []
    for model in pair(make()):
        leaf = x.clone().requires_grad_()
        with forced(least):
            (slope,) = torch.autograd.grad((model(leaf) ** 2).sum(), leaf, create_graph=True)
            (slope**2).sum().backward()
        grads.append([leaf.grad, *(p.grad for p in model.parameters())])
    for ours, theirs in zip(grads[1], grads[0], strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(
    "conv", [GATConv(8, 4, heads=2), GATv2Conv(8, 4, heads=2), SAGEConv(8, 4, aggr="max"), GCNConv(8, 4)]
)
def test_second_derivatives_of_convolutions(conv: nn.Module, x: Tensor, edges: Tensor) -> None:
    grads = []
    for model in pair(conv):
        leaf = x.clone().requires_grad_()
        (slope,) = torch.autograd.grad((model(leaf, edges) ** 2).sum(), leaf, create_graph=True)
        (slope**2).sum().backward()
        grads.append([leaf.grad, *(p.grad for p in model.parameters())])
    for ours, theirs in zip(grads[1], grads[0], strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-3)


def test_restore_names_what_was_put_over_a_lightened_module() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU())
    gs.lighten_(model)
    nn.utils.parametrizations.spectral_norm(model[0])
    with pytest.raises(RuntimeError, match=r"0 has become ParametrizedLinear.*remove what was put over it"):
        gs.restore_(model)
