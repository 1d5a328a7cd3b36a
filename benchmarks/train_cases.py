"""The models whose epochs are measured, and one measurement in a process of its own."""

from __future__ import annotations

import gc
import time
import warnings
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

import gossamer as gs
from gossamer import measure
from gossamer.comparison.variants import CSR, EDGE_INDEX, Variant, adjacency_of, prepare
from gossamer.recipe import recipes
from gossamer.training import models


class Handwritten(nn.Module):
    """A GCN as its users write it: layers in __init__, F.relu and F.dropout in forward."""

    def __init__(self, in_channels: int, width: int, out_channels: int) -> None:
        from torch_geometric.nn import GCNConv

        super().__init__()
        self.conv1, self.norm1 = GCNConv(in_channels, width), nn.BatchNorm1d(width)
        self.conv2, self.norm2 = GCNConv(width, width), nn.BatchNorm1d(width)
        self.conv3 = GCNConv(width, out_channels)

    def forward(self, x: Tensor, edge_index: Any) -> Tensor:
        x = functional.relu(self.norm1(self.conv1(x, edge_index)))
        x = functional.dropout(x, p=0.5, training=self.training)
        x = functional.relu(self.norm2(self.conv2(x, edge_index)))
        x = functional.dropout(x, p=0.5, training=self.training)
        return self.conv3(x, edge_index)


LARGE = {
    "gcn": "GCN 3x256, batch norm",
    "sage": "GraphSAGE 3x256, batch norm",
    "gin": "GIN 3x256, batch norm",
    "gat": "GAT 3x(4x64), batch norm",
    "gcn-layer-norm": "GCN 3x256, layer norm",
    "gcn-handwritten": "GCN 3x256, written by hand",
}
SMALL = {"gcn": "GCN 2x16", "sage": "GraphSAGE 2x16", "gin": "GIN 2x16", "gat": "GAT 2x(8x8)"}
"""As in the papers that introduced Cora to this field: two narrow layers, no norm."""


def make(case: str, data: Any, small: bool) -> nn.Module:
    torch.manual_seed(0)
    if case == "gcn-handwritten":
        return Handwritten(data.num_features, 256, data.num_classes)
    kind, _, norm = case.partition("-")
    if small:
        width, heads = (64, 8) if kind == "gat" else (16, 1)
        return models.build(kind, data, layers=2, width=width, norm="none", heads=heads)
    return models.build(kind, data, layers=3, width=256, norm="layer" if norm else "batch", heads=4)


def variants(case: str, recipes: list[str], baselines: bool = True) -> list[str]:
    return [*([EDGE_INDEX] if baselines else []), *([CSR] if baselines and case != "gat" else []), *recipes]


def measure_epochs(dataset: str, case: str, variant_name: str, epochs: int, threads: int) -> dict[str, Any]:
    """Best seconds per training epoch, peak memory above the start, and bytes kept for backward."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(threads)
    data = gs.datasets.load(dataset)
    recipe = recipes.get(variant_name)
    variant = Variant(variant_name, variant_name, recipe)
    kind = case.partition("-")[0]
    adjacency = adjacency_of(variant, kind, data)
    edges = data.edge_index if adjacency is None else adjacency
    seconds = []
    with measure.peak() as peak:
        model = make(case, data, small=data.num_nodes < 10000)
        prepare(variant, model, one_graph=True)
        if recipe is not None:
            gs.lighten_(model, recipe)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        for _ in range(epochs + 1):  # the first builds graphs and takes memory
            start = time.perf_counter()
            loss = step(model, optimizer, data, edges)
            seconds.append(time.perf_counter() - start)
    gc.collect()
    model.train()
    kept = measure.kept_bytes(lambda: forward(model, data, edges), exclude=[model, data, edges])
    found = {"seconds": min(seconds[1:]), "first_seconds": seconds[0], "peak_bytes": peak.bytes, "kept_bytes": kept}
    return found | {"loss": loss}


def forward(model: nn.Module, data: Any, edges: Any) -> Tensor:
    out = model(data.x, edges)
    return functional.cross_entropy(out[data.train_mask], data.y[data.train_mask])


def step(model: nn.Module, optimizer: torch.optim.Optimizer, data: Any, edges: Any) -> float:
    model.train()
    optimizer.zero_grad()
    loss = forward(model, data, edges)
    loss.backward()
    optimizer.step()
    return loss.item()
