"""GAT's projection as rows that attention alone reads: when it is made so, and that results are those of float rows."""

from __future__ import annotations

import copy
import gc
import pickle
import weakref

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch_geometric import nn as pyg

import gossamer as gs
from gossamer import measure, native, ops
from gossamer.engine import noise
from gossamer.engine.gradient import QGradient
from gossamer.engine.int8.precision import STEPS
from gossamer.engine.settings import Int8
from support.compare import cosine
from support.graphs import random_graph
from support.int8 import decoded
from support.int8_attention import Held, exact_gat, whole_codes
from support.paths import forced
from support.tensors import tensors
from support.traces import Calls, nodes_of
from support.unbiased import assert_unbiased

NODES, COLUMNS, HEADS, WIDTH = 300, 16, 2, 9
NEAREST = gs.Recipe(compute=Int8(gradients="nearest"))
LAYERS = {
    "plain": {},
    "dropout": {"dropout": 0.4},
    "mean": {"concat": False},
    "no bias": {"bias": False, "add_self_loops": False},
    "edges": {"edge_dim": 3},
}


@pytest.fixture(autouse=True)
def _begin_anew():
    begin_anew()


def begin_anew():
    torch.manual_seed(0)
    noise.stream.reset()


class GatCalls(Calls):
    """Also whether dh is made as int8 rows, float tensors of h's shape, and weak references to projected rows."""

    def __init__(self):
        super().__init__()
        self.as_rows, self.whole, self.projected = [], [], []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = super().__torch_dispatch__(func, types, args, kwargs)
        if func._schema.name == "gossamer::gat_backward_int8":
            dh, *_ = out
            self.as_rows.append(dh.dtype == torch.int8)
        if func._schema.name == "gossamer::int8_linear_heads":
            self.projected += map(weakref.ref, out)
        for t in out if isinstance(out, (tuple, list)) else [out]:
            rows = isinstance(t, torch.Tensor) and t.is_floating_point() and t.shape == (NODES, HEADS * WIDTH)
            if rows and t.untyped_storage().nbytes() >= 4 * t.numel():
                self.whole.append(func)
        return out

    @property
    def projects(self):
        return "int8_linear_heads" in self.names


def inputs(requires_grad=False):
    graph = random_graph(NODES, NODES, 2400)
    x, attr = tensors((NODES, COLUMNS), (graph.num_edges, 3), seed=2)
    return x.detach().requires_grad_(requires_grad), graph.edge_index, attr.detach()


def layer(recipe="tango", **given):
    torch.manual_seed(3)
    model = Held(pyg.GATConv(COLUMNS, WIDTH, HEADS, **given))
    gs.lighten_(model, recipe)
    return model


def projects(model, *args, **named):
    with GatCalls() as calls:
        model(*args, **named)
    return calls.projects


def unprojected(model):
    """From now on rows are made of float rows, which somebody listens to."""
    for module in model.modules():
        if isinstance(module, pyg.GATConv):
            module.lin.register_forward_hook(lambda *args: None)


# When it is taken ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_in_int8_takes_it(name):
    model, (x, edge_index, attr) = layer(**LAYERS[name]), inputs()
    given = (x, edge_index, attr) if name == "edges" else (x, edge_index)
    with GatCalls() as calls:
        out = model(*given)
        out.square().sum().backward()
    assert calls.projects and calls.as_rows == [True] and "quantize_rows" in calls.names
    assert "int8_linear" not in calls.names and "linear" not in calls.names and "sddmm_int8" not in calls.names
    assert {"_Int8GatBackward", "_Int8Backward"} <= nodes_of(out)


def test_who_looks_sees_the_gradient_of_projected_rows():
    """That of float rows, where the logits have no part in it (att = 0): that part goes to the projection apart."""
    seen, direction = [], torch.randn(NODES, HEADS * WIDTH)
    for projected in (True, False):
        model, (x, edge_index, _) = layer(), inputs(requires_grad=True)
        for att in (model.conv.att_src, model.conv.att_dst):
            nn.init.zeros_(att)
        if not projected:
            unprojected(model)
        out = model(x, edge_index)
        (node, _), *_ = out.grad_fn.next_functions
        node.register_prehook(lambda grads: seen.append(grads[0]))
        out.backward(direction)
    found, want = seen
    assert isinstance(found, QGradient) and not isinstance(want, QGradient)
    assert found.shape == want.shape and cosine(found + 0, want) > 0.999
    assert 0.99 < float(found.norm() / want.norm()) < 1.01


def test_float_rows_are_neither_made_nor_saved():
    model, (x, edge_index, _) = layer(dropout=0.4), inputs(requires_grad=True)
    with measure.kept(exclude=[model, x, edge_index]) as account, GatCalls() as calls:
        out = model(x, edge_index)
    assert [f.name() for f in calls.whole] == ["gossamer::gat_sum_int8"]  # the result
    assert not [t for t in account.tensors if t.dtype.is_floating_point and t.bytes >= 4 * NODES * HEADS * WIDTH]
    dout = torch.randn(out.shape)
    with GatCalls() as calls:
        out.backward(dout)
    assert calls.names and not calls.whole


def test_a_step_leaves_nothing_to_the_garbage_collector():
    """Whether backward ran or not."""
    model, (x, edge_index, _) = layer(), inputs()
    gc.collect()
    gc.disable()
    try:
        for back in (True, False):
            with GatCalls() as calls:
                out = model(x, edge_index)
            codes, scale, _ = calls.projected
            assert codes() is not None and scale() is not None, "backward needs the rows"
            if back:
                out.sum().backward()
            del out
            assert all(ref() is None for ref in calls.projected)
    finally:
        gc.enable()


def test_it_is_not_taken_where_somebody_needs_float_rows():
    model, (x, edge_index, _) = layer(), inputs()
    assert projects(model, x, edge_index)
    assert projects(model, (x, x), edge_index)
    assert not projects(model, x, edge_index, return_attention_weights=True)
    assert not projects(model, (x, x.clone()), edge_index)
    assert not projects(model, (x, None), edge_index, size=(NODES, NODES))
    few = edge_index[:, (edge_index < 40).all(0)]
    assert not projects(model, x[:40], few)  # fewer than 1024 elements
    with torch.autocast("cpu", torch.bfloat16):
        assert not projects(model, x, edge_index)
    handle = model.conv.lin.register_forward_hook(lambda *args: None)
    assert not projects(model, x, edge_index)
    handle.remove()
    assert projects(model, x, edge_index)
    handle = model.conv.lin.register_full_backward_hook(lambda *args: None)
    assert not projects(model, x.requires_grad_(), edge_index)
    handle.remove()
    model.conv.lin.bias = nn.Parameter(torch.zeros(HEADS * WIDTH))
    assert not projects(model, x, edge_index)


@pytest.mark.parametrize(
    ("recipe", "given"),
    [
        ("tango", {"residual": True}),
        ("float32", {}),
        (gs.Recipe(compute=Int8(), activations=gs.Blockwise(bits=8)), {}),
        ("feather", {}),
        (gs.Recipe(compute=Int8(float32=("conv",))), {}),
    ],
    ids=str,
)
def test_it_is_not_taken_by_other_layers_and_recipes(recipe, given):
    assert not projects(layer(recipe, **given), *inputs()[:2])


def test_it_is_not_taken_by_a_projection_for_each_side():
    torch.manual_seed(3)
    model = Held(pyg.GATConv((COLUMNS, COLUMNS), WIDTH, HEADS))
    gs.lighten_(model, "tango")
    x, edge_index, _ = inputs()
    assert not projects(model, (x, x), edge_index)


def test_it_is_taken_once_automatic_precision_has_measured():
    model, (x, edge_index, _) = layer(gs.Recipe(compute=Int8(auto=True, tolerance=0.9))), inputs()
    for _ in range(STEPS):
        with GatCalls() as calls:
            model(x, edge_index).square().sum().backward()
        assert not calls.projects and calls.as_rows == [False]
    assert gs.precision(model)["conv"].decided
    assert projects(model, x, edge_index)


# The same results ---------------------------------------------------------------------------------------------------


def step(model, given, dout=None):
    """The result, and the gradients of parameters and x by name; noise begins anew."""
    begin_anew()
    out = model(*given)
    leaves = {name: p for name, p in model.named_parameters() if p.requires_grad and not name.startswith("head")}
    leaves |= {"x": given[0]} if given[0].requires_grad else {}
    direction = torch.randn(out.shape, generator=torch.Generator().manual_seed(9)) if dout is None else dout
    grads = torch.autograd.grad(out, list(leaves.values()), direction)
    return out.detach(), dict(zip(leaves, grads, strict=True))


def assert_alike(found, want, least=0.99):
    (out, grads), (whole, exact) = found, want
    torch.testing.assert_close(out, whole, rtol=1e-4, atol=1e-5)
    assert grads.keys() == exact.keys()
    for name, grad in exact.items():  # those of att are sums of da h here, and of da h^ with float rows
        assert cosine(grads[name], grad) > least, name
        assert 0.98 < float(grads[name].norm() / grad.norm()) < 1.02, name


@pytest.mark.parametrize("requires_grad", [True, False])
@pytest.mark.parametrize("recipe", ["tango", NEAREST], ids=str)
@pytest.mark.parametrize("name", LAYERS)
def test_results_are_those_of_float_rows_but_for_rounding(name, recipe, requires_grad):
    """Rows and masks are the same, and terms are sums in another order.

    dh is rounded without the part of the logits, which goes to x and the weight apart: an nsr of 1e-3 at most.
    """
    model, given = layer(recipe, **LAYERS[name]), inputs(requires_grad)[: 3 if name == "edges" else 2]
    found = step(model, given)
    assert projects(model, *given)
    unprojected(model)
    assert not projects(model, *given)
    assert_alike(found, step(model, given), 0.999)


@pytest.mark.parametrize("name", LAYERS)
def test_rows_rounded_stochastically(name):
    """Another draw in each step, near float rows'."""
    model = layer(gs.Recipe(compute=Int8(rounding="stochastic")), **LAYERS[name]).eval()
    given = inputs(requires_grad=True)[: 3 if name == "edges" else 2]
    (out, found), again = step(model, given), model(*given)
    assert projects(model, *given) and not torch.equal(out, again) and cosine(out, again) > 0.999
    unprojected(model)
    whole, want = step(model, given)
    assert cosine(out, whole) > 0.999
    assert_alike((out, found), (out, want))


def assert_same_but_for_noise(name, found, want):
    """Of gradients to nearest; those of weights are rounded stochastically in any case."""
    assert cosine(found, want) > 0.999 if name == "conv.lin.weight" else torch.equal(found, want), name


def straight_through(conv, x, graph, dout, drop):
    """Gradients of x, the weight and both atts in float64, at the rounded operands."""
    x_rows, w_rows = ops.quantize_rows(x.detach()), ops.quantize_rows(conv.lin.weight.detach())
    h = ops.int8_linear(*x_rows, *w_rows).requires_grad_()
    atts, none = [conv.att_src, conv.att_dst], torch.zeros(graph.num_edges, HEADS)
    out = exact_gat(graph, h, None, *atts, none, conv.bias, drop, whole=True)
    dh, *datts = torch.autograd.grad(out, [h, *atts], dout.double())
    dh = dh.double()
    return out.detach(), [dh @ decoded(w_rows), dh.t() @ decoded(x_rows), *datts]


@pytest.fixture
def small():
    """A layer without loops, its input, and its dropout, which is the same in every call of `grads_of`."""
    graph = random_graph(70, 70, 400)
    model = layer(add_self_loops=False, dropout=0.3)
    (x,) = tensors((graph.num_src, COLUMNS))
    torch.manual_seed(SEED)
    return model, x, graph, (0.3, int(torch.randint(2**63 - 1, ())))


SEED = 11


def grads_of(model, x, graph, dout):
    """Noise is another in every call, as it counts them."""
    torch.manual_seed(SEED)
    conv = model.conv
    out = model(x, graph)
    return out, torch.autograd.grad(out, [x, conv.lin.weight, conv.att_src, conv.att_dst], dout)


def test_where_dout_needs_no_rounding_gradients_are_exact_or_right_on_average(small):
    """What logits get is exact then; rows of dh are rounded once on their way to x and the weight."""
    model, x, graph, drop = small
    dout = whole_codes((graph.num_dst, HEADS * WIDTH))
    want, truth = straight_through(model.conv, x, graph, dout, drop)
    assert projects(model, x, graph)
    out, grads = grads_of(model, x, graph, dout)
    torch.testing.assert_close(out.double(), want, rtol=1e-5, atol=1e-5)
    for grad, expected in zip(grads[2:], truth[2:], strict=True):
        torch.testing.assert_close(grad, expected, rtol=1e-4, atol=2e-5 * float(expected.abs().max()))
    assert_unbiased(lambda: grads_of(model, x, graph, dout)[1][:2], truth[:2])


def test_gradients_are_right_on_average(small):
    model, x, graph, drop = small
    dout = torch.randn(graph.num_dst, HEADS * WIDTH)
    _, truth = straight_through(model.conv, x, graph, dout, drop)
    assert_unbiased(lambda: grads_of(model, x, graph, dout)[1], [t.double() for t in truth])


@pytest.mark.parametrize("name", LAYERS)
def test_forward_is_the_same_in_training_and_without_gradients(name):
    model, given = layer(**LAYERS[name]).eval(), inputs()[: 3 if name == "edges" else 2]
    out = model(*given)
    assert out.requires_grad
    for without in (torch.no_grad, torch.inference_mode):
        with without(), GatCalls() as calls:
            assert torch.equal(model(*given), out)
        assert calls.projects


# Autograd -----------------------------------------------------------------------------------------------------------

FREEZING = {
    "the weight": ["conv.lin.weight"],
    "attention": ["conv.att_src", "conv.att_dst"],
    "one side": ["conv.att_src"],
    "all but the bias": ["conv.lin.weight", "conv.att_src", "conv.att_dst"],
    "all but attention": ["conv.lin.weight", "conv.bias"],
    "nothing": [],
}


@pytest.mark.parametrize("requires_grad", [True, False])
@pytest.mark.parametrize("frozen", FREEZING)
def test_frozen_parameters(frozen, requires_grad):
    """Whatever needs no gradient has none; the rest is as with all of them."""
    model, given = layer(NEAREST), inputs(requires_grad)[:2]
    _, whole = step(model, given)
    for name in FREEZING[frozen]:
        model.get_parameter(name).requires_grad_(False)
    assert projects(model, *given)
    found = step(model, given)
    assert found[1].keys() == whole.keys() - set(FREEZING[frozen])
    for name, grad in found[1].items():
        assert_same_but_for_noise(name, grad, whole[name])
    unprojected(model)
    assert_alike(found, step(model, given), 0.999)


def test_asking_for_some_gradients_only():
    """What is not asked for has no part in the next backward."""
    model, (x, edge_index, _) = layer(NEAREST), inputs(requires_grad=True)
    _, want = step(model, (x, edge_index))
    begin_anew()
    out = model(x, edge_index)
    direction = torch.randn(out.shape, generator=torch.Generator().manual_seed(9))
    conv = model.conv
    (alone,) = torch.autograd.grad(out, [conv.att_src], direction, retain_graph=True)
    assert torch.equal(alone, want["conv.att_src"])
    dx, dweight = torch.autograd.grad(out, [x, conv.lin.weight], 2 * direction, retain_graph=True)
    assert torch.equal(dx, 2 * want["x"]) and cosine(dweight, want["conv.lin.weight"]) > 0.999
    assert torch.equal(torch.autograd.grad(out, [x], direction)[0], want["x"])


@pytest.mark.parametrize("recipe", ["tango", NEAREST], ids=str)
def test_backward_twice(recipe):
    """Noise of rows was drawn in forward, that of the weight's gradient is drawn anew."""
    model, (x, edge_index, _) = layer(recipe, dropout=0.4), inputs(requires_grad=True)
    loss, leaves = model(x, edge_index).square().sum(), [x, *model.conv.parameters()]
    first, again = (torch.autograd.grad(loss, leaves, retain_graph=True) for _ in range(2))
    for a, b, leaf in zip(first, again, leaves, strict=True):
        assert cosine(a, b) > 0.999 if leaf is model.conv.lin.weight else torch.equal(a, b)
    grads = torch.autograd.grad(loss, leaves, create_graph=True)
    with pytest.raises(RuntimeError, match="allow one derivative"):
        sum(g.square().sum() for g in grads).backward()
    loss.backward()
    with pytest.raises(RuntimeError, match="second time"):
        loss.backward()


def test_gradients_to_nearest_are_the_same_each_time_and_those_of_noise_are_not():
    given = inputs(requires_grad=True)[:2]
    for recipe, same in ((NEAREST, True), ("tango", False)):
        model = layer(recipe)
        grads = [torch.autograd.grad(model(*given).square().sum(), [given[0]])[0] for _ in range(2)]
        assert torch.equal(*grads) == same


def test_anomaly_mode_changes_nothing():
    model, given = layer(dropout=0.4), inputs(requires_grad=True)[:2]
    out, want = step(model, given)
    with torch.autograd.set_detect_anomaly(True):
        again, found = step(model, given)
        assert projects(model, *given)
    assert torch.equal(again, out) and all(torch.equal(found[name], grad) for name, grad in want.items())


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_anomaly_mode_names_the_layer_of_what_is_not_finite(bad):
    model, (x, edge_index, _) = layer(), inputs()
    x[3, 3] = bad
    with torch.autograd.set_detect_anomaly(True):
        with pytest.raises(ValueError, match=r"in layer 'conv' \(GATConv\), the rows of an int8 product hold NaN"):
            model(x, edge_index)
        with torch.no_grad():
            x[3, 3] = 0
            model.conv.lin.weight[2, 2] = bad
        with pytest.raises(ValueError, match=r"in layer 'conv' \(GATConv\), the weights of an int8 product hold NaN"):
            model(x, edge_index)


@pytest.mark.filterwarnings("ignore:Error detected in _Int8Backward:UserWarning")
def test_anomaly_mode_names_the_layer_of_a_gradient():
    """Where only the projection requires grad."""
    model, (x, edge_index, _) = layer(), inputs()
    for parameter in (model.conv.att_src, model.conv.att_dst, model.conv.bias):
        parameter.requires_grad_(False)
    with torch.autograd.set_detect_anomaly(True):
        out = model(x, edge_index)
        with pytest.raises(ValueError, match=r"in layer 'conv' \(GATConv\), the gradients of an int8 product hold NaN"):
            out.backward(torch.full_like(out, torch.inf))


def test_without_anomaly_mode_results_show_it():
    """In the rows that have to do with it, and in gradients."""
    model, (x, edge_index, _) = layer(), inputs(requires_grad=True)
    clean = model(x, edge_index).detach()
    with torch.no_grad():
        x[3, 3] = torch.nan
    out = model(x, edge_index)
    hit = torch.zeros(NODES, dtype=torch.bool)
    hit[edge_index[1][edge_index[0] == 3]] = hit[3] = True
    assert out[hit].isnan().all() and torch.equal(out[~hit], clean[~hit]) and not hit.all()
    out.sum().backward()
    assert x.grad[3].isnan().all() and model.conv.lin.weight.grad.isnan().any()


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpointing(reentrant):
    model, (x, edge_index, _) = layer(NEAREST, dropout=0.4), inputs(requires_grad=True)
    out, want = step(model, (x, edge_index))

    def run(*given):
        return checkpoint(model, *given, use_reentrant=reentrant)

    run.named_parameters = model.named_parameters
    if reentrant:  # which knows no torch.autograd.grad
        begin_anew()
        again = run(x, edge_index)
        again.backward(torch.randn(again.shape, generator=torch.Generator().manual_seed(9)))
        found = {name: (x if name == "x" else model.get_parameter(name)).grad for name in want}
    else:
        again, found = step(run, (x, edge_index))
    assert torch.equal(again, out)
    for name, grad in want.items():
        assert_same_but_for_noise(name, found[name], grad)


def test_copies_and_pickles_after_a_step():
    model, (x, edge_index, _) = layer(), inputs()
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    for _ in range(2):
        optimizer.zero_grad()
        model(x, edge_index).square().sum().backward()
        optimizer.step()
    out, want = step(model, (x, edge_index))
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert projects(other, x, edge_index)
        again, found = step(other, (x, edge_index))
        assert torch.equal(again, out) and all(torch.equal(found[name], grad) for name, grad in want.items())


# Behind an epilogue ------------------------------------------------------------------------------------------------


@pytest.fixture
def fused():
    """Small tensors take fused ops."""
    if native.library is None:
        pytest.skip("containers fuse epilogues only with kernels")
    with forced(least=1):
        yield


def container(recipe="tango", **given):
    """Its activation has no kink, over which rounding would carry a number."""
    torch.manual_seed(3)
    settings = {"act": "elu", "heads": HEADS, "norm": "batch_norm", "dropout": 0.3} | given
    model = pyg.GAT(COLUMNS, HEADS * WIDTH, 3, 5, **settings)
    gs.lighten_(model, recipe)
    return model


@pytest.mark.parametrize("given", [{}, {"concat": False, "heads": 3}, {"edge_dim": 3}], ids=str)
def test_a_container_projects_its_epilogues(given, fused):
    """Both convolutions but the last, which is in float32; dh of the second goes through the epilogue as rows, too."""
    model, (x, edge_index, attr) = container(NEAREST, **given), inputs(requires_grad=True)
    more = {"edge_attr": attr} if "edge_dim" in given else {}

    def run(x):
        return model(x, edge_index, **more)

    run.named_parameters = model.named_parameters
    with GatCalls() as calls:
        step(run, (x,))
    assert calls.names.count("int8_linear_heads") == 2 and calls.as_rows == [True, True]
    assert "epilogue_rows" in calls.names
    out, found = step(run, (x,))
    unprojected(model)
    with GatCalls() as calls:
        whole, want = step(run, (x,))
    assert not calls.projects and calls.as_rows == [False, False]
    assert float((out - whole).norm()) < 1e-2 * float(whole.norm())  # another order of sums: a code may differ
    top = max(float(grad.norm()) for grad in want.values())
    for name, grad in want.items():  # a bias before a batch norm has no gradient but what rounding leaves
        assert float(grad.norm()) < 1e-3 * top or cosine(found[name], grad) > 0.99, name


def test_an_epilogue_delivers_what_softmax_needs(fused):
    """Products of gradients and results; without them the sum is recomputed, to the same gradients."""
    model, given = container(NEAREST, dropout=0.0), inputs()[:2]
    with GatCalls() as calls:
        _, found = step(model, given)
    assert "gat_dots_int8" not in calls.names
    with forced(requests=False), GatCalls() as calls:
        _, want = step(model, given)
    assert calls.names.count("gat_dots_int8") == 2
    top = max(float(grad.norm()) for grad in want.values())
    for name, grad in want.items():
        assert float(grad.norm()) < 1e-4 * top or cosine(found[name], grad) > 0.9999, name


def test_a_listener_gets_the_epilogues_result(fused):
    model, (x, edge_index, _) = container(), inputs()
    heard = []
    model.convs[1].lin.register_forward_pre_hook(lambda module, args: heard.append(args[0].shape))
    with GatCalls() as calls:
        model(x, edge_index)
    assert heard == [(NODES, HEADS * WIDTH)] and calls.names.count("int8_linear_heads") == 1


@pytest.mark.skipif(native.library is None, reason="torch orders a sum by its threads")
def test_the_same_bits_by_any_number_of_threads():
    """Three steps of a container, at a size where threads share the work."""
    graph = random_graph(3000, 3000, 20000)
    (x,) = tensors((3000, 24))
    x = x.detach()
    results = []
    for threads in (1, 2):
        torch.set_num_threads(threads)
        torch.manual_seed(1)
        model = pyg.GAT(24, 32, 3, 5, heads=4, norm="batch_norm", dropout=0.3)
        gs.lighten_(model, "tango")
        begin_anew()
        optimizer, losses = torch.optim.SGD(model.parameters(), 0.05), []
        for _ in range(3):
            optimizer.zero_grad()
            out = model(x, graph.edge_index)
            nn.functional.cross_entropy(out, torch.arange(3000) % 5).backward()
            optimizer.step()
            losses.append(out.detach())
        results.append([*losses, *model.state_dict().values(), *(p.grad for p in model.parameters())])
    for one, two in zip(*results, strict=True):
        assert torch.equal(one, two)
