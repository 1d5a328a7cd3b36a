"""What is added to a neighbour sum in the same pass: a diagonal times the node's own row, other rows, a bias."""

from __future__ import annotations

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

from gossamer import Graph
from gossamer.ops import OPS, spmm
from support import graphs
from support.compare import assert_sums_agree, on_baseline, random_cotangent, same_bits, with_gradients
from support.spmm import DIAGONALS, ENDS, constant, varying
from support.tensors import rand


def run(graph, op, ends, scales=False, diagonal=varying):
    """`op` as a function of x and then of the bias and the rows that `ends` asks for."""
    src_scale, dst_scale = (rand(n, seed=s).abs() for n, s in ((graph.num_src, 1), (graph.num_dst, 2)))
    scaled = (src_scale, dst_scale) if scales else (None, None)

    def function(x, *given):
        named = dict(zip([name for name in ("bias", "rows") if name in ends], given, strict=True))
        own = diagonal(min(graph.num_src, graph.num_dst)) if "diagonal" in ends else None
        weights = (graph.rowptr, graph.col, None, *scaled)
        return op(*weights, x, named.get("bias"), own, named.get("rows"), None, None, None, None)

    return function


def operands(graph, columns, ends):
    shapes = {"bias": (columns,), "rows": (graph.num_dst, columns)}
    return [rand(graph.num_src, columns), *(rand(*shapes[name], seed=5) for name in shapes if name in ends)]


@pytest.mark.parametrize("name", graphs.GRAPHS)
def test_equals_the_reference(name, isa):
    """Forward and the gradients of x, bias and rows, for every combination; bias sums dout over all rows."""
    graph = graphs.graph(name)
    terms = max(graph.max_degree, graph.t().max_degree, graph.num_dst)
    for turn, columns in enumerate(graphs.COLUMNS, start=graphs.GRAPHS.index(name)):
        for ends in (ENDS[turn % 8], ENDS[(turn + 3) % 8]):
            diagonal = list(DIAGONALS.values())[turn // 2 % 2]
            native, reference, sizes = (
                run(graph, op, ends, turn % 2 == 0, own)
                for op, own in (
                    (OPS["spmm"], diagonal),
                    (OPS["spmm"].reference, diagonal),
                    (OPS["spmm"].reference, lambda nodes, d=diagonal: d(nodes).abs()),
                )
            )
            assert_sums_agree(native, reference, operands(graph, columns, ends), terms, magnitude=sizes)


@pytest.mark.parametrize("reduce", ["sum", "mean", "max"])
@pytest.mark.parametrize("kind", DIAGONALS)
def test_equals_separate_additions(reduce, kind):
    """The function on graphs, also for the maximum, in float64."""
    graph = graphs.graph("power law")
    x, bias, rows = rand(400, 7), rand(7, seed=1), rand(400, 7, seed=2)
    given = [t.double() for t in (x, bias, rows)]
    diagonal = DIAGONALS[kind](400, torch.float64)
    got = with_gradients(
        lambda x, b, r: spmm(graph, x, reduce=reduce, bias=b, diagonal=diagonal, rows=r), given, random_cotangent
    )
    own = diagonal.unsqueeze(1)
    want = with_gradients(lambda x, b, r: spmm(graph, x, reduce=reduce) + own * x + r + b, given, random_cotangent)
    torch.testing.assert_close(got, want)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_constant_diagonal_is_read_from_one_element(dtype, isa, threads):
    """With the bits of the same vector written out."""
    graph = graphs.graph("power law")
    for columns in (7, 16, 130):
        x = rand(400, columns).to(dtype)
        expanded = constant(1.7, 400)
        pair = [with_gradients(lambda x, d=d: spmm(graph, x, diagonal=d), [x]) for d in (expanded, expanded.clone())]
        assert same_bits(*((out, *grads) for out, grads in pair))


def test_a_diagonal_beside_the_edges_is_the_loops_among_them(isa):
    """The order of additions differs, no more."""
    others = torch.randint(400, (2, 3000), generator=torch.Generator().manual_seed(1))
    edge_index = torch.cat([others, torch.arange(400).tile(2, 1)], 1)
    weight = rand(3400, seed=2).abs()
    graph = Graph.from_edge_index(edge_index, 400, weight)
    split, diagonal = graph.split_self_loops()
    x = rand(400, 33)
    got = with_gradients(lambda x: spmm(split, x, diagonal=diagonal), [x])
    want = with_gradients(lambda x: spmm(graph, x), [x])
    torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)


def test_a_zero_of_the_diagonal_adds_nothing(isa):
    """As no self-loop does: an infinite row stays away from its own sum, on the way back too."""
    graph = graphs.graph("star")
    for columns in (7, 130):
        for op in (OPS["spmm"], OPS["spmm"].reference):
            x, dout = rand(300, columns), rand(300, columns, seed=1)
            x[7], dout[7] = torch.inf, torch.nan
            diagonal = torch.ones(300)
            diagonal[7] = 0
            x.requires_grad_()
            args = (graph.rowptr, graph.col, None, None, None, x, None, diagonal, None, None, None, None, None)
            without = (*args[:7], None, *args[8:])
            (dx,), (dx_without,) = (torch.autograd.grad(op(*given), x, dout) for given in (args, without))
            assert torch.equal(op(*args)[7], op(*without)[7]) and torch.equal(dx[7], dx_without[7])


def test_same_bits_for_every_instruction_set_and_thread_count(isa, threads):
    graph = graphs.graph("power law")
    for dtype in (torch.float32, torch.bfloat16):
        for columns in (130, 16):
            given = [rand(400, columns).to(dtype), rand(columns, seed=1), rand(400, columns, seed=2).to(dtype)]
            own = varying(400) if columns == 130 else constant(1.5, 400)

            def together(given=given, own=own):
                out, grads = with_gradients(
                    lambda x, b, r: spmm(graph, x, bias=b, diagonal=own, rows=r), given, random_cotangent
                )
                return out, *grads

            assert same_bits(together(), on_baseline(together))


def test_bfloat16_is_rounded_once(isa):
    graph = graphs.graph("star")
    for columns in (7, 16, 130):
        x, rows = rand(300, columns).bfloat16(), rand(300, columns, seed=1).bfloat16()
        bias, diagonal = rand(columns, seed=2), varying(300)
        out = spmm(graph, x, bias=bias, diagonal=diagonal, rows=rows)
        wide = spmm(graph, x.float(), bias=bias, diagonal=diagonal, rows=rows.float())
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
    diagonal = varying(400)
    out = spmm(graph, x, value, bias=bias, diagonal=diagonal, rows=rows)
    want = spmm(graph, x, value) + diagonal.view(400, 1, 1) * x + rows + bias.view(2, 9)
    torch.testing.assert_close(out, want, rtol=1e-5, atol=1e-5)
    assert torch.equal(out, spmm(graph, x, value, bias=bias, diagonal=diagonal, rows=rows.flatten(1)))


def test_strides_change_nothing(isa):
    graph = graphs.graph("power law")
    x, bias, diagonal, rows = rand(400, 17), rand(17, seed=1), rand(400, seed=3), rand(400, 17, seed=2)
    wide = [torch.stack([t, t], -1)[..., 0] for t in (x, bias, diagonal, rows)]
    want = spmm(graph, x, bias=bias, diagonal=diagonal, rows=rows)
    assert torch.equal(spmm(graph, wide[0], bias=wide[1], diagonal=wide[2], rows=wide[3]), want)


def test_nodes_without_edges_get_what_is_added(isa):
    for name in ("no edges", "isolated nodes", "one node"):
        graph = graphs.graph(name)
        x, bias, rows = rand(graph.num_src, 17), rand(17, seed=1), rand(graph.num_dst, 17, seed=2)
        alone = graph.degree == 0
        for reduce in ("sum", "mean", "max"):
            for diagonal in (constant(0.5, graph.num_dst), varying(graph.num_dst)):
                out = spmm(graph, x, reduce=reduce, bias=bias, diagonal=diagonal, rows=rows)
                assert torch.equal(out[alone], (diagonal.unsqueeze(1) * x + rows + bias)[alone])


def test_special_numbers_stay_where_they_are(isa):
    graph = graphs.graph("self-loops")
    x, bias, rows = torch.zeros(6, 17), torch.zeros(17), torch.zeros(6, 17)
    bias[3], rows[2, 4], rows[1, 16] = torch.nan, torch.inf, torch.nan
    out = spmm(graph, x, bias=bias, rows=rows, diagonal=constant(1.0, 6))
    assert out[:, 3].isnan().all() and out[2, 4] == torch.inf and out[1, 16].isnan()
    assert int((~out.isfinite()).sum()) == 6 + 2


def test_gradcheck():
    graph = Graph.from_edge_index(torch.tensor([[3, 1, 0, 3, 3, 0], [0, 0, 2, 2, 2, 1]]), 4)
    x, bias, rows = (rand(*s, dtype=torch.float64).requires_grad_() for s in ((4, 3), (3,), (4, 3)))
    for diagonal in (constant(0.7, 4, torch.float64), varying(4, torch.float64)):
        for reduce in ("sum", "mean", "max"):
            ends = {"reduce": reduce, "diagonal": diagonal}
            assert gradcheck(lambda x, b, r, ends=ends: spmm(graph, x, bias=b, rows=r, **ends), (x, bias, rows))
        assert gradgradcheck(lambda x, r, d=diagonal: spmm(graph, x, diagonal=d, rows=r), (x, rows))


def test_nothing_but_the_graph_and_its_diagonal_is_kept_for_backward():
    graph = graphs.graph("power law")
    x, bias, rows = (t.requires_grad_() for t in (rand(400, 8), rand(8), rand(400, 8)))
    held, diagonal = [], constant(2.0, 400)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: held.append(t) or t, lambda t: t):
        spmm(graph, x, bias=bias, diagonal=diagonal, rows=rows)
    structure = (graph.rowptr, graph.col, graph.t().rowptr, graph.t().col, graph.t_perm)
    own = {t.data_ptr() for t in (*structure, diagonal)}
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
        (ValueError, r"`diagonal`.*\[4\], one number per node that is source and", {"diagonal": rand(5)}),
    ],
)
def test_bad_arguments(reduce, error, message, ends):
    with pytest.raises(error, match=message):
        spmm(G, rand(5, 3), reduce=reduce, **ends)


@pytest.mark.parametrize("reduce", ["sum", "mean", "max"])
@pytest.mark.parametrize(
    "error, message, dtype, diagonal",
    [
        (TypeError, "`diagonal` must be float32 .*float64", torch.float32, rand(6).double()),
        (TypeError, "`diagonal` must be float64 .*float32", torch.float64, rand(6)),
        (TypeError, "`diagonal` must be float32 .*int64", torch.float32, torch.ones(6, dtype=torch.int64)),
        (ValueError, r"`diagonal`.*\[6\], one number per node.*\(1,\)", torch.float32, rand(1)),
        (ValueError, r"`diagonal`.*\[6\].*\(\)", torch.float32, torch.tensor(1.5)),
        (ValueError, r"`diagonal`.*\[6\].*\(6, 1\)", torch.float32, rand(6, 1)),
        (ValueError, "`diagonal` must not require grad: it has no gradient here. Detach it, or pass diagonal",
         torch.float32, rand(6).requires_grad_()),
    ],
)  # fmt: skip
def test_bad_diagonals(reduce, error, message, dtype, diagonal):
    with pytest.raises(error, match=message):
        spmm(graphs.graph("self-loops"), rand(6, 3).to(dtype), reduce=reduce, diagonal=diagonal)
