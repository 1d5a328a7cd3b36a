"""What is added to a neighbour sum in the same pass: root times the node's own row, other rows, a bias."""

from __future__ import annotations

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

from gossamer import Graph
from gossamer.ops import OPS, spmm
from support import graphs
from support.compare import assert_sums_agree, on_baseline, random_cotangent, same_bits, with_gradients
from support.spmm import ENDS
from support.tensors import rand


def run(graph, op, ends, scales=False):
    """`op` as a function of x and then of the bias and the rows that `ends` asks for."""
    src_scale, dst_scale = (rand(n, seed=s).abs() for n, s in ((graph.num_src, 1), (graph.num_dst, 2)))
    scaled = (src_scale, dst_scale) if scales else (None, None)

    def function(x, *given):
        named = dict(zip([name for name in ("bias", "rows") if name in ends], given, strict=True))
        root = 1.7 if "root" in ends else 0.0
        weights = (graph.rowptr, graph.col, None, *scaled)
        return op(*weights, x, named.get("bias"), root, named.get("rows"), None, None, None, None)

    return function


def operands(graph, columns, ends):
    shapes = {"bias": (columns,), "rows": (graph.num_dst, columns)}
    return [rand(graph.num_src, columns), *(rand(*shapes[name], seed=5) for name in shapes if name in ends)]


@pytest.mark.parametrize("name", graphs.GRAPHS)
def test_equals_the_reference(name, isa):
    """Forward and the gradients of x, bias and rows, for every combination; bias sums dout over all rows."""
    graph = graphs.graph(name)
    terms = max(graph.max_degree, graph.t().max_degree, graph.num_dst)
    square = graph.num_src == graph.num_dst
    for turn, columns in enumerate(graphs.COLUMNS, start=graphs.GRAPHS.index(name)):
        for ends in (ENDS[turn % 8], ENDS[(turn + 3) % 8]):
            ends = ends if square else ends - {"root"}
            pair = (run(graph, op, ends, turn % 2 == 0) for op in (OPS["spmm"], OPS["spmm"].reference))
            assert_sums_agree(*pair, operands(graph, columns, ends), terms)


@pytest.mark.parametrize("reduce", ["sum", "mean", "max"])
def test_equals_separate_additions(reduce):
    """The function on graphs, also for the maximum, in float64."""
    graph = graphs.graph("power law")
    x, bias, rows = rand(400, 7), rand(7, seed=1), rand(400, 7, seed=2)
    given = [t.double() for t in (x, bias, rows)]
    got = with_gradients(
        lambda x, b, r: spmm(graph, x, reduce=reduce, bias=b, root=-0.5, rows=r), given, random_cotangent
    )
    want = with_gradients(lambda x, b, r: spmm(graph, x, reduce=reduce) - 0.5 * x + r + b, given, random_cotangent)
    torch.testing.assert_close(got, want)


def test_same_bits_for_every_instruction_set_and_thread_count(isa, threads):
    graph = graphs.graph("power law")
    for dtype in (torch.float32, torch.bfloat16):
        for columns in (130, 16):
            given = [rand(400, columns).to(dtype), rand(columns, seed=1), rand(400, columns, seed=2).to(dtype)]

            def together(given=given):
                out, grads = with_gradients(
                    lambda x, b, r: spmm(graph, x, bias=b, root=1.5, rows=r), given, random_cotangent
                )
                return out, *grads

            assert same_bits(together(), on_baseline(together))


def test_bfloat16_is_rounded_once(isa):
    graph = graphs.graph("star")
    for columns in (7, 16, 130):
        x, rows = rand(300, columns).bfloat16(), rand(300, columns, seed=1).bfloat16()
        bias = rand(columns, seed=2)
        out = spmm(graph, x, bias=bias, root=1.5, rows=rows)
        wide = spmm(graph, x.float(), bias=bias, root=1.5, rows=rows.float())
        assert out.dtype == torch.bfloat16 and torch.equal(out, wide.bfloat16())


def test_ends_may_have_another_float_type(isa):
    """They are added in float32, and their gradients come back in their own type."""
    graph = graphs.graph("power law")
    x, bias, rows = rand(400, 17), rand(17, seed=1), rand(400, 17, seed=2).bfloat16()
    for reduce in ("sum", "max"):
        out, (_, dbias, drows) = with_gradients(
            lambda x, b, r, reduce=reduce: spmm(graph, x, reduce=reduce, bias=b, rows=r), [x, bias.double(), rows]
        )
        assert (out.dtype, dbias.dtype, drows.dtype) == (torch.float32, torch.float64, torch.bfloat16)
        assert torch.equal(drows, torch.ones_like(rows)) and torch.equal(dbias, torch.full_like(dbias, 400))
        torch.testing.assert_close(out, spmm(graph, x, reduce=reduce) + rows.float() + bias)


def test_heads(isa):
    """Rows may come as x does; bias has one number for each column of all heads."""
    graph = graphs.graph("power law")
    x, rows, bias, value = rand(400, 2, 9), rand(400, 2, 9, seed=1), rand(18, seed=2), rand(graph.num_edges, 2, seed=3)
    out = spmm(graph, x, value, bias=bias, root=2.0, rows=rows)
    want = spmm(graph, x, value) + 2.0 * x + rows + bias.view(2, 9)
    torch.testing.assert_close(out, want, rtol=1e-5, atol=1e-5)
    assert torch.equal(out, spmm(graph, x, value, bias=bias, root=2.0, rows=rows.flatten(1)))


def test_strides_change_nothing(isa):
    graph = graphs.graph("power law")
    x, bias, rows = rand(400, 17), rand(17, seed=1), rand(400, 17, seed=2)
    wide = [torch.stack([t, t], -1)[..., 0] for t in (x, bias, rows)]
    want = spmm(graph, x, bias=bias, root=1.5, rows=rows)
    assert torch.equal(spmm(graph, wide[0], bias=wide[1], root=1.5, rows=wide[2]), want)


def test_nodes_without_edges_get_what_is_added(isa):
    for name in ("no edges", "isolated nodes", "one node"):
        graph = graphs.graph(name)
        x, bias, rows = rand(graph.num_src, 17), rand(17, seed=1), rand(graph.num_dst, 17, seed=2)
        alone = graph.degree == 0
        for reduce in ("sum", "mean", "max"):
            out = spmm(graph, x, reduce=reduce, bias=bias, root=0.5, rows=rows)
            assert torch.equal(out[alone], (0.5 * x + rows + bias)[alone])


def test_special_numbers_stay_where_they_are(isa):
    graph = graphs.graph("self-loops")
    x, bias, rows = torch.zeros(6, 17), torch.zeros(17), torch.zeros(6, 17)
    bias[3], rows[2, 4], rows[1, 16] = torch.nan, torch.inf, torch.nan
    out = spmm(graph, x, bias=bias, rows=rows, root=1.0)
    assert out[:, 3].isnan().all() and out[2, 4] == torch.inf and out[1, 16].isnan()
    assert int((~out.isfinite()).sum()) == 6 + 2


def test_gradcheck():
    graph = Graph.from_edge_index(torch.tensor([[3, 1, 0, 3, 3, 0], [0, 0, 2, 2, 2, 1]]), 4)
    x, bias, rows = (rand(*s, dtype=torch.float64).requires_grad_() for s in ((4, 3), (3,), (4, 3)))
    assert gradcheck(lambda x, b, r: spmm(graph, x, bias=b, root=0.7, rows=r), (x, bias, rows))
    assert gradgradcheck(lambda x, r: spmm(graph, x, root=0.7, rows=r), (x, rows))


def test_nothing_but_the_graph_is_kept_for_backward():
    graph = graphs.graph("power law")
    x, bias, rows = (t.requires_grad_() for t in (rand(400, 8), rand(8), rand(400, 8)))
    held = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: held.append(t) or t, lambda t: t):
        spmm(graph, x, bias=bias, root=2.0, rows=rows)
    own = {t.data_ptr() for t in (graph.rowptr, graph.col, graph.t().rowptr, graph.t().col, graph.t_perm)}
    assert {t.data_ptr() for t in held} <= own


G = graphs.small()  # 5 sources, 4 destinations


@pytest.mark.parametrize("reduce", ["sum", "mean", "max"])
@pytest.mark.parametrize(
    "error, message, ends",
    [
        (TypeError, "`bias`.*float32 or float64.*int64", {"bias": torch.ones(3, dtype=torch.int64)}),
        (ValueError, r"`bias`.*\[3\], one number per column.*\(1,\)", {"bias": rand(1)}),
        (ValueError, r"`bias`.*\[3\].*\(4, 3\)", {"bias": rand(4, 3)}),
        (TypeError, "`rows`.*float16", {"rows": rand(4, 3).half()}),
        (ValueError, r"`rows`.*\(4, 3\), one row per destination.*\(5, 3\)", {"rows": rand(5, 3)}),
        (ValueError, r"`rows`.*\(4, 3\).*\(3,\)", {"rows": rand(3)}),
        (ValueError, r"`rows`.*\(4, 3\).*\(1, 3\)", {"rows": rand(1, 3)}),
        (ValueError, "`root` needs as many sources as destinations .got 5 and 4.; add the", {"root": 1.0}),
    ],
)
def test_bad_arguments(reduce, error, message, ends):
    with pytest.raises(error, match=message):
        spmm(G, rand(5, 3), reduce=reduce, **ends)
