"""GAT and GATv2 in int8: forward on rounded rows, gradients exact but for the rounding of dout, right on average."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch_geometric import nn as pyg

import gossamer as gs
from gossamer import measure
from gossamer.aggregate import Adjacency
from gossamer.engine.int8 import qrows
from gossamer.engine.int8.gat import Setting, gat_sum
from gossamer.engine.int8.gatv2 import gatv2_sum
from gossamer.engine.settings import Int8
from support.compare import cosine
from support.graphs import random_graph
from support.int8_attention import Held, dots, exact_gat, exact_gatv2, whole_codes
from support.paths import forced
from support.pyg_models import attention_arguments
from support.tensors import tensors
from support.traces import Calls, nodes_of

NODES, HEADS, WIDTH = 70, 2, 9
INT8 = gs.Recipe(compute=Int8())


@pytest.fixture(autouse=True)
def _same_numbers():
    torch.manual_seed(0)


# The functions, against float64 at the rounded rows ----------------------------------------------------------------


def ours_gat(graph, h_src, h_dst, att_src, att_dst, a_edge, bias, drop, setting=INT8.compute):
    h_dst = h_src if h_dst is None else h_dst
    with torch.no_grad():
        terms = dots(h_src, att_src), dots(h_dst, att_dst)
    given = (h_src, h_dst, (att_src, att_dst), (*terms, a_edge), bias, Setting(0.2, drop, setting))
    return gat_sum(graph, Adjacency(graph).edges, *given)


def ours_gatv2(graph, h_src, h_dst, att, bias, drop, setting=INT8.compute):
    h_dst = h_src if h_dst is None else h_dst
    return gatv2_sum(graph, Adjacency(graph).edges, h_src, h_dst, att, bias, Setting(0.2, drop, setting))


SUMS = {"gat": (ours_gat, exact_gat), "gatv2": (ours_gatv2, exact_gatv2)}


def inputs_of(kind, graph, same, heads=HEADS, width=WIDTH):
    """Leaves: rows of sources and of destinations (None: the same), then the rest."""
    atts = [(1, heads, width)] * 2 + [(graph.num_edges, heads)] if kind == "gat" else [(heads, width)]
    h_src, h_dst, *rest = tensors(
        (graph.num_src, heads * width), (graph.num_dst, heads * width), *atts, (heads * width,)
    )
    return [h_src, None if same else h_dst, *rest]


def grads_of(function, graph, inputs, dout, drop=None, **named):
    leaves = [t for t in inputs if t is not None]
    out = function(graph, *inputs, drop, **named)
    return out, torch.autograd.grad(out, leaves, dout.to(out.dtype))


@pytest.fixture(params=[(kind, same) for kind in SUMS for same in (True, False)], ids=str)
def case(request):
    """Ours, the definition in float64, a graph and leaves."""
    kind, same = request.param
    graph = random_graph(NODES, NODES if same else NODES - 9, 400)
    return *SUMS[kind], graph, inputs_of(kind, graph, same)


@pytest.mark.parametrize("drop", [None, (0.3, 11)])
def test_forward_and_gradients_are_exact_where_dout_needs_no_rounding(case, drop):
    ours, exact, graph, inputs = case
    dout = whole_codes((graph.num_dst, HEADS * WIDTH))
    out, grads = grads_of(ours, graph, inputs, dout, drop)
    truth, truths = grads_of(exact, graph, inputs, dout, drop)
    torch.testing.assert_close(out.double(), truth, rtol=1e-5, atol=1e-5)
    for grad, expected in zip(grads, truths, strict=True):
        top = float(expected.abs().max())
        torch.testing.assert_close(grad.double(), expected.double(), rtol=1e-4, atol=2e-5 * top)


def test_gradients_are_right_on_average(case):
    ours, exact, graph, inputs = case
    count, dout = 120, torch.randn(graph.num_dst, HEADS * WIDTH)
    _, truths = grads_of(exact, graph, inputs, dout, (0.3, 11))
    draws = [grads_of(ours, graph, inputs, dout, (0.3, 11))[1] for _ in range(count)]
    noisy = 0
    for k, truth in enumerate(truths):
        found = torch.stack([draw[k] for draw in draws]).double()
        mean, variance = found.mean(0), found.var(0)
        # a number near a level may never have been rounded to its other neighbour: no variance was seen
        error = (variance / count).sqrt() + 4 * float(variance.max().sqrt()) / count + 1e-5 * float(truth.abs().max())
        assert float(((mean - truth).abs() / error).max()) < 5.5
        assert float((mean - truth).square().sum()) < 2.5 * float(error.square().sum())
        noisy += float(variance.sum()) > 0
    assert noisy == len(truths) - 1  # all but the bias, whose gradient is not rounded


def test_gradients_to_nearest_are_the_same_each_time_and_those_of_noise_are_not(case):
    ours, _, graph, inputs = case
    dout = torch.randn(graph.num_dst, HEADS * WIDTH)
    for setting, same in ((Int8(gradients="nearest"), True), (Int8(), False)):
        (_, first), (_, again) = (grads_of(ours, graph, inputs, dout, setting=setting) for _ in range(2))
        assert torch.equal(first[0], again[0]) == same


def test_scales(case, monkeypatch):
    """Rows times 2^k with atts times 2^-k, and dout times 2^m: the same codes, and every result scaled exactly."""
    ours, _, graph, inputs = case
    monkeypatch.setattr(qrows, "draw_seed", lambda x: 5)  # it would be another for other numbers
    dout, is_gat = torch.randn(graph.num_dst, HEADS * WIDTH), len(inputs) == 6
    parts = ["h", "h", "att", "att", "edge", "bias"] if is_gat else ["h", "h", "att", "bias"]
    out, grads = grads_of(ours, graph, inputs, dout)
    for k, m in ((20, 0), (-20, 0), (0, 20), (0, -20), (7, -13)):
        own = {"h": 2.0**k, "att": 2.0**-k, "edge": 1.0, "bias": 2.0**k}
        scaled = [
            None if t is None else (t.detach() * own[part]).requires_grad_()
            for t, part in zip(inputs, parts, strict=True)
        ]
        new_out, new_grads = grads_of(ours, graph, scaled, dout * 2.0**m)
        assert torch.equal(new_out, out * 2.0**k)
        there = [part for t, part in zip(inputs, parts, strict=True) if t is not None]
        by_part = {"h": 2.0**m, "att": 2.0 ** (m + 2 * k), "edge": 2.0 ** (m + k), "bias": 2.0**m}
        for part, grad, new in zip(there, grads, new_grads, strict=True):
            assert torch.equal(new, grad * by_part[part]), (part, k, m)


def test_each_tensor_is_rounded_once(case):
    ours, _, graph, inputs = case
    with Calls() as calls:
        grads_of(ours, graph, inputs, torch.randn(graph.num_dst, HEADS * WIDTH))
    assert calls.names.count("quantize_rows") == (1 if inputs[1] is None else 2)
    assert calls.names.count("quantize_times") == 1


def test_saved_are_rows_and_numbers_of_nodes_or_edges(case):
    """GAT recomputes weights from a number per node and head; GATv2 saves them."""
    ours, _, graph, inputs = case
    with measure.kept(exclude=inputs) as account:
        out = ours(graph, *inputs, (0.3, 11))
    ends = [graph.num_src, *([] if inputs[1] is None else [graph.num_dst])]
    expected = [((n, HEADS * WIDTH), torch.int8) for n in ends] + [((n,), torch.float32) for n in ends]
    if len(inputs) == 6:
        expected += [((n, HEADS), torch.float32) for n in (graph.num_src, graph.num_dst, graph.num_dst)]
    else:
        expected += [((graph.num_edges, HEADS), torch.float32)]
    assert sorted(map(str, expected)) == sorted(str((t.shape, t.dtype)) for t in account.tensors)
    of_rows = [t.bytes for t in account.tensors if (t.shape, t.dtype) in expected[: 2 * len(ends)]]
    assert sum(of_rows) == sum(n * (HEADS * WIDTH + 4) for n in ends)
    del out


def test_only_what_is_asked_for(case):
    ours, _, graph, inputs = case
    dout = whole_codes((graph.num_dst, HEADS * WIDTH))
    _, grads = grads_of(ours, graph, inputs, dout)
    there = [t for t in inputs if t is not None]
    for k, leaf in enumerate(there):
        for t in there:
            t.requires_grad_(t is leaf)
        with measure.kept(exclude=inputs) as account:
            out = ours(graph, *inputs, None)
        assert (account.bytes == 0) == (leaf is inputs[-1])  # for the bias alone nothing
        torch.testing.assert_close(torch.autograd.grad(out, leaf, dout)[0], grads[k], rtol=0, atol=0)


def test_backward_twice_gives_the_same_and_second_derivatives_are_refused(case):
    ours, _, graph, inputs = case
    leaves = [t for t in inputs if t is not None]
    loss = ours(graph, *inputs, (0.3, 11)).square().sum()
    first, again = (torch.autograd.grad(loss, leaves, retain_graph=True) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    grads = torch.autograd.grad(loss, leaves, create_graph=True)
    with pytest.raises(RuntimeError, match="allow one derivative"):
        sum(g.square().sum() for g in grads).backward()


def test_nan_surfaces(case):
    ours, _, graph, inputs = case
    node = int(graph.degree.argmax())
    dout = torch.randn(graph.num_dst, HEADS * WIDTH)
    dout[node, 3] = torch.nan
    for grad in grads_of(ours, graph, inputs, dout)[1]:
        assert grad.isnan().any()
    sources = graph.col[graph.rowptr[node] : graph.rowptr[node + 1]].long()
    assert grads_of(ours, graph, inputs, dout)[1][0][sources].isnan().all(1).all()
    with torch.no_grad():
        inputs[0][int(sources[0]), 1] = torch.inf
    assert ours(graph, *inputs, None)[node].isnan().any()


EDGES = {"none": [], "one loop": [(0, 0)], "star": [(k, 0) for k in range(1, 30)], "twice": [(1, 2), (1, 2), (3, 2)]}


@pytest.mark.parametrize("edges", EDGES)
@pytest.mark.parametrize("kind", SUMS)
def test_graphs_that_break_things(kind, edges):
    pairs = torch.tensor(EDGES[edges], dtype=torch.int64).reshape(-1, 2).t()
    graph = gs.Graph.from_edge_index(pairs, 30)
    inputs, dout = inputs_of(kind, graph, same=True, heads=3, width=1), whole_codes((30, 3))
    out, grads = grads_of(SUMS[kind][0], graph, inputs, dout)
    truth, truths = grads_of(SUMS[kind][1], graph, inputs, dout)
    torch.testing.assert_close(out.double(), truth, rtol=1e-5, atol=1e-5)
    for grad, expected in zip(grads, truths, strict=True):
        torch.testing.assert_close(grad.double(), expected.double(), rtol=1e-4, atol=1e-4)


# Layers -------------------------------------------------------------------------------------------------------------

LAYERS = {
    "gat": lambda: pyg.GATConv(16, WIDTH, HEADS, dropout=0.4),
    "gat, mean": lambda: pyg.GATConv(16, WIDTH, HEADS, concat=False, dropout=0.4),
    "gat, residual": lambda: pyg.GATConv(16, WIDTH, HEADS, residual=True),
    "gat, no bias": lambda: pyg.GATConv(16, WIDTH, HEADS, bias=False, add_self_loops=False),
    "gat, edges": lambda: pyg.GATConv(16, WIDTH, HEADS, edge_dim=3, dropout=0.4),
    "gat, two kinds": lambda: pyg.GATConv((16, 16), WIDTH, HEADS, add_self_loops=False, dropout=0.4),
    "gat, sources only": lambda: pyg.GATConv((16, 16), WIDTH, HEADS, add_self_loops=False),
    "gatv2": lambda: pyg.GATv2Conv(16, WIDTH, HEADS, dropout=0.4),
    "gatv2, mean": lambda: pyg.GATv2Conv(16, WIDTH, HEADS, concat=False, residual=True),
    "gatv2, one weight": lambda: pyg.GATv2Conv(16, WIDTH, HEADS, share_weights=True, dropout=0.4),
    "gatv2, two kinds": lambda: pyg.GATv2Conv((16, 16), WIDTH, HEADS, add_self_loops=False),
}


MANY = 300
"""So many nodes that one logit more or less beyond the kink of leaky does not decide what the gradient of att is."""


def arguments(name):
    return attention_arguments(name, MANY, 16, 2400)


def sums_int8(out):
    return bool({"_Int8GatBackward", "_Int8Gatv2Backward"} & nodes_of(out))


def run(model, args, recipe, **named):
    """The output, and the gradients of parameters and inputs by name."""
    model = copy.deepcopy(model)
    gs.lighten_(model, recipe)
    torch.manual_seed(5)
    out = model(*args, **named)
    leaves = {name: p for name, p in model.named_parameters() if not name.startswith("head")}
    flat = [t for a in args for t in (a if isinstance(a, tuple) else (a,)) if t is not None and t.requires_grad]
    leaves |= {f"input {k}": t for k, t in enumerate(flat)}
    noise = torch.randn(out.shape, generator=torch.Generator().manual_seed(3))
    grads = torch.autograd.grad((out * (noise + out)).sum(), list(leaves.values()), allow_unused=True)
    return out, dict(zip(leaves, grads, strict=True))


def assert_alike(found, truth, least=0.99):
    (out, grads), (whole, exact) = found, truth
    assert cosine(out, whole) > 0.9999
    for name, grad in exact.items():
        assert (grads[name] is None) == (grad is None), name
        assert grad is None or cosine(grads[name], grad) > least, name
        assert grad is None or 0.95 < float(grads[name].norm() / grad.norm()) < 1.05, name


@pytest.fixture(params=LAYERS)
def layer(request):
    return Held(LAYERS[request.param]()), arguments(request.param)


@pytest.mark.parametrize(("rounding", "least"), [("nearest", 0.99), ("stochastic", 0.98)])
def test_layers_are_those_of_float32_but_for_rounding(layer, rounding, least):
    found, truth = run(*layer, gs.Recipe(compute=Int8(rounding=rounding))), run(*layer, gs.Recipe())
    assert sums_int8(found[0]) and "_Int8Backward" in nodes_of(found[0])
    assert not sums_int8(truth[0]) and not torch.equal(found[0], truth[0])
    assert_alike(found, truth, least)


def test_evaluation_is_the_forward_of_training(layer):
    model, args = layer
    gs.lighten_(model.eval(), "tango")
    out = model(*args)
    assert sums_int8(out)
    with torch.no_grad():
        assert torch.equal(model(*args), out)


def test_no_float_rows_are_saved(layer):
    model, args = layer
    gs.lighten_(model, "tango")
    with measure.kept(exclude=[model, args]) as account:
        out = model(*args)
    assert sums_int8(out)
    assert not [t for t in account.tensors if t.dtype.is_floating_point and t.shape == (MANY, HEADS * WIDTH)], account
    assert [t for t in account.tensors if t.dtype == torch.int8 and t.shape == (MANY, HEADS * WIDTH)]


def test_checkpointing(layer):
    model, args = layer
    gs.lighten_(model, gs.Recipe(compute=Int8(gradients="nearest")))
    leaves = list(model.conv.parameters())
    results = []
    for call in (model, lambda *given: checkpoint(model, *given, use_reentrant=False)):
        torch.manual_seed(4)
        results.append(torch.autograd.grad(call(*args).square().sum(), leaves, allow_unused=True))
    for a, b in zip(*results, strict=True):
        assert (a is None) == (b is None)
        if a is not None:  # weight gradients are rounded stochastically in any case
            assert cosine(a, b) > 0.999


def test_where_it_stays_in_float32():
    model, (x, edge_index) = Held(LAYERS["gat"]()), arguments("gat")
    gs.lighten_(model, "tango")
    assert sums_int8(model(x, edge_index))
    out, (_, weights) = model(x, edge_index, return_attention_weights=True)
    assert not sums_int8(out) and weights.requires_grad
    few = edge_index[:, (edge_index < 50).all(0)]
    assert not sums_int8(model(x[:50], few))  # fewer than 1024 elements
    for recipe in (gs.Recipe(), gs.Recipe(compute=Int8(float32=("conv",)))):
        gs.lighten_(model, recipe)
        assert not sums_int8(model(x, edge_index)) and "_Int8Backward" not in nodes_of(model(x, edge_index))


@pytest.mark.parametrize("kind", ["gat", "gatv2", "gatv2, one weight", "gat, residual"])
def test_with_activations_in_few_bits_they_are_summed_as_those_say_and_projected_in_int8(kind):
    model, args = Held(LAYERS[kind]()), arguments(kind)
    recipe = gs.Recipe(compute=Int8(), activations=gs.Blockwise(bits=8))
    found = run(model, args, recipe)
    assert not sums_int8(found[0]) and {"_GatSumBackward", "_Gatv2SumBackward"} & nodes_of(found[0])
    assert "_Int8Backward" in nodes_of(found[0])
    assert_alike(found, run(model, args, gs.Recipe()))


# Behind an epilogue ------------------------------------------------------------------------------------------------


def stacked(kind, **given):
    """Its activation has no kink, over which rounding would carry a number and change a gradient by more than noise."""
    given = {"act": "elu", "heads": 2, "norm": "batch_norm", "dropout": 0.3} | given
    return pyg.GAT(16, 18, 3, 5, v2=kind == "gatv2", **given).train()


@pytest.fixture
def fused():
    """Small tensors take fused ops."""
    with forced(least=1):
        yield


def quantised(calls):
    """How many epilogues were made as int8 rows."""
    return calls.names.count("epilogue_rows") + calls.names.count("save_epilogue_rows")


def assert_stacked(found, truth):
    (out, grads), (whole, exact) = found, truth
    assert cosine(out, whole) > 0.999  # the same masks
    assert cosine(*(torch.cat([all_of[name].flatten() for name in exact]) for all_of in (grads, exact))) > 0.995
    top = max(float(grad.norm()) for grad in exact.values())
    for name, grad in exact.items():
        # a bias before a batch norm has no gradient but what rounding leaves; that of att_dst is made of kinks
        assert float(grad.norm()) < 1e-4 * top or cosine(grads[name], grad) > 0.93, name


STACKED = [(kind, given) for kind in SUMS for given in ({}, {"residual": True}, {"concat": False})]
STACKED += [("gat", {"edge_dim": 3}), ("gatv2", {"share_weights": True})]


@pytest.mark.parametrize(("kind", "given"), STACKED, ids=str)
def test_an_epilogue_comes_in_as_rows(kind, given, fused):
    model, (x, edge_index, attr) = stacked(kind, **given), arguments("gat, edges")
    named = {"edge_attr": attr} if "edge_dim" in given else {}
    with Calls() as calls:
        truth = run(model, (x, edge_index), gs.Recipe(), **named)
    assert quantised(calls) == 0
    with Calls() as calls:
        found = run(model, (x, edge_index), "tango", **named)
    assert quantised(calls) == 1 and sums_int8(found[0])  # of two; the last convolution is in float32
    assert_stacked(found, truth)


@pytest.mark.parametrize("kind", SUMS)
@pytest.mark.parametrize("compute", [gs.recipe.Float32(), Int8()], ids=str)
def test_an_epilogue_saved_in_few_bits(kind, compute, fused):
    model, (x, edge_index) = stacked(kind, residual=True, act=None), arguments("gat")
    recipe = gs.Recipe(compute=compute, activations=gs.Blockwise(bits=8))
    with Calls() as calls:
        found = run(model, (x, edge_index), recipe)
    assert quantised(calls) == isinstance(compute, Int8) and not sums_int8(found[0])
    assert_stacked(found, run(model, (x, edge_index), gs.Recipe()))


def test_a_listener_gets_the_epilogue_s_result(fused):
    model, (x, edge_index) = stacked("gat"), arguments("gat")
    gs.lighten_(model, "tango")
    heard = []
    model.convs[1].lin.register_forward_pre_hook(lambda module, args: heard.append(args[0].shape))
    with Calls() as calls:
        model(x, edge_index)
    assert heard == [(MANY, 18)] and quantised(calls) == 0


# All of it ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", SUMS)
def test_the_same_bits_by_any_number_of_threads(kind):
    graph = random_graph(6000, 6000, 40000)
    (x,) = tensors((6000, 24))
    results = []
    for threads in (1, 2):
        torch.set_num_threads(threads)
        torch.manual_seed(1)
        model = Held((pyg.GATConv if kind == "gat" else pyg.GATv2Conv)(24, 16, 2, dropout=0.3))
        gs.lighten_(model, "tango")  # noise begins anew
        out = model(x, graph)
        results.append([out, *torch.autograd.grad(out.square().sum(), [x, *model.conv.parameters()])])
    for one, two in zip(*results, strict=True):
        assert torch.equal(one, two)


class Net(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.first, self.last = kind(64, 8, 4, dropout=0.2), kind(32, 10, 1)

    def forward(self, x, edge_index):
        return self.last(nn.functional.elu(self.first(x, edge_index)), edge_index)


@pytest.mark.parametrize("kind", [pyg.GATConv, pyg.GATv2Conv])
def test_training_reaches_the_loss_of_float32(kind):
    data = gs.datasets.load("digits")
    losses, right = [], []
    for recipe in ("float32", "tango"):
        torch.manual_seed(0)
        model = Net(kind)
        gs.lighten_(model, recipe)
        optimizer = torch.optim.Adam(model.parameters(), 0.02)
        for _ in range(30):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(data.x, data.edge_index)[data.train_mask], data.y[data.train_mask])
            loss.backward()
            optimizer.step()
        with torch.no_grad():
            hit = model.eval()(data.x, data.edge_index).argmax(1) == data.y
        losses.append(loss.item())
        right.append(hit[data.test_mask].float().mean().item())
    assert losses[0] < 0.3 and right[0] > 0.9
    assert abs(losses[1] - losses[0]) < 0.05 * losses[0] + 0.01
    assert right[1] > right[0] - 0.01
