"""Operations in place behind a lightened layer, as users write them after `x = conv(x, edge_index)`."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch_geometric import nn as pyg

import gossamer as gs
from support.paths import forced

NODES, COLUMNS = 200, 16


def _plus(x: Tensor) -> Tensor:
    x += 0.5
    return x


def _first_rows_doubled(x: Tensor) -> Tensor:
    x[: NODES // 2] *= 2
    return x


OPERATIONS = {
    "relu_": lambda x: x.relu_(),
    "+=": _plus,
    "ReLU(inplace)": nn.ReLU(inplace=True),
    "of a slice": _first_rows_doubled,
}


class Behind(nn.Module):
    """A product before the layer makes the gradient of its input matter."""

    def __init__(self, layer: nn.Module, operation: Any) -> None:
        super().__init__()
        self.before, self.layer, self.after = nn.Linear(COLUMNS, COLUMNS), layer, nn.Linear(COLUMNS, 3)
        self.operation = operation

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = self.before(x)
        takes_edges = isinstance(self.layer, (pyg.MessagePassing, pyg.GCN, pyg.GAT))
        return self.after(self.operation(self.layer(x, edge_index) if takes_edges else self.layer(x)))


LAYERS = {
    "gcn": lambda: pyg.GCNConv(COLUMNS, COLUMNS),
    "sage": lambda: pyg.SAGEConv(COLUMNS, COLUMNS),
    "gin": lambda: pyg.GINConv(nn.Sequential(nn.Linear(COLUMNS, COLUMNS), nn.ReLU(), nn.Linear(COLUMNS, COLUMNS))),
    "gat": lambda: pyg.GATConv(COLUMNS, 4, heads=4),
    "gat, averaged": lambda: pyg.GATConv(COLUMNS, COLUMNS, heads=4, concat=False),
    "gatv2": lambda: pyg.GATv2Conv(COLUMNS, 4, heads=4),
    "linear": lambda: nn.Linear(COLUMNS, COLUMNS),
    "batch norm": lambda: nn.BatchNorm1d(COLUMNS),
    "layer norm": lambda: nn.LayerNorm(COLUMNS),
    "gelu": nn.GELU,
    "mlp": lambda: pyg.MLP([COLUMNS, COLUMNS, COLUMNS]),
    "GCN": lambda: pyg.GCN(COLUMNS, COLUMNS, 2, COLUMNS, norm="batch_norm"),
    "GAT": lambda: pyg.GAT(COLUMNS, COLUMNS, 2, COLUMNS, heads=4),
}


def results(model: nn.Module, edges: Tensor) -> dict[str, Tensor]:
    out = model(torch.randn(NODES, COLUMNS, generator=torch.Generator().manual_seed(1)), edges)
    (out * torch.randn(out.shape, generator=torch.Generator().manual_seed(2))).sum().backward()
    return {"out": out.detach(), "before": model.before.weight.grad, "after": model.after.weight.grad}


@pytest.mark.parametrize("recipe", ["float32", "exact-int8", "exact-int2", "tango", "feather"])
@pytest.mark.parametrize("layer", LAYERS)
def test_results_and_gradients(layer: str, recipe: str) -> None:
    torch.manual_seed(0)
    edges = torch.randint(0, NODES, (2, 1500))
    for name, operation in OPERATIONS.items():
        model = Behind(LAYERS[layer](), operation)
        light = copy.deepcopy(model)
        gs.lighten_(light, recipe)
        want = results(model, edges)
        with forced(least=1):
            found = results(light, edges)
        least = {"float32": 0.99999, "exact-int8": 0.995}.get(recipe, 0.6)
        for what, exact in want.items():
            alike = float(torch.cosine_similarity(found[what].flatten(), exact.flatten(), 0))
            assert alike > least, (name, what, alike)
