"""Models as users write them, for tests of export and of the integer engine."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch_geometric import nn as pyg

COLUMNS, CLASSES = 12, 5


class Handwritten(nn.Module):
    """Norms, F.relu and F.dropout between convolutions."""

    def __init__(self, conv: Any, last: Any, width: int = 20) -> None:
        super().__init__()
        self.first, self.norm, self.second = conv(COLUMNS, width), nn.BatchNorm1d(width), last(width, CLASSES)

    def forward(self, x: Tensor, edge_index: Any) -> Tensor:
        x = functional.relu(self.norm(self.first(x, edge_index)))
        x = functional.dropout(x, p=0.5, training=self.training)
        return self.second(x, edge_index)


class Residual(nn.Module):
    """A sum, a concatenation, and a log-softmax at the end."""

    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(COLUMNS, 16)
        self.convs = nn.ModuleList([pyg.GCNConv(16, 16), pyg.SAGEConv(16, 16)])
        self.head = nn.Linear(32, CLASSES)

    def forward(self, x: Tensor, edge_index: Any) -> Tensor:
        x = self.lin(x).relu()
        y = torch.relu(self.convs[0](x, edge_index)) + x
        z = functional.leaky_relu(self.convs[1](y, edge_index), 0.1)
        return functional.log_softmax(self.head(torch.cat([y, z], dim=1)), dim=1)


class OfData(nn.Module):
    """Takes a PyG `Data`, and an ELU between attention layers."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = pyg.GATConv(COLUMNS, 4, 4), pyg.GATConv(16, CLASSES, 2, concat=False)

    def forward(self, data: Any) -> Tensor:
        x, edge_index = data.x, data.edge_index
        return self.second(functional.elu(self.first(x, edge_index)), edge_index)


class GraphLevel(nn.Module):
    """GIN layers, a pool, and a head of two linear layers."""

    def __init__(self, pool: Any = pyg.global_mean_pool) -> None:
        super().__init__()
        self.convs = nn.ModuleList([self._conv(COLUMNS), self._conv(16)])
        self.pool = pool
        self.head = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Dropout(0.5), nn.Linear(16, CLASSES))

    @staticmethod
    def _conv(columns: int) -> nn.Module:
        layers = nn.Sequential(nn.Linear(columns, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.BatchNorm1d(16))
        return pyg.GINConv(layers, train_eps=True)

    def forward(self, x: Tensor, edge_index: Any, batch: Tensor) -> Tensor:
        for conv in self.convs:
            x = conv(x, edge_index)
        return self.head(self.pool(x, batch))


class Typed(nn.Module):
    """An embedding of node types in place of features."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.conv = nn.Embedding(9, 16), pyg.GCNConv(16, CLASSES)

    def forward(self, x: Tensor, edge_index: Any) -> Tensor:
        return self.conv(self.embedding(x.squeeze(-1)), edge_index)


def _gin(columns: int, outs: int) -> nn.Module:
    return pyg.GINConv(nn.Sequential(nn.Linear(columns, outs), nn.ReLU(), nn.Linear(outs, outs)), train_eps=True)


def _gat(columns: int, outs: int) -> nn.Module:
    return pyg.GATConv(columns, outs, 2, concat=False)


MODELS: dict[str, Any] = {
    "GCN": lambda: pyg.GCN(COLUMNS, 20, 3, CLASSES),
    "GCN, batch norm": lambda: pyg.GCN(COLUMNS, 20, 3, CLASSES, norm="batch_norm", dropout=0.5),
    "GCN, layer norm": lambda: pyg.GCN(COLUMNS, 20, 2, CLASSES, norm="layer_norm", norm_kwargs={"mode": "node"}),
    "GCN, wide first": lambda: pyg.GCN(COLUMNS, 8, 3, CLASSES),
    "GCN, jumping": lambda: pyg.GCN(COLUMNS, 16, 3, CLASSES, jk="cat"),
    "GCN, largest": lambda: pyg.GCN(COLUMNS, 16, 3, CLASSES, jk="max"),
    "GCN, act first": lambda: pyg.GCN(COLUMNS, 16, 3, CLASSES, norm="batch_norm", act_first=True),
    "GCN, elu": lambda: pyg.GCN(COLUMNS, 16, 2, CLASSES, act="elu"),
    "GCN, leaky": lambda: pyg.GCN(COLUMNS, 16, 2, CLASSES, act="leaky_relu"),
    "GCN, without loops": lambda: pyg.GCN(COLUMNS, 16, 2, CLASSES, add_self_loops=False),
    "GraphSAGE": lambda: pyg.GraphSAGE(COLUMNS, 20, 3, CLASSES, norm="batch_norm"),
    "GraphSAGE, max": lambda: pyg.GraphSAGE(COLUMNS, 20, 2, CLASSES, aggr="max"),
    "GraphSAGE, sum": lambda: pyg.GraphSAGE(COLUMNS, 20, 2, CLASSES, aggr="sum"),
    "GIN": lambda: pyg.GIN(COLUMNS, 20, 3, CLASSES, norm="batch_norm"),
    "GAT": lambda: pyg.GAT(COLUMNS, 20, 3, CLASSES, heads=4, norm="batch_norm"),
    "GAT, odd": lambda: pyg.GAT(COLUMNS, 21, 2, 7, heads=3),
    "GCN by hand": lambda: Handwritten(pyg.GCNConv, pyg.GCNConv),
    "SAGE by hand": lambda: Handwritten(pyg.SAGEConv, pyg.SAGEConv),
    "GraphConv by hand": lambda: Handwritten(pyg.GraphConv, pyg.GraphConv),
    "GIN by hand": lambda: Handwritten(_gin, _gin),
    "GAT by hand": lambda: Handwritten(_gat, _gat),
    "residual": Residual,
    "sequence": lambda: nn.Sequential(nn.Linear(COLUMNS, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, CLASSES)),
}
"""Models of one graph, called with (x, edge_index); the last with x alone."""
GRAPH_LEVEL: dict[str, Any] = {
    "mean": lambda: GraphLevel(pyg.global_mean_pool),
    "sum": lambda: GraphLevel(pyg.global_add_pool),
    "max": lambda: GraphLevel(pyg.global_max_pool),
    "module": lambda: GraphLevel(pyg.aggr.MeanAggregation()),
}
