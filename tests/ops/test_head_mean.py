from __future__ import annotations

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck
from torch.library import opcheck

from gossamer import Graph
from gossamer.ops import OPS, head_mean_spmm, spmm
from support import graphs
from support.compare import assert_sums_agree, on_baseline, random_cotangent, same, same_bits, with_gradients
from support.tensors import rand

SIZES = ((1, 1), (3, 0), (4, 7), (2, 16), (3, 17), (4, 40), (1, 64), (2, 70), (5, 130))  # heads and width
NO_TRANSPOSE = (None, None, None)
G = graphs.small()  # 5 sources, 4 destinations, 7 edges


def on(graph, op):
    """`op` as a function of x, the weights and, if given, the bias."""
    return lambda x, value, bias=None: op(graph.rowptr, graph.col, value, x, bias, *NO_TRANSPOSE)


def inputs(graph, heads, width, dtype=torch.float32):
    value = rand(graph.num_edges, heads, seed=1, dtype=dtype)
    return [rand(graph.num_src, heads * width, dtype=dtype), value, rand(width, seed=2, dtype=dtype)]


@pytest.mark.parametrize("name", graphs.GRAPHS)
def test_equals_the_reference(name, isa):
    graph = graphs.graph(name)
    degree = max(graph.max_degree, graph.t().max_degree)
    for turn, (heads, width) in enumerate(SIZES):
        given = inputs(graph, heads, width)[: 3 if turn % 2 else 2]
        pair = (on(graph, op) for op in (OPS["head_mean_spmm"], OPS["head_mean_spmm"].reference))
        assert_sums_agree(*pair, given, degree * heads + width)


def test_equals_a_sum_and_a_mean():
    graph = graphs.graph("power law")
    x, value, bias = inputs(graph, 3, 5, torch.float64)

    def apart(x, value, bias):
        return spmm(graph, x.view(-1, 3, 5), value).mean(1) + bias

    given = [x, value, bias]
    got = with_gradients(lambda *a: head_mean_spmm(graph, *a), given, random_cotangent)
    torch.testing.assert_close(got, with_gradients(apart, given, random_cotangent))
    by_head = with_gradients(lambda x, *a: head_mean_spmm(graph, x.view(-1, 3, 5), *a), given, random_cotangent)
    assert same(by_head[0], got[0])


def test_same_bits_for_every_instruction_set_and_thread_count(isa, threads):
    graph = graphs.graph("power law")
    for heads, width in ((4, 40), (3, 7), (2, 70)):

        def run(heads=heads, width=width):
            given = inputs(graph, heads, width)
            out, grads = with_gradients(lambda *a: head_mean_spmm(graph, *a), given, random_cotangent)
            return out, *grads

        assert same_bits(run(), on_baseline(run))


@pytest.mark.parametrize("learned", [(True, False), (False, True)])
@pytest.mark.parametrize("name", ["star", "reversed star", "isolated nodes"])
def test_one_gradient_alone_equals_that_of_both(name, learned, isa):
    """Of rows with hundreds of edges and of nodes without any, in one pass or with half of it left out."""
    graph = graphs.graph(name)
    given = inputs(graph, 2, 40)[:2]
    _, both = with_gradients(lambda *a: head_mean_spmm(graph, *a), given, random_cotangent)
    leaves = [t.clone().requires_grad_(wanted) for t, wanted in zip(given, learned, strict=True)]
    out = head_mean_spmm(graph, *leaves)
    (alone,) = torch.autograd.grad(out, [t for t in leaves if t.requires_grad], random_cotangent(out.detach()))
    assert same_bits(alone, both[learned.index(True)])


@pytest.mark.parametrize("width", [7, 17, 40])
def test_infinity_in_one_column_is_not_nan_in_others(width, isa):
    """Columns that two vectors share count once, and lanes beyond a row count for nothing."""
    graph = Graph.from_edge_index(torch.tensor([[0], [0]]), 1)
    x, value = torch.ones(1, 2 * width), torch.ones(1, 2)
    for column in range(width):
        dout = torch.zeros(1, width)
        dout[0, column] = torch.inf
        t = graph.t()
        dx, dvalue = OPS["head_mean_backward"](t.rowptr, t.col, graph.t_perm, value, x, dout, True)
        assert torch.equal(dvalue, torch.full((1, 2), torch.inf))
        assert torch.equal(dx, torch.cat([dout, dout], 1))


def test_nan_stays_in_its_rows(isa):
    graph = graphs.graph("power law")
    for turn in range(2):
        given = inputs(graph, 4, 20)[:2]
        given[turn][3, 1] = torch.nan
        pair = (OPS["head_mean_spmm"], OPS["head_mean_spmm"].reference)
        (out, grads), (want, want_grads) = (with_gradients(on(graph, op), given, random_cotangent) for op in pair)
        assert out.isnan().any() and same(out.isnan(), want.isnan())
        assert all(same(a.isnan(), b.isnan()) for a, b in zip(grads, want_grads, strict=True))


def test_gradcheck():
    given = [t.requires_grad_() for t in inputs(G, 2, 3, torch.float64)]
    assert gradcheck(on(G, OPS["head_mean_spmm"]), given)
    assert gradcheck(lambda *a: head_mean_spmm(G, *a), given)
    assert gradgradcheck(lambda *a: head_mean_spmm(G, *a), given, fast_mode=True)


def test_a_given_transpose_changes_nothing():
    """The function on graphs passes the cached transpose; the op alone makes its own."""
    graph = graphs.graph("bipartite, few sources")
    got = with_gradients(lambda *a: head_mean_spmm(graph, *a), inputs(graph, 2, 9), random_cotangent)
    want = with_gradients(on(graph, OPS["head_mean_spmm"]), inputs(graph, 2, 9), random_cotangent)
    assert same_bits((got[0], *got[1]), (want[0], *want[1]))


def test_gradient_on_a_transposed_graph():
    """Its transpose is the first graph, whose edges stand in the order given."""
    graph = graphs.graph("star").t()
    got = with_gradients(lambda *a: head_mean_spmm(graph, *a), inputs(graph, 2, 3), random_cotangent)
    want = with_gradients(on(graph, OPS["head_mean_spmm"].reference), inputs(graph, 2, 3), random_cotangent)
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)  # a column of 299 numbers of size 1


def test_strides_change_nothing(isa):
    graph = graphs.graph("power law")
    given = inputs(graph, 3, 6)
    want, grads = with_gradients(on(graph, OPS["head_mean_spmm"]), given)
    strided = [torch.stack([t, t], -1)[..., 0].requires_grad_() for t in given]
    for function in (on(graph, OPS["head_mean_spmm"]), lambda *a: head_mean_spmm(graph, *a)):
        out = function(*strided)
        got = torch.autograd.grad(out, strided, torch.ones(6, len(out)).t())
        assert same_bits((out, *got), (want, *grads))


@pytest.mark.parametrize("learned", [False, True])
def test_rows_are_kept_only_if_weights_are_learned(learned):
    graph = graphs.graph("power law")
    x, value, _ = inputs(graph, 2, 8)
    held = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: held.append(t) or t, lambda t: t):
        head_mean_spmm(graph, x.requires_grad_(), value.requires_grad_(learned))
    own = {t.data_ptr() for t in (graph.rowptr, graph.col, graph.t().rowptr, graph.t().col, graph.t_perm, value)}
    assert {t.data_ptr() for t in held} - own == ({x.data_ptr()} if learned else set())


def test_opcheck():
    t = G.t()
    x, value, bias = (a.requires_grad_() for a in inputs(G, 2, 3))
    opcheck(OPS["head_mean_spmm"].overload, (G.rowptr, G.col, value, x, None, *NO_TRANSPOSE))
    opcheck(OPS["head_mean_spmm"].overload, (G.rowptr, G.col, value, x, bias, t.rowptr, t.col, G.t_perm))
    backward = (t.rowptr, t.col, G.t_perm, value.detach())
    for rows, needs_dx in ((x.detach(), True), (None, True), (x.detach(), False)):
        opcheck(OPS["head_mean_backward"].overload, (*backward, rows, rand(4, 3), needs_dx))


@pytest.mark.parametrize(
    "error, name, x, value, bias",
    [
        (ValueError, "`x`.*5 source nodes", rand(4, 6), rand(7, 2), None),
        (TypeError, "`x`.*bfloat16", rand(5, 6).bfloat16(), rand(7, 2), None),
        (ValueError, "`value`.*nnz = 7", rand(5, 6), rand(6, 2), None),
        (ValueError, "`value`.*nnz = 7", rand(5, 6), rand(7), None),
        (ValueError, "`value`.*6 columns.*got 4", rand(5, 6), rand(7, 4), None),
        (ValueError, "`value`.*at least one head", rand(5, 6), rand(7, 0), None),
        (ValueError, "`value`.*2 heads of x.*got 3", rand(5, 2, 3), rand(7, 3), None),
        (TypeError, "`value`.*float64", rand(5, 6), rand(7, 2).double(), None),
        (ValueError, "`bias`", rand(5, 6), rand(7, 2), rand(6)),
        (TypeError, "`bias`.*float64", rand(5, 6), rand(7, 2), rand(3).double()),
    ],
)
def test_bad_arguments(error, name, x, value, bias):
    with pytest.raises(error, match=name):
        head_mean_spmm(G, x, value, bias)


def test_positions_that_are_no_permutation_are_refused():
    t, (x, value, _) = G.t(), inputs(G, 2, 3)

    def run(perm):
        return OPS["head_mean_backward"](t.rowptr, t.col, perm, value, x, rand(4, 3), True)

    perm = G.t_perm.clone()
    run(perm)
    perm[0] = perm[1]  # noticed, though it has been checked once
    with pytest.raises(ValueError, match="`perm` must hold each position once"):
        run(perm)
    with pytest.raises(IndexError, match="`perm`"):
        run(G.t_perm + 1)
    with pytest.raises(ValueError, match="`perm`"):
        run(G.t_perm[1:])


@pytest.mark.parametrize("name", ["power law", "star", "reversed star", "bipartite, few destinations"])
def test_rows_of_dout_that_are_zero_are_skipped_with_the_same_result(name, isa):
    graph = graphs.graph(name)
    t = graph.t()
    for heads, width in ((4, 40), (3, 7), (2, 70)):
        x, value, _ = inputs(graph, heads, width)
        dout = rand(graph.num_dst, width, seed=5) * (torch.arange(graph.num_dst) % 3 == 0).unsqueeze(1)
        given = (t.rowptr, t.col, graph.t_perm, value, x, dout, True)
        whole = OPS["head_mean_backward"](*given)
        assert same(OPS["head_mean_backward"](*given, (dout != 0).any(1)), whole)
        assert same(
            OPS["head_mean_backward"].reference(*given, (dout != 0).any(1)), OPS["head_mean_backward"].reference(*given)
        )
