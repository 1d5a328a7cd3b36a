"""Codes in place of x: what layers and ready models compute of decoded rows, whichever way they take."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch_geometric import nn as pyg

import gossamer as gs
from gossamer.codecs import CodedRows
from support.blocks import batch
from support.paths import forced
from support.tensors import rand, seeded


class Scaled(nn.Module):
    """A user's module in place of an MLP: it does not begin with a product that could be made apart."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(12))

    def forward(self, x):
        return self.weight * x


CONVS = {
    "gcn": lambda: pyg.GCNConv(12, 40),
    "gcn narrow": lambda: pyg.GCNConv(40, 8),
    "gcn not normalised": lambda: pyg.GCNConv(12, 40, normalize=False),
    "sage": lambda: pyg.SAGEConv(12, 40),
    "sage sum": lambda: pyg.SAGEConv(12, 40, aggr="sum"),
    "sage max": lambda: pyg.SAGEConv(12, 40, aggr="max"),
    "sage project": lambda: pyg.SAGEConv(12, 40, project=True),
    "sage no root": lambda: pyg.SAGEConv(12, 40, root_weight=False),
    "graph": lambda: pyg.GraphConv(12, 40),
    "graph mean": lambda: pyg.GraphConv(12, 40, aggr="mean"),
    "gin": lambda: pyg.GINConv(nn.Sequential(nn.Linear(12, 40), nn.ReLU(), nn.Linear(40, 8)), eps=0.3),
    "gin eps": lambda: pyg.GINConv(nn.Linear(12, 40), train_eps=True),
    "gin own nn": lambda: pyg.GINConv(Scaled(), eps=0.3),
    "gat": lambda: pyg.GATConv(12, 8, heads=2),
    "gat two projections": lambda: pyg.GATConv((12, 12), 8, add_self_loops=False),
    "gatv2": lambda: pyg.GATv2Conv(12, 8, heads=2),
}
MODELS = {"gcn": pyg.GCN, "sage": pyg.GraphSAGE, "gin": pyg.GIN, "gat": pyg.GAT}
RECIPES = ("float32", "exact-int2", "exact-int2-published", "rsc")


def coded(rows, columns, bits=1, dtype=None, **setting) -> CodedRows:
    return gs.compress(rand(rows, columns), gs.Scalar(bits, **setting)).coded(torch.arange(rows), dtype)


def trained(model, x, *more):
    """The result and the gradients, with the same noise each time."""
    model = copy.deepcopy(model)
    seeded()
    out = model(x, *more)
    out.square().sum().backward()
    return [out, *(p.grad for p in model.parameters() if p.grad is not None)]


def columns_of(conv) -> int:
    return 40 if getattr(conv, "in_channels", 12) == 40 else 12


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("name", CONVS)
def test_convolutions(name, weighted):
    torch.manual_seed(1)
    conv, given = CONVS[name](), batch((61, 23), weighted=weighted)
    x = coded(61, columns_of(conv))
    gs.lighten_(conv, "float32")
    with forced(least=1):
        for got, want in zip(trained(conv, x, given.blocks), trained(conv, x.decode(), given.blocks), strict=True):
            torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)
        with torch.no_grad():
            assert torch.equal(conv(x, given.blocks), conv(x.decode(), given.blocks))


@pytest.mark.parametrize("bits, per", [(1, "tensor"), (1, "column"), (2, "column"), (4, "tensor"), (8, "auto")])
@pytest.mark.parametrize("name", MODELS)
def test_ready_models_to_the_bit(name, bits, per):
    """Neighbour sums are the same to the bit, and so is everything behind them."""
    torch.manual_seed(1)
    model, given = MODELS[name](12, 40, 3, 5, dropout=0.5), batch((90, 61, 23, 7))
    x = coded(90, 12, bits, per=per)
    gs.lighten_(model)
    got, want = (trained(model, rows, given.blocks) for rows in (x, x.decode()))
    assert all(torch.equal(a, b) for a, b in zip(got, want, strict=True))


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("name", MODELS)
def test_recipes(name, recipe):
    torch.manual_seed(1)
    model, given = MODELS[name](12, 40, 2, 5, norm="batch_norm"), batch()
    x = coded(61, 12)
    gs.lighten_(model, recipe)
    with forced(least=1):
        got, want = (trained(model, rows, given.blocks) for rows in (x, x.decode()))
    assert all(torch.equal(a, b) for a, b in zip(got, want, strict=True))


@pytest.mark.parametrize("recipe", ["tango", "feather"])
@pytest.mark.parametrize("name", MODELS)
def test_int8_rounds_the_float_sum(name, recipe):
    """Of decoded rows, codes are rounded before and after the sum; of codes the sum alone: it is no farther off."""
    torch.manual_seed(1)
    model, given = MODELS[name](12, 40, 2, 5), batch((400, 160, 60), most=12)
    x, exact = coded(400, 12, bits=4), copy.deepcopy(model)
    gs.lighten_(exact)
    gs.lighten_(model, recipe)
    with torch.no_grad():
        want = exact(x, given.blocks)
        far, far_decoded = ((model(rows, given.blocks) - want).norm() for rows in (x, x.decode()))
    assert far <= 1.5 * far_decoded and far < 0.05 * want.norm()
    got = trained(model, x, given.blocks)
    assert all(part.isfinite().all() for part in got) and len(got) == 1 + len(list(model.parameters()))


def test_learned_edge_weights_get_their_gradient():
    conv, given = gs_lightened(pyg.GraphConv(12, 40)), batch((61, 23))
    x = coded(61, 12)
    gradients = []
    for rows in (x, x.decode()):
        weight = torch.ones(given.edge_index.size(1), requires_grad=True)
        conv(rows, given.blocks, weight).sum().backward()
        gradients.append(weight.grad)
    assert torch.equal(*gradients) and gradients[0].abs().sum() > 0


def gs_lightened(module):
    gs.lighten_(module)
    return module


def test_bfloat16_rows_are_decoded():
    conv, given = gs_lightened(pyg.SAGEConv(12, 40)).bfloat16(), batch((61, 23))
    x = coded(61, 12, dtype=torch.bfloat16)
    assert x.decode().dtype == torch.bfloat16
    assert torch.equal(conv(x, given.blocks), conv(x.decode(), given.blocks))


def test_a_hook_is_shown_decoded_rows():
    model, given, seen = pyg.GraphSAGE(12, 40, 2, 5), batch(), []
    gs.lighten_(model)
    model.convs[0].register_forward_pre_hook(lambda module, args: seen.append(args[0]))
    x = coded(61, 12)
    model(x, given.blocks)
    assert torch.equal(seen[0], x.decode())


def test_with_edges_rows_are_decoded():
    conv, given = gs_lightened(pyg.SAGEConv(12, 40)), batch((61, 23))
    x = coded(61, 12)
    got, want = (conv(rows, given.edge_index) for rows in (x, x.decode()))
    torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)  # PyG's own forward, which sums in another order


def test_wrong_number_of_rows():
    conv, given = gs_lightened(pyg.SAGEConv(12, 40)), batch((61, 23))
    with pytest.raises(ValueError, match=r"`x` must have as many rows.*got 60"):
        conv(coded(61, 12).first(60), given.blocks)
