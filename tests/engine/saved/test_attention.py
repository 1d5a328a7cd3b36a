"""GAT and GATv2 that save few bits: the same outputs, gradients right on average, and nothing large saved."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch_geometric import nn as pyg

import gossamer as gs
from gossamer import measure, ops
from gossamer.aggregate import Adjacency
from gossamer.engine.attention import weight_of_terms
from gossamer.engine.saved import gatv2
from gossamer.engine.saved.gat import SPAN, Setting, gat_sum
from gossamer.engine.saved.products import known_product
from gossamer.engine.saved.source import source_of
from support.codecs import Identity
from support.graphs import random_graph
from support.pyg_models import attention_arguments
from support.saved import assert_one_derivative, saving_by
from support.tensors import seeded, tensors
from support.traces import nodes_of
from support.unbiased import assert_unbiased, draws_of

NODES, HEADS, WIDTH = 60, 2, 9
FEW = gs.Recipe(activations=gs.Blockwise(bits=2))


def setting_of(codec, drop=None):
    return Setting(0.2, drop, saving_by(codec))


def edges_of(graph):
    return Adjacency(graph).edges


def dots(h, att):
    return (h.view(-1, *att.shape[1:]) * att).sum(-1)


def gat(graph, h_src, h_dst, att_src, att_dst, a_edge, bias, setting):
    with torch.no_grad():
        terms = dots(h_src, att_src), None if h_dst is None else dots(h_dst, att_dst)
    return gat_sum(graph, edges_of(graph), h_src, h_dst, (att_src, att_dst), (*terms, a_edge), bias, setting)


def gatv2_sum(graph, *inputs):
    return gatv2.gatv2_sum(graph, edges_of(graph), *inputs)


def plain_gat(graph, h_src, h_dst, att_src, att_dst, a_edge, bias, setting):
    terms = dots(h_src, att_src), None if h_dst is None else dots(h_dst, att_dst)
    p = ops.gat_attention(graph, *terms, a_edge, setting.slope)
    return ops.spmm(graph, h_src, value=ops.dropout(p, *setting.drop) if setting.drop else p, bias=bias)


def plain_gatv2(graph, h_src, h_dst, att, bias, setting):
    p = ops.edge_softmax(graph, ops.gatv2_logits(graph, h_src, h_dst, att, setting.slope))
    return ops.spmm(graph, h_src, value=ops.dropout(p, *setting.drop) if setting.drop else p, bias=bias)


def gat_inputs(graph, heads=HEADS, width=WIDTH, dtype=torch.float32):
    rows = (graph.num_src, heads * width), (graph.num_dst, heads * width)
    atts, ends = [(1, heads, width)] * 2, [(graph.num_edges, heads), (heads * width,)]
    return tensors(*rows, *atts, *ends, dtype=dtype)


# The layers -----------------------------------------------------------------------------------------------------

LAYERS = {
    "gat": lambda: pyg.GATConv(12, WIDTH, HEADS, dropout=0.4),
    "gat, mean": lambda: pyg.GATConv(12, WIDTH, HEADS, concat=False, dropout=0.4),
    "gat, residual": lambda: pyg.GATConv(12, WIDTH, HEADS, residual=True),
    "gat, no bias": lambda: pyg.GATConv(12, WIDTH, HEADS, bias=False, add_self_loops=False),
    "gat, edges": lambda: pyg.GATConv(12, WIDTH, HEADS, edge_dim=3, dropout=0.4),
    "gat, two kinds": lambda: pyg.GATConv((12, 12), WIDTH, HEADS, add_self_loops=False, dropout=0.4),
    "gat, sources only": lambda: pyg.GATConv((12, 12), WIDTH, HEADS, add_self_loops=False),
    "gatv2": lambda: pyg.GATv2Conv(12, WIDTH, HEADS, dropout=0.4),
    "gatv2, mean": lambda: pyg.GATv2Conv(12, WIDTH, HEADS, concat=False, residual=True),
    "gatv2, one weight": lambda: pyg.GATv2Conv(12, WIDTH, HEADS, share_weights=True, dropout=0.4),
    "gatv2, two kinds": lambda: pyg.GATv2Conv((12, 12), WIDTH, HEADS, add_self_loops=False),
}


def arguments(name):
    return attention_arguments(name, NODES, 12, 300)


def saves_few(out):
    return bool({"_GatSumBackward", "_Gatv2SumBackward"} & nodes_of(out))


def run(conv, args, recipe):
    conv = copy.deepcopy(conv)
    gs.lighten_(conv, recipe)
    torch.manual_seed(5)
    out = conv(*args)
    leaves = [*conv.parameters(), *(t for a in args for t in (a if isinstance(a, tuple) else (a,)))]
    leaves = [t for t in leaves if t is not None and t.requires_grad]
    return out, torch.autograd.grad(out.square().sum(), leaves, allow_unused=True)


@pytest.fixture(params=LAYERS)
def layer(request):
    torch.manual_seed(0)
    return LAYERS[request.param](), arguments(request.param)


def test_outputs_are_the_same_bits(layer):
    conv, args = layer  # x requires grad, so that the product before draws noise, and masks must not change by it
    whole, few = (run(conv, args, recipe)[0] for recipe in (gs.Recipe(), FEW))
    assert saves_few(few) and not saves_few(whole)
    assert torch.equal(whole, few)


@pytest.mark.parametrize("bits", [2, 8])
def test_gradients_of_layers_from_codes_that_lose_nothing(layer, bits):
    """Below eight bits the gradients of GAT's atts have codes of their own."""
    conv, args = layer
    out, exact = run(conv, args, gs.Recipe())
    lossless = gs.Blockwise(bits=bits, block=1, meta="float32")  # a block of one element is its zero
    few, grads = run(conv, args, gs.Recipe(activations=lossless))
    assert saves_few(few) and torch.equal(out, few)
    for grad, truth in zip(grads, exact, strict=True):
        assert (grad is None) == (truth is None)
        if truth is not None:
            torch.testing.assert_close(grad, truth, rtol=1e-4, atol=1e-5 * float(truth.abs().max()))


def test_nothing_as_large_as_rows_or_weights_is_saved(layer):
    conv, args = layer
    gs.lighten_(conv, FEW)
    with measure.kept(exclude=[conv, args]) as account:
        out = conv(*args)
    assert saves_few(out)
    floats = [t.shape for t in account.tensors if t.dtype.is_floating_point and t.bytes >= 4 * NODES * HEADS]
    terms = [(NODES, HEADS)] * 2 if isinstance(conv, pyg.GATConv) else []
    edges = 300 + NODES - int((args[1][0] == args[1][1]).sum())
    allowed = [*terms, *([(edges, HEADS), (edges, 3)] if len(args) == 3 else [])]  # the edge term and edge_attr, sorted
    for shape in floats:
        assert shape in allowed, account
        allowed.remove(shape)


def test_floats_are_saved_where_few_bits_do_not_apply():
    conv, (x, edge_index) = LAYERS["gat"](), arguments("gat")
    gs.lighten_(conv, FEW)
    assert saves_few(conv(x, edge_index))
    out, (_, weights) = conv(x, edge_index, return_attention_weights=True)
    assert not saves_few(out) and weights.requires_grad
    with torch.no_grad():
        assert conv(x, edge_index).grad_fn is None
    small = conv(x[:50], edge_index[:, (edge_index < 50).all(0)])
    assert not saves_few(small)  # fewer than 1024 elements
    conv.requires_grad_(False)
    assert conv(x.detach(), edge_index).grad_fn is None


# Gradients ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bits", [2, 8])
@pytest.mark.parametrize("rows", ["the same", "apart", "sources only"])
@pytest.mark.parametrize("edges", [True, False])
def test_gradcheck_gat(rows, edges, bits):
    graph = random_graph(9, 9 if rows == "the same" else 7, 24)
    h_src, h_dst, *atts, a_edge, bias = gat_inputs(graph, 2, 3, torch.float64)
    setting = setting_of(Identity(bits), (0.3, 11))

    def function(h_src, h_dst, att_src, att_dst, a_edge, bias):
        h_dst = {"the same": h_src, "apart": h_dst, "sources only": None}[rows]
        return gat(graph, h_src, h_dst, att_src, att_dst, a_edge if edges else None, bias, setting)

    assert torch.autograd.gradcheck(function, (h_src, h_dst, *atts, a_edge, bias), fast_mode=True)


@pytest.mark.parametrize("same", [True, False])
def test_gradcheck_gat_with_terms_of_their_own(same):
    """Terms that are products of the input behind the rows: they get da, and nothing is saved of h for datt."""
    graph, setting = random_graph(9, 9, 24), setting_of(Identity(), (0.3, 11))
    x, y, *leaves = tensors((9, 4), (9, 4), (6, 4), (1, 2, 3), (1, 2, 3), dtype=torch.float64)
    x, y = x.detach(), x.detach() if same else y.detach()

    def function(weight, att_src, att_dst):
        h_src, h_dst = x @ weight.t(), y @ weight.t()
        given = (x, att_src, h_src), (y, att_dst, h_dst)
        own = [
            known_product(x, weight_of_terms(weight, att), dots(h, att), source_of(x, setting.saving))
            for x, att, h in given
        ]
        h_dst = h_src if same else h_dst
        return gat_sum(graph, edges_of(graph), h_src, h_dst, (None, None), (*own, None), None, setting)

    assert torch.autograd.gradcheck(function, tuple(leaves), fast_mode=True)


@pytest.mark.parametrize("same", [True, False])
def test_gradcheck_gatv2(same):
    graph = random_graph(9, 9 if same else 7, 24)
    inputs = tensors((9, 6), (graph.num_dst, 6), (2, 3), (6,), dtype=torch.float64)
    setting = setting_of(Identity(), (0.3, 11))

    def function(h_src, h_dst, att, bias):
        return gatv2_sum(graph, h_src, h_src if same else h_dst, att, bias, setting)

    assert torch.autograd.gradcheck(function, tuple(inputs), fast_mode=True)


@pytest.mark.parametrize("wanted", [(0,), (1,), (2,), (3,), (4,), (5,), (2, 3), (0, 5)])
def test_only_what_is_asked_for(wanted):
    """Any part may be frozen; with the bias alone nothing is saved."""
    graph = random_graph(NODES, NODES, 300)
    inputs = [t.requires_grad_(k in wanted) for k, t in enumerate(gat_inputs(graph))]
    leaves, setting = [inputs[k] for k in wanted], setting_of(Identity(), (0.3, 11))
    exact = torch.autograd.grad(plain_gat(graph, *inputs, setting).square().sum(), leaves)
    with measure.kept(exclude=inputs) as account:
        out = gat(graph, *inputs, setting)
    assert (account.bytes == 0) == (wanted == (5,))
    torch.testing.assert_close(torch.autograd.grad(out.square().sum(), leaves), exact, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("codec", [gs.Blockwise(bits=2, bins="optimal"), gs.Uniform(bits=4)])
@pytest.mark.parametrize("same", [True, False])
def test_unbiased_gat(codec, same):
    graph, setting = random_graph(NODES, NODES, 300), setting_of(codec, (0.3, 11))
    h_src, h_dst, *rest = gat_inputs(graph)
    h_dst = h_src if same else h_dst
    leaves = [h_src, *([] if same else [h_dst]), *rest]
    dout = torch.randn(NODES, HEADS * WIDTH, generator=torch.Generator().manual_seed(4))
    exact = torch.autograd.grad((plain_gat(graph, h_src, h_dst, *rest, setting) * dout).sum(), leaves)
    assert_unbiased(lambda: torch.autograd.grad(gat(graph, h_src, h_dst, *rest, setting), leaves, dout), exact, 300)


def test_unbiased_gat_in_a_layer_on_input_that_needs_no_gradient():
    """One draw of h alone is saved: datt comes from the input, exactly but for da."""
    conv, (x, edge_index) = pyg.GATConv(12, WIDTH, HEADS), arguments("gat")
    x = x.detach()
    exact = run(conv, (x, edge_index), gs.Recipe())[1]
    gs.lighten_(conv, FEW)
    leaves = list(conv.parameters())
    assert_unbiased(lambda: torch.autograd.grad(conv(x, edge_index).square().sum(), leaves), exact, 300)


def test_gatv2_is_biased_no_more_than_documented():
    graph, setting = random_graph(NODES, NODES, 300), setting_of(gs.Blockwise(bits=8), (0.3, 11))
    inputs = tensors((NODES, 18), (NODES, 18), (HEADS, WIDTH), (18,))
    dout = torch.randn(NODES, 18, generator=torch.Generator().manual_seed(4))
    exact = torch.autograd.grad((plain_gatv2(graph, *inputs, setting) * dout).sum(), inputs)
    found = draws_of(lambda: torch.autograd.grad(gatv2_sum(graph, *inputs, setting), inputs, dout), 300)
    for draws, truth, most in zip(found, exact, (0.025, 0.21, 0.003, 1e-6), strict=True):
        assert float((draws.mean(0) - truth).norm()) < most * float(truth.norm())
    assert float(found[0].var(0).sum()) > 0


# What is saved --------------------------------------------------------------------------------------------------


def call(kind, nodes=NODES):
    """A function that sums the neighbours of rows, rows for it, and its other leaves."""
    graph = random_graph(nodes, nodes, 5 * nodes)
    setting = setting_of(gs.Blockwise(bits=2 if kind == "gat" else 8), (0.3, 11))
    h, _, *atts, a_edge, bias = map(nn.Parameter, gat_inputs(graph))
    if kind == "gat":
        return lambda h: gat(graph, h, h, *atts, a_edge, bias, setting), h, [*atts, a_edge, bias]
    return lambda h: gatv2_sum(graph, h, h, atts[0][0], bias, setting), h, [atts[0], bias]


KINDS = pytest.mark.parametrize("kind", ["gat", "gatv2"])


@KINDS
def test_backward_twice_gives_the_same_and_second_derivatives_are_refused(kind):
    function, h, leaves = call(kind)
    leaves = [h, *leaves]
    loss = function(h).square().sum()
    assert_one_derivative(loss, leaves)


def test_bytes_saved_by_gat():
    graph, shape = random_graph(NODES, NODES, 300), (NODES, HEADS * WIDTH)
    x, weight = tensors((NODES, 12), (HEADS * WIDTH, 12))
    _, _, *atts, a_edge, bias = map(nn.Parameter, gat_inputs(graph))
    terms = 2 * 4 * NODES * HEADS
    for bits, draws in ((2, 2), (4, 2), (8, 1)):
        codec = gs.Blockwise(bits=bits)
        with measure.kept(exclude=[x, weight]) as account:
            out = gat(graph, h := x @ weight.t(), h, *atts, a_edge, bias, setting_of(codec))
        assert account.bytes == draws * codec.nbytes(shape) + terms
        assert out.requires_grad
        conv = pyg.GATConv(12, WIDTH, HEADS, add_self_loops=False)
        gs.lighten_(conv, gs.Recipe(activations=codec))
        with measure.kept(exclude=[x, conv, graph]) as account:  # input without gradient: one draw, and att W by head
            out = conv(x.detach(), graph)
        assert account.bytes == codec.nbytes(shape) + terms + 4 * 2 * HEADS * 12


def test_bytes_saved_by_gatv2():
    graph, codec = random_graph(NODES, NODES, 300), gs.Blockwise(bits=8)
    h, g, att, bias = (nn.Parameter(t) for t in tensors((NODES, 18), (NODES, 18), (HEADS, WIDTH), (18,)))
    for other, count in ((g, 2), (h, 1)):
        with measure.kept() as account:
            out = gatv2_sum(graph, h, other, att, bias, setting_of(codec))
        assert account.bytes == count * codec.nbytes(h.shape) and out.requires_grad


class Storages(TorchDispatchMode):
    """The storages of all floats that ops of ours took or gave, from so many elements on."""

    def __init__(self, least):
        super().__init__()
        self.least, self.seen = least, set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        if func.namespace == "gossamer":
            floats = (
                t for t in tree_leaves((args, kwargs, out)) if isinstance(t, torch.Tensor) and t.is_floating_point()
            )
            self.seen |= {StorageWeakRef(t.untyped_storage()) for t in floats if t.numel() >= self.least}
        return out


@KINDS
def test_rows_and_weights_die_after_forward(kind):
    function, h, leaves = call(kind)
    with Storages(least=5 * NODES * HEADS) as storages:  # a number per edge and head
        out = function(h * 2)
    alive = {ref for ref in storages.seen if not ref.expired()}
    assert len(storages.seen) - len(alive) >= 3  # rows, weights before and after dropout
    assert alive <= {StorageWeakRef(t.untyped_storage()) for t in (out, *leaves)}
    assert out.requires_grad


@KINDS
def test_threads_make_no_difference(kind):
    function, h, leaves = call(kind, nodes=2 * SPAN + 100)
    results = []
    for threads in (1, 2):
        torch.set_num_threads(threads)
        seeded(0)
        results.append(torch.autograd.grad(function(h).square().sum(), [h, *leaves]))
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


@KINDS
def test_not_a_number_is_refused(kind):
    function, h, _ = call(kind)
    h.data[3, 2] = torch.nan
    with pytest.raises(ValueError, match=r"`x` must be finite to be encoded \(got 1 NaN"):
        function(h)


def test_a_term_changed_in_place_is_noticed():
    function, h, (*_, a_edge, _) = call("gat")
    loss = function(h).square().sum()
    with torch.no_grad():
        a_edge.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()
