from __future__ import annotations

import pytest
import torch
from torch.autograd import gradcheck
from torch.nn import functional

from gossamer import Graph
from gossamer.ops import OPS, gatv2_logits
from support import graphs
from support.compare import UNIT, on_baseline, random_cotangent, same, same_bits, with_gradients
from support.tensors import rand

SLOPES = (0.2, 0.0, 1.0, -0.5)


def operands(graph, columns, heads, dtype=torch.float32):
    shapes = ((graph.num_src, columns), (graph.num_dst, columns), (heads, columns // heads))
    return [rand(*shape, seed=k, dtype=dtype) for k, shape in enumerate(shapes)]


def on(graph, op, slope=0.2):
    return lambda x_src, x_dst, att: op(graph.rowptr, graph.col, x_src, x_dst, att, slope, None, None, None)


def pyg(graph, slope=0.2):
    """torch_geometric.nn.GATv2Conv.edge_update."""
    src, dst = graph.edge_index

    def formula(x_src, x_dst, att):
        x = (x_dst[dst] + x_src[src]).view(len(src), *att.shape)
        return (functional.leaky_relu(x, slope) * att).sum(-1)

    return formula


def sizes(graph, tensors, slope):
    """What the terms of each sum add up to in size: of the logits, dx_src, dx_dst and datt."""
    x_src, x_dst, att = (t.double().abs() for t in tensors)
    steep, (src, dst) = max(1.0, abs(slope)), graph.edge_index
    s = steep * (x_src[src] + x_dst[dst]).view(len(src), *att.shape)
    logits = (s * att).sum(-1)
    dl = random_cotangent(logits.float()).double().abs().unsqueeze(-1)
    per_edge = (steep * dl * att).flatten(1)
    rows = [torch.zeros_like(x).index_add(0, at, per_edge) for x, at in ((x_src, src), (x_dst, dst))]
    return logits, *rows, (dl * s).sum(0)


@pytest.mark.parametrize("name", graphs.GRAPHS)
def test_equals_the_reference(name, isa):
    """x_src + x_dst rounds once, alike on both sides, so both take the same side of the kink."""
    graph = graphs.graph(name)
    terms = max(graph.max_degree, graph.t().max_degree, max(graphs.COLUMNS))
    for turn, columns in enumerate(graphs.COLUMNS, start=graphs.GRAPHS.index(name)):
        slope = SLOPES[turn % 4]
        for heads in {1, graphs.HEADS[columns]}:
            given = operands(graph, columns, heads)
            (out, grads), (want, want_grads) = (
                with_gradients(on(graph, op, slope), given, random_cotangent)
                for op in (OPS["gatv2_logits"], OPS["gatv2_logits"].reference)
            )
            for k, (a, b, size) in enumerate(
                zip((out, *grads), (want, *want_grads), sizes(graph, given, slope), strict=True)
            ):
                count = graph.num_edges if k == 3 else terms  # att's gradient is a sum over all edges
                assert a.shape == b.shape
                assert ((a.double() - b.double()).abs() <= 2 * (count + 8) * UNIT * size).all(), (k, columns, heads)


@pytest.mark.parametrize("heads", [1, 4])
def test_equals_pygs_formula(heads):
    graph = graphs.graph("power law")
    given = operands(graph, 64, heads, torch.float64)
    got, want = (with_gradients(f, given, random_cotangent) for f in (lambda *a: gatv2_logits(graph, *a), pyg(graph)))
    torch.testing.assert_close(got, want)
    near, _ = with_gradients(lambda *a: gatv2_logits(graph, *a), [t.float() for t in given], random_cotangent)
    torch.testing.assert_close(near.double(), want[0], rtol=1e-5, atol=1e-4)  # sums of 64 terms of size 1


@pytest.mark.parametrize("rows", [255, 256, 257, 513])
def test_att_is_summed_in_chunks_of_rows(rows, isa):
    rng = torch.Generator().manual_seed(rows)
    graph = Graph.from_edge_index(torch.randint(0, rows, (2, 3 * rows), generator=rng), rows)
    given = operands(graph, 17, 1)
    _, (_, _, datt) = with_gradients(lambda *a: gatv2_logits(graph, *a), given, random_cotangent)
    _, (_, _, want) = with_gradients(pyg(graph), given, random_cotangent)
    assert ((datt - want).abs() <= 2 * (graph.num_edges + 8) * UNIT * sizes(graph, given, 0.2)[3]).all()


def test_same_bits_for_every_instruction_set_and_thread_count(isa, threads):
    graph = graphs.graph("power law")
    for columns, heads in ((64, 4), (130, 2), (7, 7)):

        def run(columns=columns, heads=heads):
            given = operands(graph, columns, heads)
            out, grads = with_gradients(lambda *a: gatv2_logits(graph, *a), given, random_cotangent)
            return out, *grads

        assert same_bits(run(), on_baseline(run))


def test_a_given_transpose_changes_nothing():
    """Of a transposed graph it is the first graph, whose edges are in another order: the sums are near."""
    for graph, agree in (
        (graphs.graph("bipartite, few sources"), lambda a, b: same_bits((a[0], *a[1]), (b[0], *b[1]))),
        (graphs.graph("star").t(), lambda a, b: torch.testing.assert_close(a, b) is None),
    ):
        given = operands(graph, 16, 2)
        got = with_gradients(lambda *a, graph=graph: gatv2_logits(graph, *a), given, random_cotangent)
        assert agree(got, with_gradients(on(graph, OPS["gatv2_logits"]), given, random_cotangent))


def test_gradcheck():
    graph = graphs.small()
    for heads in (1, 2):
        leaves = [t.requires_grad_() for t in operands(graph, 4, heads, torch.float64)]
        assert gradcheck(on(graph, OPS["gatv2_logits"]), leaves)
        assert gradcheck(lambda *a: gatv2_logits(graph, *a), leaves)


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_nan_and_infinity_stay_visible(bad, isa):
    graph = graphs.graph("power law")
    for part in range(3):
        given = operands(graph, 34, 2)
        given[part][0, 3] = bad
        (out, grads), (want, want_grads) = (
            with_gradients(on(graph, op), given, random_cotangent)
            for op in (OPS["gatv2_logits"], OPS["gatv2_logits"].reference)
        )
        assert same(out.isfinite(), want.isfinite()) and not out.isfinite().all()
        assert out[:, 1].isfinite().all()  # the other head
        for got, expected in zip(grads, want_grads, strict=True):
            assert same(got.isfinite(), expected.isfinite())


def test_strides_change_nothing(isa):
    graph = graphs.graph("power law")
    given = operands(graph, 34, 2)
    want, grads = with_gradients(on(graph, OPS["gatv2_logits"]), given)
    strided = [torch.stack([t, t], -1)[..., 0].requires_grad_() for t in given]
    for function in (on(graph, OPS["gatv2_logits"]), lambda *a: gatv2_logits(graph, *a)):
        out = function(*strided)
        got = torch.autograd.grad(out, strided, torch.ones(2, len(out)).t())
        assert same_bits((out, *got), (want, *grads))


def test_only_rows_and_graph_are_kept():
    graph = graphs.graph("power law")
    held, given = [], [t.requires_grad_() for t in operands(graph, 16, 2)]
    with torch.autograd.graph.saved_tensors_hooks(lambda t: held.append(t) or t, lambda t: t):
        gatv2_logits(graph, *given)
    t = graph.t()
    own = {a.data_ptr() for a in (graph.rowptr, graph.col, t.rowptr, t.col, graph.t_perm, *given)}
    assert {a.data_ptr() for a in held} <= own
