"""Lightened models in `torch.export`, `torch.onnx` and `torch.jit`: the right numbers for every graph, or an error."""

from __future__ import annotations

import copy
import importlib.util
import io

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch_geometric import nn as pyg

import gossamer as gs
from support.paths import sizes_of_users

MODELS = {
    "gcn": lambda: pyg.GCN(12, 16, 2, 5, norm="batch_norm", jk="cat", dropout=0.5),
    "sage": lambda: pyg.GraphSAGE(12, 16, 2, 5, norm="layer_norm"),
    "sage max": lambda: pyg.GraphSAGE(12, 16, 2, 5, aggr="max", jk="max"),
    "gin": lambda: pyg.GIN(12, 16, 2, 5, norm="batch_norm"),
    "gat": lambda: pyg.GAT(12, 16, 2, 5, heads=2),
    "gatv2": lambda: pyg.GAT(12, 16, 2, 5, heads=2, v2=True),
}
OPEN = {0: torch.export.Dim.DYNAMIC}, {1: torch.export.Dim.DYNAMIC}

# What torch's exporters say of themselves is no concern of these tests.
pytestmark = pytest.mark.filterwarnings("ignore")


class Own(nn.Module):
    """A model as users write them."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third = pyg.GCNConv(12, 16), pyg.SAGEConv(16, 16), pyg.GATConv(16, 5)

    def forward(self, x, edge_index):
        x = F.relu(self.first(x, edge_index))
        return self.third(F.dropout(self.second(x, edge_index), 0.5, self.training), edge_index)


@pytest.fixture
def small():
    """Another graph than `graph`: fewer nodes, other edges, loops among them."""
    rng = torch.Generator().manual_seed(3)
    edge_index = torch.randint(0, 33, (2, 90), generator=rng)
    edge_index[:, :7] = edge_index[0, :7]
    return torch.randn(33, 12, generator=rng), edge_index


def lightened(made, recipe="float32"):
    plain = made().eval()
    model = copy.deepcopy(plain)
    gs.lighten_(model, recipe)
    return plain, model


def ops_of(program):
    return {node.target.name() for node in program.graph.nodes if "gossamer" in str(node.target)}


@pytest.mark.parametrize("made", [*MODELS.values(), Own], ids=[*MODELS, "own"])
def test_an_exported_program_computes_on_any_graph(made, graph, small):
    plain, model = lightened(made)
    x, edge_index = graph[0].detach(), graph[1]
    program = torch.export.export(model, (x, edge_index), dynamic_shapes=OPEN)
    assert "gossamer::coo_to_csr" in ops_of(program)
    run = program.module()
    for args in ((x, edge_index), (x, edge_index.flip(0)), small):
        torch.testing.assert_close(run(*args), plain(*args), rtol=1e-4, atol=1e-5)


def test_an_exported_program_of_fixed_sizes(graph):
    plain, model = lightened(MODELS["gcn"])
    x, edge_index = graph[0].detach(), graph[1]
    for strict in (False, True):
        run = torch.export.export(model, (x, edge_index), strict=strict).module()
        other = edge_index.flip(0).contiguous()
        torch.testing.assert_close(run(x, other), plain(x, other), rtol=1e-4, atol=1e-5)


def test_sizes_left_open_below_and_above_those_that_pay(graph, small):
    plain, model = lightened(MODELS["gcn"])
    with sizes_of_users():
        run = torch.export.export(model, (graph[0].detach(), graph[1]), dynamic_shapes=OPEN).module()
        torch.testing.assert_close(run(*small), plain(*small), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("recipe", ["exact-int2", "tango", "feather", "rsc", "degree-quant-int8"])
def test_an_exported_program_is_float32_whatever_the_recipe(recipe, graph, small):
    plain, model = lightened(MODELS["gcn"], recipe)
    run = torch.export.export(model, (graph[0].detach(), graph[1]), dynamic_shapes=OPEN).module()
    torch.testing.assert_close(run(*small), plain(*small), rtol=1e-4, atol=1e-5)


def test_an_exported_program_is_saved_and_loaded(graph, small):
    plain, model = lightened(MODELS["gat"])
    file = io.BytesIO()
    torch.export.save(torch.export.export(model, (graph[0].detach(), graph[1]), dynamic_shapes=OPEN), file)
    file.seek(0)
    run = torch.export.load(file).module()
    torch.testing.assert_close(run(*small), plain(*small), rtol=1e-4, atol=1e-5)


def test_an_exported_program_checks_its_graph(graph):
    _, model = lightened(MODELS["sage"])
    x, edge_index = graph[0].detach(), graph[1]
    run = torch.export.export(model, (x, edge_index), dynamic_shapes=OPEN).module()
    with pytest.raises(IndexError, match="`src` must hold ids from 0 to 9, one of 10 source nodes"):
        run(x[:10], edge_index)


def test_weights_of_edges(graph):
    plain, model = lightened(lambda: pyg.GCN(12, 16, 2, 5))
    x, edge_index = graph[0].detach(), graph[1]
    weight = torch.rand(edge_index.size(1))
    run = torch.export.export(model, (x, edge_index, weight)).module()
    torch.testing.assert_close(run(x, edge_index, 2 * weight), plain(x, edge_index, 2 * weight), rtol=1e-4, atol=1e-5)


# Other tracers --------------------------------------------------------------------------------------------------


def test_make_fx_traces_no_graph_as_a_constant(graph):
    from torch.fx.experimental.proxy_tensor import make_fx

    plain, model = lightened(MODELS["sage"])
    x, edge_index = graph[0].detach(), graph[1]
    model(x, edge_index)  # the graph is known from now on
    traced, other = make_fx(model)(x, edge_index), edge_index.flip(0).contiguous()
    torch.testing.assert_close(traced(x, other), plain(x, other), rtol=1e-4, atol=1e-5)


REFUSED = "call gs.restore_\\(model\\) first"


@pytest.mark.parametrize("made", [MODELS["gcn"], MODELS["gat"], Own], ids=["gcn", "gat", "own"])
def test_jit_says_to_restore_first(made, graph):
    plain, model = lightened(made)
    args = graph[0].detach(), graph[1]
    with pytest.raises(RuntimeError, match=f"torch.jit.script: {REFUSED}"):
        torch.jit.script(model)
    with pytest.raises(RuntimeError, match=f"torch.jit.trace.*{REFUSED}"):
        torch.jit.trace(model, args)
    with pytest.raises(RuntimeError, match=REFUSED):
        torch.onnx.export(model, args, io.BytesIO(), dynamo=False)
    gs.restore_(model)
    torch.testing.assert_close(torch.jit.trace(model, args)(*args), plain(*args))


def test_jit_of_a_part_says_so_too():
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    gs.lighten_(model)
    with pytest.raises(RuntimeError, match=REFUSED):
        torch.jit.script(nn.ModuleDict({"a": model})["a"])
    with pytest.raises(RuntimeError, match=REFUSED):
        torch.jit.trace(nn.Sequential(model), torch.randn(2, 4))


@pytest.mark.skipif(importlib.util.find_spec("onnxscript") is None, reason="the extra `onnx` is not installed")
def test_onnx(graph, small):
    plain, model = lightened(MODELS["gcn"])
    program = torch.onnx.export(model, (graph[0].detach(), graph[1]), dynamo=True, dynamic_shapes=OPEN, verbose=False)
    torch.testing.assert_close(program.exported_program.module()(*small), plain(*small), rtol=1e-4, atol=1e-5)
