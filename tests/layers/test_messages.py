"""Input that no layer takes: an error that names the argument, what was expected, what came, and the remedy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch_geometric import nn as pyg

import gossamer as gs
from support.paths import nothing_too_small

NODES = 60
EDGES = torch.randint(0, NODES, (2, 400), generator=torch.Generator().manual_seed(0))
GRAPH = gs.Graph.from_edge_index(EDGES, NODES)
MODELS: dict[str, Any] = {
    "GCNConv": lambda: pyg.GCN(16, 32, 2, 8),
    "SAGEConv": lambda: pyg.GraphSAGE(16, 32, 2, 8),
    "GINConv": lambda: pyg.GIN(16, 32, 2, 8),
    "GATConv": lambda: pyg.GAT(16, 32, 2, 8, heads=2),
    "GATv2Conv": lambda: pyg.GAT(16, 32, 2, 8, heads=2, v2=True),
    "GraphConv": lambda: pyg.GraphConv(16, 32),
}
INPUTS: dict[str, tuple[Any, type[Exception], str]] = {
    "dtype": (
        torch.ones(NODES, 16, dtype=torch.float64), TypeError,
        r"`x` must be torch.float32 as the weights of \w+ are \(got torch.float64\); convert it with `x.to\(torch.fl",
    ),
    "whole numbers": (torch.ones(NODES, 16, dtype=torch.int64), TypeError, r"`x` must be .*\(got torch.int64\); conv"),
    "columns": (
        torch.ones(NODES, 17), ValueError,
        r"`x` must have 16 columns, for which \w+ was built \(got the shape \(60, 17\)\); pass .*in_channels=17",
    ),
    "no matrix": (torch.ones(NODES), ValueError, r"`x` must be a matrix, .*\(got the shape \(60,\)\); try x.view"),
    "array": (np.ones((NODES, 16)), TypeError, r"`x` must be a tensor \(got ndarray\); convert .* torch.from_numpy"),
    "nothing": (None, TypeError, r"`x` must be a tensor \(got NoneType\)"),
    "list": ([[0.0] * 16] * NODES, TypeError, r"`x` must be a tensor.*\(got a? ?list.*; convert"),
}  # fmt: skip


@pytest.mark.parametrize("recipe", ["float32", "tango", "exact-int2"])
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("kind", INPUTS)
def test_x_that_no_convolution_takes(recipe, model, kind):
    x, error, message = INPUTS[kind]
    made = MODELS[model]()
    gs.lighten_(made, recipe)
    with nothing_too_small():
        for edges in (EDGES, GRAPH):
            if model == "GINConv" and error is TypeError and isinstance(x, torch.Tensor):
                continue  # (1 + eps) x converts it, in PyG, too
            with pytest.raises(error, match=message) as told:
                made(x, edges)
            assert error is not ValueError or kind == "no matrix" or model in str(told.value)


@pytest.mark.parametrize("edges", [EDGES.numpy(), None, EDGES.tolist()])
def test_edges_that_are_no_tensor(edges):
    model = pyg.GCN(16, 32, 2, 8)
    gs.lighten_(model, "float32")
    with pytest.raises(TypeError, match=r"`edge_index` must be a tensor \(got (ndarray|NoneType|list)\); convert"):
        model(torch.ones(NODES, 16), edges)


def test_what_pyg_takes_is_taken():
    """Columns that are known from the first input on, pairs of them, and networks that begin with no product."""
    x, wide = torch.rand(NODES, 16), torch.rand(NODES, 5)
    network = nn.Sequential(nn.Identity(), nn.Linear(16, 3))
    cases = [(pyg.SAGEConv(-1, 4), x), (pyg.SAGEConv((16, 5), 4), (x, wide)), (pyg.GINConv(network), x)]
    with nothing_too_small():
        for conv, given in cases:
            want = conv(given, EDGES)
            gs.lighten_(conv, "float32")
            torch.testing.assert_close(conv(given, EDGES), want)


@pytest.mark.parametrize("change", [gs.restore_, lambda model: gs.lighten_(model, "float32")])
def test_no_model(change):
    with pytest.raises(TypeError, match=r"`model` must be a torch.nn.Module \(got NoneType\); pass the model itself"):
        change(None)
