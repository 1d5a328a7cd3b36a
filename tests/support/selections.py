"""What the tests of backward policies share: adjacencies of every kind, a policy of its own, small models."""

from __future__ import annotations

import copy
import itertools
from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric import nn as pyg

import gossamer as gs
from gossamer.aggregate import Adjacency
from gossamer.aggregate.build import gcn
from gossamer.aggregate.selection import ModuleRows
from gossamer.state import ModelState, state_of

from . import graphs
from .tensors import rand, seeded

KINDS = ("sum", "mean", "weighted", "values", "gcn")


def adjacency(name: str, kind: str) -> Adjacency:
    """Of a nasty graph; "values" are beside the graph, as those that require grad, and no edge of it is a loop."""
    graph = graphs.graph(name)
    if kind == "values":
        src, dst = graph.edge_index
        graph = gs.Graph.from_edge_index(graph.edge_index[:, src != dst], (graph.num_src, graph.num_dst))
    weights = rand(graph.num_edges, seed=1)
    if kind == "gcn":
        return gcn(graph.edge_index, graph.num_src, None, False, True)
    if kind == "weighted":
        return Adjacency.of(graph.with_value(weights))
    return Adjacency.of(graph, weights if kind == "values" else None, "mean" if kind == "mean" else "sum")


def simple(name: str, kind: str) -> Adjacency:
    """The same without parallel edges, where the norm of a row of weights is that of the matrix's row."""
    graph = graphs.graph(name)
    edges = graph.edge_index.unique(dim=1)
    graph = gs.Graph.from_edge_index(edges, (graph.num_src, graph.num_dst), rand(edges.size(1), seed=1))
    return gcn(edges, graph.num_src, None, False, True) if kind == "gcn" else Adjacency.of(graph)


def bound(setting: gs.TopRows, name: str = "conv", model: ModelState | None = None) -> ModuleRows:
    """The policy of one module."""
    policy = setting.bound_to(name, model or ModelState(gs.Recipe(backward=setting)))
    assert isinstance(policy, ModuleRows)
    return policy


def back(matrix: Adjacency, dout: Tensor) -> Tensor:
    """The gradient of x in a backward pass of its own."""
    x = torch.zeros(matrix.graph.num_src, dout.size(1)).requires_grad_()
    matrix.product(x).backward(dout)
    assert x.grad is not None
    return x.grad


class Net(nn.Module):
    """Three convolutions of several widths."""

    def __init__(self, kind: str, widths: tuple[int, ...] = (8, 12, 20, 4)) -> None:
        super().__init__()
        self.convs = nn.ModuleList(CONVS[kind](*pair) for pair in itertools.pairwise(widths))

    def forward(self, x: Tensor, edge_index: Any, *weight: Tensor) -> Tensor:
        for k, conv in enumerate(self.convs):
            x = conv(x.relu() if k else x, edge_index, *weight)
        return x


CONVS = {
    "GCN": pyg.GCNConv,
    "SAGE, mean": pyg.SAGEConv,
    "SAGE, sum": lambda i, o: pyg.SAGEConv(i, o, aggr="sum"),
    "GraphConv": pyg.GraphConv,
    "GIN": lambda i, o: pyg.GINConv(nn.Linear(i, o), eps=0.25),
}


def pair_of(kind: str, backward: Any, **recipe: Any) -> tuple[nn.Module, nn.Module]:
    """The same model lightened with a policy, and with Exact()."""
    seeded()
    model = Net(kind)
    models = model, copy.deepcopy(model)
    for each, policy in zip(models, (backward, gs.Exact()), strict=True):
        gs.lighten_(each, gs.Recipe(backward=policy, **recipe))
    return models


def gradients(model: nn.Module, edge_index: Any, *weight: Tensor, seed: int = 0, share: float = 1.0) -> list[Tensor]:
    """Of the input and of all parameters, by a loss on a share of the nodes that depends on the seed."""
    count = 400
    x = rand(count, 8).requires_grad_()
    some = torch.rand(count, 1, generator=torch.Generator().manual_seed(seed)) < share
    leaves = [x, *model.parameters(), *(w for w in weight if w.requires_grad)]
    out = model(x, edge_index, *weight)
    return list(torch.autograd.grad((out * rand(*out.shape, seed=seed + 1) * some).sum(), leaves))


def policy_of(module: nn.Module) -> ModuleRows:
    state = state_of(module)
    assert state is not None
    return state.policy
