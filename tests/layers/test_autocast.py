"""Under autocast a lightened layer or model has PyG's dtypes, under every recipe, and its numbers to bfloat16."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch_geometric import EdgeIndex
from torch_geometric import nn as pyg
from torch_geometric.utils import to_torch_csr_tensor

import gossamer as gs
from support.paths import forced

NODES, COLUMNS = 40, 16


def _edges() -> Tensor:
    ends = torch.randint(0, NODES, (2, 200), generator=torch.Generator().manual_seed(0))
    return torch.unique(ends[:, ends[0] != ends[1]], dim=1).contiguous()


class InitialGCN2(nn.Module):
    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.conv = pyg.GCN2Conv(COLUMNS, 0.1, 0.5, 2, **options)

    def forward(self, x: Tensor, edge_index: Any) -> Tensor:
        return self.conv(x, x, edge_index)


LAYERS = {
    "gcn": lambda: pyg.GCNConv(COLUMNS, 8),
    "gcn, wider": lambda: pyg.GCNConv(COLUMNS, 32),
    "gcn without bias": lambda: pyg.GCNConv(COLUMNS, 8, bias=False),
    "gcn, not normalised": lambda: pyg.GCNConv(COLUMNS, 8, normalize=False),
    "gcn2": InitialGCN2,
    "gcn2, two weights": lambda: InitialGCN2(shared_weights=False),
    "sage": lambda: pyg.SAGEConv(COLUMNS, 8),
    "sage, max": lambda: pyg.SAGEConv(COLUMNS, 8, aggr="max"),
    "sage, projected": lambda: pyg.SAGEConv(COLUMNS, 8, project=True),
    "graph": lambda: pyg.GraphConv(COLUMNS, 8),
    "gin": lambda: pyg.GINConv(nn.Sequential(nn.Linear(COLUMNS, 16), nn.ReLU(), nn.Linear(16, 8))),
    "gin, one product": lambda: pyg.GINConv(nn.Sequential(nn.Linear(COLUMNS, 8))),
    "gat": lambda: pyg.GATConv(COLUMNS, 8, heads=2),
    "gatv2": lambda: pyg.GATv2Conv(COLUMNS, 8, heads=2),
    "GCN": lambda: pyg.GCN(COLUMNS, 16, 2, 8, norm="batch_norm"),
    "GraphSAGE": lambda: pyg.GraphSAGE(COLUMNS, 16, 2, 8),
    "GIN": lambda: pyg.GIN(COLUMNS, 16, 2, 8, jk="cat"),
    "GAT": lambda: pyg.GAT(COLUMNS, 16, 2, 8, heads=2),
}
ADJACENCIES = {
    "edge_index": lambda: _edges(),
    "EdgeIndex": lambda: EdgeIndex(_edges(), sparse_size=(NODES, NODES)).sort_by("col")[0],
    "sparse": lambda: to_torch_csr_tensor(_edges().flip(0), size=(NODES, NODES)),
    "Graph": lambda: gs.Graph.from_edge_index(_edges(), NODES),
}
RECIPES = ["float32", "exact-int2", "tango", "feather", "degree-quant-int8"]


def results(model: nn.Module, x: Tensor, edges: Any) -> dict[str, Tensor]:
    x = x.clone().requires_grad_()
    with torch.autocast("cpu", torch.bfloat16):
        out = model(x, edges)
    noise = torch.randn(out.shape, generator=torch.Generator().manual_seed(3))
    (out.float() * noise).sum().backward()
    return {"out": out.detach(), "dx": x.grad} | {name: p.grad for name, p in model.named_parameters()}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("layer", LAYERS)
def test_dtypes_are_those_of_pyg(layer: str, recipe: str, dtype: torch.dtype) -> None:
    """For a sparse adjacency those of an edge_index, too: PyG multiplies no sparse matrix in bfloat16."""
    torch.manual_seed(0)
    model = LAYERS[layer]()
    x = torch.randn(NODES, COLUMNS).to(dtype)
    want = results(copy.deepcopy(model), x, _edges())
    for kind, made in ADJACENCIES.items() if recipe == "float32" else [("Graph", ADJACENCIES["Graph"])]:
        if kind == "sparse" and ("gat" in layer.lower() or "max" in layer):
            continue  # PyG's own forward
        light = copy.deepcopy(model)
        gs.lighten_(light, recipe)
        with forced(least=1):
            found = results(light, x, made())
        assert {name: t.dtype for name, t in found.items()} == {name: t.dtype for name, t in want.items()}, kind
        if recipe == "float32":
            torch.testing.assert_close(found["out"].float(), want["out"].float(), rtol=0.05, atol=0.05, msg=kind)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_maxima_over_a_graph(dtype: torch.dtype) -> None:
    """Kernels of maxima take float32: rows that autocast made are widened for them."""
    torch.manual_seed(0)
    model = pyg.SAGEConv(COLUMNS, 8, aggr="max", project=True)
    light, x, edges = copy.deepcopy(model), torch.randn(NODES, COLUMNS), _edges()
    gs.lighten_(light)
    graph = gs.Graph.from_edge_index(edges, NODES)
    with torch.autocast("cpu", dtype):
        found, want = light(x.to(dtype), graph), model(x.to(dtype), edges)
    assert found.dtype == want.dtype
    torch.testing.assert_close(found.float(), want.float(), rtol=0.03, atol=0.03)
