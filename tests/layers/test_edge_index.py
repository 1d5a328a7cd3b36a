"""What PyG's layers take beside a plain `edge_index`: an EdgeIndex that names its size, another flow, weights."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch_geometric import EdgeIndex
from torch_geometric import nn as pyg

import gossamer as gs

EDGES = torch.tensor([[0, 1, 2, 3, 1], [0, 0, 1, 1, 1]])
LAYERS = {
    "gcn": lambda: pyg.GCNConv(8, 6),
    "gcn, not normalised": lambda: pyg.GCNConv(8, 6, normalize=False),
    "sage": lambda: pyg.SAGEConv(8, 6),
    "sage, projected": lambda: pyg.SAGEConv(8, 6, project=True),
    "graph": lambda: pyg.GraphConv(8, 6),
    "gin": lambda: pyg.GINConv(nn.Linear(8, 6)),
    "gat": lambda: pyg.GATConv(8, 6),
    "gat without loops": lambda: pyg.GATConv(8, 6, add_self_loops=False),
    "gatv2": lambda: pyg.GATv2Conv(8, 6),
}
NAMED = [(4, 4), (4, 2), (5, 5), (4, 5), (None, 2), (2, 2), (None, None)]


def pair(module: nn.Module) -> tuple[nn.Module, nn.Module]:
    light = copy.deepcopy(module)
    gs.lighten_(light)
    return module, light


def outcome(module: nn.Module, x: Any, edge_index: Any) -> Tensor | None:
    """None: an error, which PyG and we word differently."""
    try:
        return module(x, edge_index)
    except (ValueError, IndexError, RuntimeError, TypeError, AttributeError, AssertionError):
        return None


@pytest.mark.parametrize("size", NAMED)
@pytest.mark.parametrize("layer", LAYERS)
def test_an_edge_index_that_names_its_size(layer: str, size: Any) -> None:
    """As in PyG: the number of destinations where there are no rows of theirs, else an error if it differs."""
    plain, light = pair(LAYERS[layer]())
    x = torch.randn(4, 8)
    for given in (x, (x, None), (x, x), (x, x[:2])):
        want = outcome(plain, given, EdgeIndex(EDGES, sparse_size=size))
        found = outcome(light, given, EdgeIndex(EDGES, sparse_size=size))
        assert (found is None) == (want is None), given
        if want is not None:
            torch.testing.assert_close(found, want)


def test_the_error_names_the_size() -> None:
    _, light = pair(pyg.SAGEConv(8, 6))
    x = torch.randn(4, 8)
    with pytest.raises(ValueError, match=r"`sparse_size` must be the numbers of rows of `x`, \(4, 4\) \(got \(4, 3\)"):
        light(x, EdgeIndex(EDGES, sparse_size=(4, 3)))


def test_a_projecting_layer_without_rows_of_destinations() -> None:
    plain, light = pair(pyg.SAGEConv((8, 8), 6, project=True))
    x = torch.randn(4, 8)
    found = light((x, None), EDGES, size=(4, 2))
    assert found.shape == (2, 6)
    torch.testing.assert_close(found, plain((x, None), EDGES, size=(4, 2)))


@pytest.mark.parametrize("layer", LAYERS)
def test_a_flow_set_after_the_conversion(layer: str) -> None:
    plain, light = pair(LAYERS[layer]())
    plain.flow = light.flow = "target_to_source"
    x = torch.randn(4, 8)
    torch.testing.assert_close(light(x, EDGES), plain(x, EDGES))
    with pytest.raises(ValueError, match=r"`flow` must be 'source_to_target' with a Graph.*edge_index.flip"):
        light(x, gs.Graph.from_edge_index(EDGES, 4))


@pytest.mark.parametrize("layer", ["sage", "sage, max", "graph", "gin", "gat"])
def test_a_weighted_graph_is_pygs_weighted_matrix(layer: str) -> None:
    """PyG's layers use the entries of a torch.sparse matrix; those without an argument for weights no others."""
    module = pyg.SAGEConv(8, 6, aggr="max") if layer == "sage, max" else LAYERS[layer]()
    plain, light = pair(module)
    x, weight = torch.randn(4, 8), torch.tensor([0.5, 2.0, 1.5, 0.25, 3.0])
    matrix = torch.sparse_coo_tensor(EDGES.flip(0), weight, (4, 4)).to_sparse_csr()
    graph = gs.Graph.from_edge_index(EDGES, 4, weight)
    want = plain(x, matrix)
    torch.testing.assert_close(light(x, graph), want)
    torch.testing.assert_close(light(x, matrix), want)
