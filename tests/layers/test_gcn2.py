"""GCNII's convolution computes what PyG's does: every option, nasty graphs, and where PyG's own forward runs."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch import nn
from torch_geometric.explain.algorithm.utils import set_masks
from torch_geometric.nn import GCN2Conv

import gossamer as gs
from gossamer.engine.epilogue import EpilogueSpec
from gossamer.engine.int8.engine import Int8Engine
from gossamer.engine.rules import forced
from gossamer.state import state_of
from support.pyg_models import Gcnii, assert_same


@pytest.fixture(params=[True, False], ids=["one weight", "two weights"])
def shared(request):
    return request.param


@pytest.fixture
def given(graph):
    """x, x_0 and edge_index."""
    x, edge_index = graph
    return x, torch.randn(50, 12, requires_grad=True), edge_index


@pytest.mark.parametrize("x_learns", [True, False])
def test_nasty_graphs(nasty, x_learns, shared, paths):
    edge_index, num_nodes = nasty
    x, x_0 = (torch.randn(num_nodes, 12, requires_grad=x_learns) for _ in range(2))
    assert_same(GCN2Conv(12, 0.1, 0.5, 2, shared_weights=shared), x, x_0, edge_index)


OPTIONS = [
    {}, {"theta": 0.5, "layer": 1}, {"theta": 1.5, "layer": 64}, {"alpha": 0.0}, {"alpha": 1.0}, {"cached": True},
    {"add_self_loops": False}, {"normalize": False},
]  # fmt: skip


@pytest.mark.parametrize("weight", [None, "fixed", "learned"])
@pytest.mark.parametrize("options", OPTIONS)
def test_options(options, weight, shared, given, paths):
    weights = [] if weight is None else [torch.rand(300, requires_grad=weight == "learned")]
    assert_same(GCN2Conv(12, **({"alpha": 0.1} | options), shared_weights=shared), *given, *weights)


@pytest.mark.parametrize("loop", [0.0, 5.0])
def test_weights_of_loops_stay(loop, given):
    edge_index = given[2]
    weight = torch.rand(300).where(edge_index[0] != edge_index[1], loop)
    assert_same(GCN2Conv(12, 0.1, 0.5, 2), *given, weight)
    assert_same(GCN2Conv(12, 0.1, 0.5, 2), *given, weight.requires_grad_())


def test_initial_features_of_more_nodes(shared, given):
    """PyG takes the first rows, as in a sampled batch."""
    x, _, edge_index = given
    assert_same(GCN2Conv(12, 0.1, 0.5, 2, shared_weights=shared), x, torch.randn(70, 12).requires_grad_(), edge_index)


class First(nn.Module):
    """The first layer of a model, where x is x_0."""

    def __init__(self, shared: bool) -> None:
        super().__init__()
        self.conv = GCN2Conv(12, 0.3, 0.5, 2, shared_weights=shared)

    def forward(self, x, edge_index):
        return self.conv(x, x, edge_index)


def test_one_tensor_for_both(shared, graph, paths):
    assert_same(First(shared), *graph)


@pytest.mark.parametrize("norm", [None, "batch_norm", "layer_norm"])
def test_deep_models(norm, shared, graph, paths):
    assert_same(Gcnii(12, 16, 8, 5, norm=norm, shared_weights=shared), *graph)


@pytest.mark.parametrize("recipe", ["float32", "exact-int2", "tango", "feather"])
def test_an_epilogue_that_waits_is_run(recipe, graph):
    """Where both inputs are one Deferred, once."""
    edge_index = graph[1]
    model = nn.ModuleList([GCN2Conv(24, 0.1, 0.5, 2), nn.Linear(2, 2)])
    gs.lighten_(model, recipe)
    with forced(fused=1, saved=1, int8=1):
        engine, epilogue = state_of(model[0]).engine, EpilogueSpec(p=0.0)
        x = torch.randn(50, 24).requires_grad_()
        deferred = engine.defer(x, epilogue)
        assert (deferred is None) == (recipe == "float32")
        if deferred is not None:
            torch.testing.assert_close(model[0](deferred, deferred, edge_index), model[0](x, x, edge_index))
            assert deferred._x is None


def test_a_graph_and_a_sparse_matrix(shared, given):
    x, x_0, edge_index = given
    conv = GCN2Conv(12, 0.1, 0.5, 2, shared_weights=shared)
    edge_index = edge_index[:, edge_index[0] != edge_index[1]].unique(dim=1)  # PyG's loops differ for matrices
    want = conv(x, x_0, edge_index)
    gs.lighten_(conv)
    rows, columns = edge_index.flip(0)
    matrix = torch.sparse_coo_tensor(torch.stack([rows, columns]), torch.ones(len(rows)), (50, 50)).to_sparse_csr()
    for adjacency in (gs.Graph.from_edge_index(edge_index, 50), matrix):
        torch.testing.assert_close(conv(x, x_0, adjacency), want)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_other_dtypes_are_left_to_pyg(dtype, shared, given):
    conv = GCN2Conv(12, 0.1, 0.5, 2, shared_weights=shared).to(dtype)
    x, x_0 = (t.detach().to(dtype) for t in given[:2])
    want = conv(x, x_0, given[2])
    gs.lighten_(conv)
    assert torch.equal(conv(x, x_0, given[2]), want)


def test_float64_with_a_graph(shared, given):
    """A Graph cannot be left to PyG; float32 factors of the adjacency are all that is rounded."""
    conv = GCN2Conv(12, 0.1, 0.5, 2, shared_weights=shared).double()
    x, x_0 = (t.detach().double().requires_grad_() for t in given[:2])
    want = conv(x, x_0, given[2])
    wanted = torch.autograd.grad(want.square().sum(), (x, x_0))
    gs.lighten_(conv)
    found = conv(x, x_0, gs.Graph.from_edge_index(given[2], 50))
    torch.testing.assert_close(found, want, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(torch.autograd.grad(found.square().sum(), (x, x_0)), wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("recipe", ["float32", "exact-int2", "tango", "feather"])
@pytest.mark.parametrize("dtypes", [(torch.float32, torch.bfloat16), (torch.bfloat16, torch.float32)])
def test_autocast_of_inputs_of_two_dtypes(dtypes, recipe, shared):
    """Under autocast x may come from a product, in bfloat16, and x_0 from elsewhere."""
    conv = GCN2Conv(32, 0.1, 0.5, 2, shared_weights=shared)
    x, x_0 = (torch.randn(200, 32).to(dtype).requires_grad_() for dtype in dtypes)
    edge_index = torch.randint(0, 200, (2, 1000))
    want = conv(x.float(), x_0.float(), edge_index)
    gs.lighten_(nn.ModuleList([conv, nn.Linear(2, 2)]), recipe)
    with torch.autocast("cpu", torch.bfloat16):
        out = conv(x, x_0, edge_index)
        out.float().square().sum().backward()
    torch.testing.assert_close(out.float(), want, rtol=0.05, atol=0.05)
    assert all(t.grad is not None and bool(t.grad.isfinite().all()) for t in (x, x_0, *conv.parameters()))


def test_second_derivatives(shared, given):
    plain = GCN2Conv(12, 0.1, 0.5, 2, shared_weights=shared)
    light = copy.deepcopy(plain)
    gs.lighten_(light)
    found = []
    for conv in (plain, light):
        x = given[0].detach().clone().requires_grad_()
        (slope,) = torch.autograd.grad(conv(x, given[1], given[2]).square().sum(), x, create_graph=True)
        found.append(torch.autograd.grad(slope.square().sum(), [x, *conv.parameters()]))
    torch.testing.assert_close(found[1], found[0], rtol=1e-3, atol=1e-3)


def test_message_hooks_and_hooks_on_the_aggregation_fire(given):
    conv, fired = GCN2Conv(12, 0.1), []
    gs.lighten_(conv)
    handle = conv.register_message_forward_hook(lambda *args: fired.append("message"))
    conv(*given)
    handle.remove()
    conv.aggr_module.register_forward_hook(lambda *args: fired.append("aggregation"))
    conv(*given)
    assert fired == ["message", "aggregation"]


def test_an_explainer_masks_the_messages(given):
    plain = GCN2Conv(12, 0.1)
    light = copy.deepcopy(plain)
    gs.lighten_(light)
    for conv in (plain, light):
        set_masks(conv, torch.rand(300, generator=torch.Generator().manual_seed(1)), given[2], apply_sigmoid=False)
    assert torch.equal(light(*given), plain(*given))


@pytest.mark.parametrize("again", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
@pytest.mark.parametrize("recipe", ["exact-int2", "tango"])
def test_copies_and_restored(recipe, again, shared):
    model = nn.ModuleList([GCN2Conv(32, 0.1, 0.5, 2, shared_weights=shared), nn.Linear(2, 2)])
    keys, plain = list(model.state_dict()), copy.deepcopy(model)
    gs.lighten_(model, recipe)
    twin = again(model)
    x, edge_index = torch.randn(200, 32), torch.randint(0, 200, (2, 1000))
    assert list(model.state_dict()) == keys
    assert isinstance(state_of(twin[0]).engine, Int8Engine) == (recipe == "tango")
    assert torch.equal(twin[0](x, x, edge_index), model[0](x, x, edge_index))
    gs.restore_(twin)
    assert type(twin[0]) is GCN2Conv
    assert torch.equal(twin[0](x, x, edge_index), plain[0](x, x, edge_index))


# Errors ---------------------------------------------------------------------------------------------------------


def test_features_and_edges_of_different_sizes(given):
    conv = GCN2Conv(12, 0.1)
    gs.lighten_(conv)
    x, x_0, edge_index = given
    with pytest.raises(IndexError, match=r"`x` must have one row per node of `edge_index` \(got 5 rows\).*position"):
        conv(x[:5], x_0[:5], edge_index)
    with pytest.raises(ValueError, match=r"of 60 source and 60 destination nodes, as many as `x` has rows.*50 nodes"):
        conv(torch.randn(60, 12), torch.randn(60, 12), gs.Graph.from_edge_index(edge_index, 50))


@pytest.mark.parametrize("bad", [None, [[0], [1]], "edges"])
def test_edges_of_a_wrong_type(bad, given):
    conv = GCN2Conv(12, 0.1)
    gs.lighten_(conv)
    with pytest.raises(TypeError, match=f"`edge_index` must be a tensor.*got {type(bad).__name__}"):
        conv(*given[:2], bad)


@pytest.mark.parametrize("learned", [True, False])
def test_too_few_weights(learned, given):
    conv = GCN2Conv(12, 0.1)
    gs.lighten_(conv)
    with pytest.raises(ValueError, match=r"300.*\(5,\)"):
        conv(*given, torch.rand(5, requires_grad=learned))


def test_initial_features_of_too_few_nodes(shared, given):
    conv = GCN2Conv(12, 0.1, shared_weights=shared)
    gs.lighten_(conv)
    with pytest.raises((ValueError, RuntimeError), match="50"):
        conv(given[0], given[1][:20], given[2])
