from __future__ import annotations

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck
from torch.library import opcheck

from gossamer.ops import OPS, sddmm
from support import graphs
from support.compare import assert_sums_agree, on_baseline, same_bits, with_gradients
from support.tensors import rand


def on(graph, op, heads):
    return lambda a, b: op(graph.rowptr, graph.col, a, b, heads, None, None, None)


@pytest.mark.parametrize("name", graphs.GRAPHS)
def test_equals_the_reference(name, isa):
    graph = graphs.graph(name)
    terms = max(graph.max_degree, graph.t().max_degree, max(graphs.COLUMNS))
    for columns in graphs.COLUMNS:
        inputs = [rand(graph.num_dst, columns), rand(graph.num_src, columns, seed=1)]
        for heads in {1, graphs.HEADS[columns]}:
            pair = (on(graph, op, heads) for op in (OPS["sddmm"], OPS["sddmm"].reference))
            assert_sums_agree(*pair, inputs, terms)


def test_same_bits_for_every_instruction_set_and_thread_count(isa, threads):
    graph = graphs.graph("power law")
    for width in (65, 32, 7):  # with and without a tail, two vectors, only a tail

        def run(shape=(400, 2, width)):
            out, grads = with_gradients(lambda a, b: sddmm(graph, a, b), [rand(*shape), rand(*shape, seed=1)])
            return out, *grads

        assert same_bits(run(), on_baseline(run))


def test_gradcheck():
    graph = graphs.small()
    a, b = (rand(n, 4, seed=n, dtype=torch.float64).requires_grad_() for n in (4, 5))
    for heads in (1, 2):
        assert gradcheck(on(graph, OPS["sddmm"], heads), (a, b))
        assert gradgradcheck(on(graph, OPS["sddmm"], heads), (a, b), fast_mode=True)


@pytest.mark.parametrize("name", ["power law", "bipartite, few sources", "no nodes", "no edges", "no destinations"])
@pytest.mark.parametrize("shape", [(), (0,), (5,), (2, 3)])
def test_function_on_graphs(name, shape):
    graph = graphs.graph(name)
    if not shape:
        with pytest.raises(ValueError, match="`a` and `b`"):
            sddmm(graph, rand(graph.num_dst), rand(graph.num_src))
        return
    a, b = rand(graph.num_dst, *shape), rand(graph.num_src, *shape, seed=1)
    out, (da, db) = with_gradients(lambda a, b: sddmm(graph, a, b), [a, b])
    src, dst = graph.edge_index
    want, (want_da, want_db) = with_gradients(lambda a, b: (a[dst] * b[src]).sum(-1), [a, b])
    for got, expected in ((out, want), (da, want_da), (db, want_db)):
        torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-4)  # sums of up to 500 terms of size 1


def test_gradient_on_a_transposed_graph():
    graph = graphs.graph("star").t()
    inputs = [rand(300, 3), rand(300, 3, seed=1)]
    _, (_, db) = with_gradients(lambda a, b: sddmm(graph, a, b), inputs, lambda out: rand(*out.shape, seed=2))
    _, (_, want) = with_gradients(
        lambda a, b: on(graph, OPS["sddmm"].reference, 1)(a, b).squeeze(1), inputs, lambda out: rand(*out.shape, seed=2)
    )
    torch.testing.assert_close(db, want)


def test_opcheck():
    graph = graphs.small()
    t, a, b = graph.t(), rand(4, 4).requires_grad_(), rand(5, 4).requires_grad_()
    opcheck(OPS["sddmm"].overload, (graph.rowptr, graph.col, a, b, 2, None, None, None))
    opcheck(OPS["sddmm"].overload, (graph.rowptr, graph.col, a, b.detach(), 1, t.rowptr, t.col, graph.t_perm))


G = graphs.small()


@pytest.mark.parametrize(
    "error, name, a, b",
    [
        (ValueError, "`a`.*num_dst = 4", rand(5, 3), rand(5, 3)),
        (ValueError, "`b`.*5 source nodes", rand(4, 3), rand(4, 3)),
        (ValueError, "`a` and `b`", rand(4, 3), rand(5, 4)),
        (ValueError, "`a` and `b`", rand(4, 3), rand(5, 3, 1)),
        (ValueError, "`a` and `b`", rand(4, 3, 1, 1), rand(5, 3, 1, 1)),
        (TypeError, "`a`.*bfloat16", rand(4, 3).bfloat16(), rand(5, 3).bfloat16()),
        (TypeError, "`b`.*float64", rand(4, 3), rand(5, 3).double()),
    ],
)
def test_bad_arguments(error, name, a, b):
    with pytest.raises(error, match=name):
        sddmm(G, a, b)


@pytest.mark.parametrize("heads", [0, -1, 2])
def test_bad_heads(heads):
    with pytest.raises(ValueError, match="`heads`"):
        OPS["sddmm"](G.rowptr, G.col, rand(4, 3), rand(5, 3), heads, None, None, None)
