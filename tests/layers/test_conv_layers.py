"""Convolutions compute what PyG's do: every option, nasty graphs, both orders of product and sum."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch_geometric import nn as pyg
from torch_geometric.explain.algorithm.utils import set_masks
from torch_geometric.nn import GATConv, GATv2Conv, GCNConv, GINConv, GraphConv, SAGEConv

import gossamer as gs
from support.pyg_models import assert_same

WIDTHS = (5, 29)  # narrower than the 12 columns of x, so multiplied first; wider than twice that, so aggregated first


def mlp(train_norm: bool = True) -> nn.Module:
    norm = [nn.BatchNorm1d(8)] if train_norm else []
    return nn.Sequential(nn.Linear(12, 8), *norm, nn.ReLU(), nn.Linear(8, 4))


CONVS = {
    "gcn": lambda: GCNConv(12, 7),
    "sage": lambda: SAGEConv(12, 7),
    "sage max": lambda: SAGEConv(12, 7, aggr="max"),
    "gin": lambda: GINConv(mlp(False)),
    "gat": lambda: GATConv(12, 4, heads=2),
    "gatv2": lambda: GATv2Conv(12, 4, heads=2),
    "graphconv": lambda: GraphConv(12, 7),
}


@pytest.mark.parametrize("x_learns", [True, False])
@pytest.mark.parametrize("conv", CONVS)
def test_nasty_graphs(conv, nasty, x_learns, paths):
    edge_index, num_nodes = nasty
    assert_same(CONVS[conv](), torch.randn(num_nodes, 12, requires_grad=x_learns), edge_index)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("weight", [None, "fixed", "learned"])
@pytest.mark.parametrize(
    "options", [{}, {"improved": True}, {"add_self_loops": False}, {"normalize": False}, {"bias": False}]
)
def test_gcn(options, weight, width, graph):
    given = [] if weight is None else [torch.rand(graph[1].size(1), requires_grad=weight == "learned")]
    assert_same(GCNConv(12, width, **options), *graph, *given)


@pytest.mark.parametrize("loop", [0.0, 5.0])
def test_gcn_keeps_the_weights_of_loops(loop, graph):
    x, edge_index = graph
    weight = torch.rand(edge_index.size(1)).where(edge_index[0] != edge_index[1], loop)
    assert_same(GCNConv(12, 7), x, edge_index, weight)
    assert_same(GCNConv(12, 7), x, edge_index, weight.requires_grad_())


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("aggr", ["mean", "sum", "add", "max"])
@pytest.mark.parametrize(
    "options", [{}, {"root_weight": False}, {"project": True}, {"normalize": True}, {"bias": False}]
)
def test_sage(options, aggr, width, graph, paths):
    assert_same(SAGEConv(12, width, aggr=aggr, **options), *graph)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("aggr", ["mean", "add", "max"])
@pytest.mark.parametrize("weight", [None, "fixed", "learned"])
def test_graphconv(aggr, weight, width, graph):
    given = [] if weight is None else [torch.rand(graph[1].size(1), requires_grad=weight == "learned")]
    assert_same(GraphConv(12, width, aggr=aggr), *graph, *given)


@pytest.mark.parametrize("aggr", ["add", "mean", "max"])
@pytest.mark.parametrize("options", [{}, {"eps": 0.3}, {"eps": 0.3, "train_eps": True}])
@pytest.mark.parametrize("network", [mlp, lambda: nn.Linear(12, 4), lambda: pyg.MLP([12, 8, 4]), nn.Identity])
def test_gin(network, options, aggr, graph, paths):
    module = nn.ModuleList([GINConv(network(), aggr=aggr, **options), nn.Linear(1, 1)])[0]
    assert_same(module, *graph)


ATTENTION = [
    {}, {"concat": False}, {"add_self_loops": False}, {"bias": False}, {"residual": True}, {"negative_slope": 0.5},
    {"concat": False, "residual": True}, {"concat": False, "bias": False}, {"residual": True, "bias": False},
]  # fmt: skip


@pytest.mark.parametrize("heads", [1, 3])
@pytest.mark.parametrize("options", ATTENTION)
@pytest.mark.parametrize("kind", [GATConv, GATv2Conv])
def test_attention(kind, options, heads, graph, paths):
    assert_same(kind(12, 5, heads=heads, **options), *graph)


@pytest.mark.parametrize("options", [{}, {"add_self_loops": False}, {"fill_value": "add"}, {"fill_value": 2.0}])
@pytest.mark.parametrize("learned", [True, False])
def test_gat_with_edge_features(options, learned, graph):
    attr = torch.randn(graph[1].size(1), 3, requires_grad=learned)
    assert_same(GATConv(12, 5, heads=2, edge_dim=3, **options), *graph, attr)
    one = torch.randn(graph[1].size(1), requires_grad=learned)
    assert_same(GATConv(12, 5, heads=2, edge_dim=1, **options), *graph, one)


def test_gat_without_its_edge_features(graph):
    assert_same(GATConv(12, 5, edge_dim=3), *graph)


def test_gatv2_shares_weights(graph):
    assert_same(GATv2Conv(12, 5, heads=3, share_weights=True), *graph)


@pytest.mark.parametrize("concat", [True, False])
@pytest.mark.parametrize("loops", [True, False])
@pytest.mark.parametrize("kind", [GATConv, GATv2Conv])
def test_attention_weights_are_returned_in_pygs_order(kind, loops, concat, graph):
    conv = kind(12, 5, heads=2, add_self_loops=loops, concat=concat)
    out, (edges, p) = conv(*graph, return_attention_weights=True)
    gs.lighten_(conv)
    for adjacency in (graph[1], gs.Graph.from_edge_index(graph[1], 50)):
        our_out, (our_edges, our_p) = conv(graph[0], adjacency, return_attention_weights=True)
        assert torch.equal(our_edges, edges)
        torch.testing.assert_close((our_out, our_p), (out, p))


BIPARTITE = {
    "sage": lambda: SAGEConv((12, 8), 6),
    "sage wide": lambda: SAGEConv((12, 8), 30),
    "sage max": lambda: SAGEConv((12, 8), 6, aggr="max"),
    "graphconv": lambda: GraphConv((12, 8), 6),
    "gat": lambda: GATConv((12, 8), 6, heads=2, add_self_loops=False),
    "gat, loops": lambda: GATConv((12, 8), 6, heads=2),
    "gatv2": lambda: GATv2Conv((12, 8), 6, heads=2, add_self_loops=False),
    "gatv2, loops": lambda: GATv2Conv((12, 8), 6, heads=2),
    "gat, mean": lambda: GATConv((12, 8), 6, heads=2, add_self_loops=False, concat=False),
    "gatv2, mean": lambda: GATv2Conv((12, 8), 6, heads=2, add_self_loops=False, concat=False),
    "gat, residual": lambda: GATConv((12, 8), 6, add_self_loops=False, residual=True),
}


@pytest.fixture
def across() -> torch.Tensor:
    """Edges from 30 nodes to 20 others, the last of which has none."""
    return torch.stack([torch.randint(0, 30, (100,)), torch.randint(0, 19, (100,))])


@pytest.mark.parametrize("conv", BIPARTITE)
def test_two_kinds_of_nodes(conv, across, paths):
    pair = (torch.randn(30, 12, requires_grad=True), torch.randn(20, 8, requires_grad=True))
    assert_same(BIPARTITE[conv](), pair, across)


@pytest.mark.parametrize(
    "conv",
    [
        lambda: SAGEConv((12, 12), 6),
        lambda: GraphConv((12, 12), 6),
        lambda: GINConv(nn.Linear(12, 4)),
        lambda: GATConv((12, 12), 6, add_self_loops=False),
    ],
)
def test_destinations_without_features(conv, across):
    x = torch.randn(30, 12, requires_grad=True)
    assert_same(conv(), (x, None), across, size=(30, 20))
    assert_same(conv(), (x, None), across)


@pytest.mark.parametrize("eps", [False, True])
def test_gin_across(eps, across):
    pair = (torch.randn(30, 12, requires_grad=True), torch.randn(20, 12, requires_grad=True))
    assert_same(GINConv(nn.Linear(12, 4), train_eps=eps), pair, across)


LAZY = {
    "gcn": lambda: GCNConv(-1, 7),
    "gcn wide": lambda: GCNConv(-1, 30),
    "sage": lambda: SAGEConv(-1, 7),
    "graphconv": lambda: GraphConv(-1, 7),
    "gat": lambda: GATConv(-1, 7, heads=2),
    "gatv2": lambda: GATv2Conv(-1, 7, heads=2),
    "linear": lambda: pyg.Linear(-1, 7),
}


@pytest.mark.parametrize("conv", LAZY)
def test_widths_that_the_first_call_tells(conv, graph):
    module = nn.ModuleList([LAZY[conv]()])[0]
    gs.lighten_(module)
    args = graph if isinstance(module, pyg.MessagePassing) else graph[:1]
    out = module(*args)
    again = module(*args)
    torch.testing.assert_close(out, again)
    torch.testing.assert_close(gs.restore_(module)(*args), out)


def test_gat_with_lazy_edge_features(graph):
    conv = GATConv(-1, 7, heads=2, edge_dim=-1)
    gs.lighten_(conv)
    attr = torch.randn(graph[1].size(1), 3)
    out = conv(*graph, attr)
    torch.testing.assert_close(conv(*graph, attr), out)
    torch.testing.assert_close(gs.restore_(conv)(*graph, attr), out)


class Squashed(nn.Module):
    """A user's stand-in for a linear layer; it is not linear."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(12, 30)

    def forward(self, x):
        return self.inner(x).sin()


class Shifted(nn.Linear):
    def forward(self, x):
        return super().forward(x) + 1


@pytest.mark.parametrize("linear", [Squashed, lambda: Shifted(12, 30), lambda: nn.Linear(12, 30)])
@pytest.mark.parametrize(
    "conv,name",
    [
        ("gcn", "lin"), ("sage", "lin_l"), ("sage", "lin_r"), ("graphconv", "lin_rel"), ("graphconv", "lin_root"),
        ("gat", "lin"),
    ],
)  # fmt: skip
def test_a_replaced_linear_layer_is_called(conv, name, linear, graph):
    kinds = {"gcn": GCNConv, "sage": SAGEConv, "graphconv": GraphConv, "gat": GATConv}
    module = kinds[conv](12, 30)
    setattr(module, name, linear())
    assert_same(module, *graph)


def test_a_hook_on_an_inner_linear_layer_sees_what_pyg_gives_it(graph):
    conv = GCNConv(12, 30)
    conv.lin.register_forward_hook(lambda module, args, out: out.sin())
    assert_same(conv, *graph)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("conv", CONVS)
def test_other_dtypes_are_left_to_pyg(conv, dtype, graph):
    module = CONVS[conv]().to(dtype)
    x = graph[0].detach().to(dtype)
    want = module(x, graph[1])
    gs.lighten_(module)
    assert torch.equal(module(x, graph[1]), want)


@pytest.mark.parametrize("conv", CONVS)
def test_float64_with_a_graph(conv, graph):
    """A Graph cannot be left to PyG; its own float32 weights are all that is rounded."""
    module = CONVS[conv]().double()
    x = graph[0].detach().double().requires_grad_()
    want = module(x, graph[1])
    (dwant,) = torch.autograd.grad(want.square().sum(), x)
    gs.lighten_(module)
    found = module(x, gs.Graph.from_edge_index(graph[1], len(x)))
    (dfound,) = torch.autograd.grad(found.square().sum(), x)
    torch.testing.assert_close(found, want, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(dfound, dwant, rtol=1e-5, atol=1e-5)


def test_sparse_features_are_left_to_pyg(graph):
    x = graph[0].detach().relu().to_sparse()
    for width in WIDTHS:
        conv = GCNConv(12, width)
        want = conv(x, graph[1])
        gs.lighten_(conv)
        assert torch.equal(conv(x, graph[1]), want)


def test_batches_of_features_are_left_to_pyg(graph):
    conv = GCNConv(12, 7)
    x = torch.randn(3, 50, 12)
    want = conv(x, graph[1])
    gs.lighten_(conv)
    assert torch.equal(conv(x, graph[1]), want)


def test_message_hooks_registered_later_still_fire(graph):
    conv = GCNConv(12, 7)
    gs.lighten_(conv)
    fired = []
    handle = conv.register_message_forward_hook(lambda *args: fired.append(1))
    conv(*graph)
    assert fired == [1]
    handle.remove()
    conv(*graph)
    assert fired == [1]


@pytest.mark.parametrize("conv", CONVS)
def test_hooks_on_the_aggregation_still_fire(conv, graph):
    module = CONVS[conv]()
    gs.lighten_(module)
    fired = []
    module.aggr_module.register_forward_hook(lambda *args: fired.append(1))
    module(*graph)
    assert fired == [1]


@pytest.mark.parametrize("conv", CONVS)
def test_an_explainer_masks_the_messages(conv, graph):
    plain = CONVS[conv]()
    lighter = copy.deepcopy(plain)
    gs.lighten_(lighter)
    mask = torch.rand(graph[1].size(1))
    for module in (plain, lighter):
        set_masks(module, mask, graph[1], apply_sigmoid=False)
    assert torch.equal(lighter(*graph), plain(*graph))


# Errors ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("conv", CONVS)
def test_features_and_edges_of_different_sizes(conv, graph):
    module = CONVS[conv]()
    gs.lighten_(module)
    with pytest.raises(IndexError, match=r"`x` must have one row per node of `edge_index` \(got 5 rows\).*position"):
        module(graph[0][:5], graph[1])


@pytest.mark.parametrize("conv", [c for c in CONVS if "gat" not in c])
def test_features_and_a_graph_of_different_sizes(conv, graph):
    module = CONVS[conv]()
    gs.lighten_(module)
    with pytest.raises(ValueError, match=r"of 60 source and 60 destination nodes, as many as `x` has rows.*50 nodes"):
        module(torch.randn(60, 12), gs.Graph.from_edge_index(graph[1], 50))


@pytest.mark.parametrize("rows", [49, 60])
@pytest.mark.parametrize("conv", ["gat", "gatv2"])
def test_attention_on_a_graph_of_another_size(conv, rows, graph):
    module = CONVS[conv]()
    gs.lighten_(module)
    with pytest.raises(ValueError, match=rf"of {rows} source and {rows} destination nodes.*50 nodes"):
        module(torch.randn(rows, 12), gs.Graph.from_edge_index(graph[1], 50))


@pytest.mark.parametrize("conv", CONVS)
@pytest.mark.parametrize("bad", [None, [[0], [1]], "edges"])
def test_edges_of_a_wrong_type(conv, bad, graph):
    module = CONVS[conv]()
    gs.lighten_(module)
    with pytest.raises(TypeError, match=f"`edge_index` must be a tensor.*got {type(bad).__name__}"):
        module(graph[0], bad)


def test_edges_that_are_no_integers(graph):
    conv = GCNConv(12, 7)
    gs.lighten_(conv)
    with pytest.raises(TypeError, match="`edge_index` must be int64 or int32"):
        conv(graph[0], graph[1].float())


@pytest.mark.parametrize("learned", [True, False])
@pytest.mark.parametrize("kind", [GCNConv, GraphConv])
def test_too_few_weights(kind, learned, graph):
    conv = kind(12, 7)
    gs.lighten_(conv)
    with pytest.raises(ValueError, match=r"300.*\(5,\)"):
        conv(*graph, torch.rand(5, requires_grad=learned))


def test_size_that_contradicts_the_features(across):
    conv = SAGEConv((12, 8), 6)
    gs.lighten_(conv)
    with pytest.raises(ValueError, match=r"`size` must be the numbers of rows of `x`, \(30, 20\) \(got \(30, 25\)\)"):
        conv((torch.randn(30, 12), torch.randn(20, 8)), across, size=(30, 25))


@pytest.mark.parametrize("conv", ["gcn", "sage"])
def test_features_of_a_wrong_width(conv, graph, paths):
    module = CONVS[conv]()
    gs.lighten_(module)
    with pytest.raises((ValueError, RuntimeError), match="12"):
        module(graph[0][:, :5], graph[1])
