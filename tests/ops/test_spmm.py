from __future__ import annotations

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck
from torch.library import opcheck

from gossamer import Graph
from gossamer.ops import OPS, spmm
from support import graphs
from support.compare import UNIT, assert_sums_agree, on_baseline, same_bits, with_gradients
from support.spmm import NO_TRANSPOSE
from support.tensors import rand


def on(graph: Graph, op, scales: bool = False):
    """`op` as a function of x and, if given, the edge weights."""
    src_scale = rand(graph.num_src, seed=1).abs() if scales else None
    dst_scale = rand(graph.num_dst, seed=2).abs() if scales else None
    return lambda x, value=None: op(graph.rowptr, graph.col, value, src_scale, dst_scale, x, *NO_TRANSPOSE)


@pytest.mark.parametrize("name", graphs.GRAPHS)
def test_equals_the_reference(name, isa):
    """Forward, and the gradients of x and of the weights: without weights, with one per edge, with one per head."""
    graph = graphs.graph(name)
    terms = max(graph.max_degree, graph.t().max_degree, max(graphs.COLUMNS))
    for turn, columns in enumerate(graphs.COLUMNS, start=graphs.GRAPHS.index(name)):  # so that all pairs are met
        one, many = rand(graph.num_edges, seed=3), rand(graph.num_edges, graphs.HEADS[columns], seed=4)
        weights = ([], [one], [many])[turn % 3]
        pair = (on(graph, op, scales=turn % 2 == 0) for op in (OPS["spmm"], OPS["spmm"].reference))
        assert_sums_agree(*pair, [rand(graph.num_src, columns), *weights], terms)


def test_same_bits_for_every_instruction_set_and_thread_count(isa, threads):
    graph = graphs.graph("power law")
    for dtype in (torch.float32, torch.bfloat16):
        x, value = rand(graph.num_src, 130).to(dtype), rand(graph.num_edges, 2, seed=1)

        def run(x=x, value=value):
            return with_both(spmm, graph, x.view(-1, 2, 65), value)

        assert same_bits(run(), on_baseline(run))


def with_both(function, graph, x, value):
    out, grads = with_gradients(lambda x, value: function(graph, x, value), [x, value])
    return out, *grads


@pytest.mark.parametrize("columns", graphs.COLUMNS)
def test_bfloat16_rows_are_summed_in_float32(columns, isa):
    graph = graphs.graph("star")
    x, value = rand(graph.num_src, columns).bfloat16(), rand(graph.num_edges, seed=1)
    out = spmm(graph, x, value)
    wide = spmm(graph, x.float(), value)
    assert out.dtype == torch.bfloat16
    assert torch.equal(out, wide.bfloat16())  # so one rounding in all, to nearest even


def test_bfloat16_keeps_nan_and_infinity(isa):
    graph = Graph.from_edge_index(torch.tensor([[0, 1, 2], [0, 1, 2]]), 3)
    x = torch.tensor([torch.nan, torch.inf, -torch.inf]).bfloat16().repeat(17, 1).t().contiguous()
    out = spmm(graph, x)
    assert out[0].isnan().all() and torch.equal(out[1:], x[1:])


def test_gradcheck():
    graph = graphs.small()
    for shape in ((), (2,)):
        x, value = rand(5, 2, dtype=torch.float64), rand(graph.num_edges, *shape, seed=1, dtype=torch.float64)
        for scales in (False, True):
            function = on(graph, OPS["spmm"], scales)
            assert gradcheck(function, (x.requires_grad_(), value.requires_grad_()))
            assert gradgradcheck(function, (x, value), fast_mode=True)


@pytest.mark.parametrize("reduce", ["sum", "mean"])
def test_a_given_transpose_changes_nothing(reduce):
    """The function on graphs passes the cached transpose; the op alone makes its own."""
    graph = graphs.graph("bipartite, few sources")
    x, value = rand(graph.num_src, 17), rand(graph.num_edges, seed=1)
    dst_scale = graph.inverse_degree if reduce == "mean" else None
    out, grads = with_gradients(lambda x, value: spmm(graph, x, value, reduce), [x, value])
    want, want_grads = with_gradients(
        lambda x, value: OPS["spmm"](graph.rowptr, graph.col, value, None, dst_scale, x, *NO_TRANSPOSE), [x, value]
    )
    assert same_bits((out, *grads), (want, *want_grads))


def test_gradient_on_a_transposed_graph():
    """Its transpose is the first graph, whose edges stand in the order given: not sorted by source."""
    graph = graphs.graph("star").t()
    x, value = rand(graph.num_src, 3), rand(graph.num_edges, seed=1)
    _, (dx, dvalue) = with_gradients(lambda x, value: spmm(graph, x, value), [x, value])
    _, (want_dx, want_dvalue) = with_gradients(on(graph, OPS["spmm"].reference), [x, value])
    torch.testing.assert_close(dx, want_dx)
    torch.testing.assert_close(dvalue, want_dvalue)


def test_graph_weights_and_mean_equal_a_dense_product():
    graph = graphs.graph("power law").gcn_norm()
    dense = torch.zeros(graph.num_dst, graph.num_src, dtype=torch.float64)
    dense.index_put_(tuple(graph.edge_index.flip(0)), graph.value.double(), accumulate=True)
    x = rand(graph.num_src, 16)
    bound = (graph.max_degree + 8) * UNIT * (dense.abs() @ x.double().abs())
    assert ((spmm(graph, x).double() - dense @ x.double()).abs() <= bound).all()
    mean = dense / graph.degree.clamp(min=1).unsqueeze(1)
    assert ((spmm(graph, x, reduce="mean").double() - mean @ x.double()).abs() <= bound).all()


@pytest.mark.parametrize("name", graphs.GRAPHS)
@pytest.mark.parametrize("shape", [(0,), (4,), (2, 3), (2, 0)])
def test_shapes_of_results(name, shape):
    graph = graphs.graph(name)
    x = rand(graph.num_src, *shape)
    for reduce in ("sum", "mean"):
        out = spmm(graph, x, reduce=reduce)
        assert out.shape == (graph.num_dst, *shape)
        assert torch.equal(out[graph.degree == 0], torch.zeros(int((graph.degree == 0).sum()), *shape))


def test_nothing_but_the_graph_is_kept_for_backward():
    graph, x = graphs.graph("power law"), rand(400, 64).requires_grad_()
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        spmm(graph, x)
    own = {t.data_ptr() for t in (graph.rowptr, graph.col, graph.t().rowptr, graph.t().col, graph.t_perm)}
    assert {t.data_ptr() for t in kept} <= own


@pytest.mark.parametrize("name", ["src_scale", "dst_scale"])
def test_a_scale_that_requires_grad_is_not_ignored(name):
    """A gradient, or an error; never silently none."""
    graph, x = graphs.small(), rand(5, 4)

    def run(op):
        scales = (lambda s: (s, None)) if name == "src_scale" else (lambda s: (None, s))
        size = graph.num_src if name == "src_scale" else graph.num_dst
        return with_gradients(
            lambda s: op(graph.rowptr, graph.col, None, *scales(s), x, *NO_TRANSPOSE), [torch.ones(size)]
        )

    want = run(OPS["spmm"].reference)
    try:
        got = run(OPS["spmm"])
    except (RuntimeError, ValueError) as error:
        assert f"`{name}`" in str(error)
    else:
        torch.testing.assert_close(got, want)


def test_opcheck():
    graph = graphs.small()
    t, x = graph.t(), rand(5, 4).requires_grad_()
    value = rand(graph.num_edges, 2).requires_grad_()
    opcheck(OPS["spmm"].overload, (graph.rowptr, graph.col, None, None, None, x, *NO_TRANSPOSE))
    scales = (torch.rand(5), torch.rand(4))
    ends = (rand(4).requires_grad_(), None, rand(4, 4).requires_grad_())
    transposed = (t.rowptr, t.col, graph.t_perm, None)
    opcheck(OPS["spmm"].overload, (graph.rowptr, graph.col, value, *scales, x, *ends, *transposed))
    square, own = graphs.graph("self-loops"), rand(6, 4).requires_grad_()
    for diagonal in (rand(6, seed=1), torch.tensor(1.5).expand(6)):
        ends = (None, diagonal, None, None, None, None, None)
        opcheck(OPS["spmm"].overload, (square.rowptr, square.col, None, None, None, own, *ends))
    half = x.detach().bfloat16().requires_grad_()
    opcheck(OPS["spmm"].overload, (graph.rowptr, graph.col, None, None, None, half, *NO_TRANSPOSE))


G = graphs.small()


@pytest.mark.parametrize(
    "error, name, x, options",
    [
        (ValueError, "`x`.*5 source nodes", rand(4, 3), {}),
        (ValueError, "`x`.*5 source nodes", rand(5), {}),
        (TypeError, "`x`.*float16", rand(5, 3).half(), {}),
        (TypeError, "`x`.*int64", rand(5, 3).long(), {}),
        (ValueError, "`value`.*nnz = 7", rand(5, 3), {"value": rand(6)}),
        (ValueError, "`value`.*nnz = 7", rand(5, 3), {"value": rand(1, 7)}),
        (ValueError, "`value`.*nnz = 7", rand(5, 3), {"value": rand(7, 1, 1)}),
        (ValueError, "`value`.*nnz = 7", rand(5, 3), {"value": torch.tensor(2.0)}),
        (TypeError, "`value`.*int64", rand(5, 3), {"value": torch.ones(7, dtype=torch.int64)}),
        (ValueError, "`value`.*heads.*3 columns.*got 2", rand(5, 3), {"value": rand(7, 2)}),
        (ValueError, "`value`.*heads.*3 columns.*got 0", rand(5, 3), {"value": rand(7, 0)}),
        (ValueError, "`reduce`.*got 'min'", rand(5, 3), {"reduce": "min"}),
    ],
)
def test_bad_arguments(error, name, x, options):
    with pytest.raises(error, match=name):
        spmm(G, x, **options)


@pytest.mark.parametrize("name, scales", [("`src_scale`", (rand(4), None)), ("`dst_scale`", (None, rand(5)))])
def test_bad_scales(name, scales):
    with pytest.raises(ValueError, match=name):
        OPS["spmm"](G.rowptr, G.col, None, *scales, rand(5, 3), *NO_TRANSPOSE)


@pytest.mark.parametrize("heads", [2, 8])
def test_weights_for_other_heads_are_refused(heads):
    graph = Graph.from_edge_index(torch.tensor([[0, 1], [1, 0]]), 2)
    with pytest.raises(ValueError, match=r"`value`.*4 heads.*got"):
        spmm(graph, torch.ones(2, 4, 16), value=torch.ones(2, heads))
