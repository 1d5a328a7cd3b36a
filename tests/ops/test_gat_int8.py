"""GAT's attention on int8 rows: the references up to the order of sums and 16 bits for a weight, codes those of dh."""

from __future__ import annotations

import functools

import pytest
import torch

from gossamer import Graph
from gossamer.ops import OPS, dropout, gat_backward_int8, gat_dots_int8, gat_sum_int8, quantize_times
from gossamer.ops.attention import gat_sums, leaky
from gossamer.ops.csr import row_of_edge
from gossamer.ops.int8_rows import head_products
from support import graphs
from support.compare import UNIT, on_baseline, same, same_bits
from support.gat_int8 import (
    FLOATS,
    FLUSHED,
    INF,
    LARGEST,
    TINY,
    backward_arguments,
    calls,
    changed,
    dots_arguments,
    edge_weights,
    groups_of,
    ladder,
    sum_arguments,
    tops_of,
    weighted,
)
from support.int8_ops import HEADS, every_width, factors
from support.paths import needs_native
from support.tensors import SEEDS, strided, unaligned

WIDTHS = (1, 7, 16, 17, 32, 64, 70)
DROPS = (0.0, 0.3, 1.0)
SLOPES = (0.2, 0.2, 0.0, 1.0, -0.3)


def near(got, want, allowed):
    return got.shape == want.shape and bool(((got == want) | ((got - want).abs() <= allowed)).all())


def sums_by_row(rowptr, values):
    return values.new_zeros(rowptr.numel() - 1, *values.shape[1:]).index_add(0, row_of_edge(rowptr), values)


# By destination -------------------------------------------------------------------------------------------------


def assert_sum(args):
    """A softmax's rounding and that of a sum, in any order; the logarithm of its sum by torch's in float64."""
    rowptr, col, *terms, slope, _, _, h, h_scale, bias = args
    out, log_sums = gat_sum_int8(*args)
    want, of_reference = OPS["gat_sum_int8"].reference(*args)
    sizes = (h.float().abs(), h_scale.abs(), None if bias is None else bias.abs())
    size, _ = OPS["gat_sum_int8"].reference(*args[:8], *sizes)
    degree = rowptr.diff().unsqueeze(1)
    assert near(out, want, 4 * (degree + 12) * UNIT * size + FLUSHED)
    row, logits = row_of_edge(rowptr), leaky(gat_sums(rowptr, col, *terms), slope).double()
    lowest = torch.full(log_sums.shape, -INF, dtype=torch.float64)
    top = lowest.scatter_reduce(0, row.unsqueeze(1).expand_as(logits), logits, "amax")
    exact = torch.where(degree == 0, INF, top + sums_by_row(rowptr, (logits - top[row]).exp()).log())
    allowed = (degree + 8 + 4 * (top.abs() + exact.abs())) * UNIT
    assert near(log_sums, exact, allowed) and near(of_reference, exact, allowed)


def assert_dots(args):
    """The reference's, and more nearly those of gat_sum_int8's own rows."""
    *given, g, g_scale = args
    h, h_scale = given[8:]
    heads, width, degree = given[2].size(1), g.size(1) // given[2].size(1), given[0].diff().unsqueeze(1)
    dots, (out, _) = gat_dots_int8(*args), gat_sum_int8(*given, None)
    size, _ = OPS["gat_sum_int8"].reference(*given[:8], h.float().abs(), h_scale.abs(), None)
    size, own = (head_products(g.float().abs(), g_scale.abs(), x.abs(), heads) for x in (size, out))
    allowed = (4 * (degree + 12) + 2 * (width + 8)) * UNIT * size + FLUSHED
    assert near(dots, OPS["gat_dots_int8"].reference(*args), allowed)
    assert near(dots, head_products(g, g_scale, out, heads), 2 * (width + 8) * UNIT * own + FLUSHED)


# By source ------------------------------------------------------------------------------------------------------


def assert_backward(args):
    """ds is as near as an exponential. dh is off by half a step for each edge and code, and as a sum; codes are its."""
    t_rowptr, t_col, t_perm = args[:3]
    dh, none, da_src, ds = gat_backward_int8(*args, *FLOATS)
    want, _, want_da, want_ds = OPS["gat_backward_int8"].reference(*args, *FLOATS)
    allowed = 8 * UNIT * want_ds.abs() + FLUSHED
    assert near(ds, want_ds, allowed) and none.shape == (0,)
    rounding = 2 * (t_rowptr.diff().unsqueeze(1) + 12) * UNIT
    sizes = (sums_by_row(t_rowptr, x[t_perm]) for x in (allowed, want_ds.abs()))
    assert near(da_src, want_da, next(sizes) + rounding * next(sizes))
    w, g = edge_weights(args), args[11].float().abs()
    steps = tops_of(t_rowptr, w)[groups_of(t_rowptr)[0]] / LARGEST
    size, half = (sums_by_row(t_rowptr, weighted(x, g, t_col)) for x in (w.abs(), 0.51 * steps + TINY))
    assert near(dh, want, half + rounding * size)
    for factor in factors(dh.size(1)):
        for seed in SEEDS:
            *rows, again, ds_again = gat_backward_int8(*args, True, factor, seed)
            assert same_bits(rows, quantize_times(dh, factor, seed)) and same_bits((again, ds_again), (da_src, ds))


def assert_all(graph, heads, width, *how):
    assert_sum(sum_arguments(graph, heads, width, *how, bias=heads % 3 > 0))
    assert_dots(dots_arguments(graph, heads, width, *how))
    assert_backward(backward_arguments(graph, heads, width, *how))


@pytest.mark.parametrize("name", graphs.GRAPHS)
def test_every_graph(name, isa):
    """All heads at all graphs; terms, dropout, slopes and widths go round."""
    for turn, heads in enumerate(HEADS * 2, start=graphs.GRAPHS.index(name)):
        how = turn + turn // 6, DROPS[turn % 3], SLOPES[turn % 5]
        assert_all(graphs.graph(name), heads, WIDTHS[turn % 7], *how)


@pytest.mark.parametrize("drop", DROPS)
@pytest.mark.parametrize("turn", range(4))
def test_with_and_without_terms_and_dropout(turn, drop, isa):
    for heads in (*HEADS, 16, 17):
        assert_all(graphs.graph("power law"), heads, 3, turn, drop)


def test_every_width(isa):
    for turn, (heads, width) in enumerate(every_width()):
        assert_all(graphs.graph("duplicate edges"), heads, width, turn, DROPS[turn % 2])


@functools.cache
def long_star():
    """One row with nearly all edges, and one node without any."""
    src = torch.arange(1, 7000)
    return Graph.from_edge_index(torch.stack([src, torch.zeros_like(src)]), (7001, 7001))


def test_every_degree(isa):
    for turn, heads in enumerate(HEADS):
        assert_all(ladder(), heads, WIDTHS[turn], turn, DROPS[turn % 2])
        assert_all(ladder().t(), heads, WIDTHS[turn + 1], turn, DROPS[turn % 2])


@pytest.mark.parametrize("heads", [3, 4])
def test_very_long_rows(heads, isa):
    assert_all(long_star(), heads, 5, 3, 0.3)
    assert_all(long_star().t(), heads, 5, 3, 0.3)


def test_rows_too_many_for_the_caches(isa):
    """A result that is written past them."""
    ends = torch.randint(0, 2**17, (2, 2**15), generator=torch.Generator().manual_seed(5))
    assert_sum(sum_arguments(Graph.from_edge_index(ends, 2**17), 4, 16))


@pytest.mark.parametrize("size", [1e-4, 30.0, 1e4])
def test_small_and_large_logits(size, isa):
    """Weights of nearly one size, or nearly all 0."""
    for heads, width in ((3, 5), (4, 32)):
        for make, check in ((sum_arguments, assert_sum), (dots_arguments, assert_dots)):
            args = make(graphs.graph("power law"), heads, width)
            check([*args[:2], *(size * t for t in args[2:5]), *args[5:]])
        args = backward_arguments(graphs.graph("power law"), heads, width)
        given = dots_arguments(graphs.graph("power law"), heads, width)
        args[3:6] = given[2:5] = [size * t for t in args[3:6]]
        args[9] = OPS["gat_sum_int8"].reference(*given[:10], None)[1]
        assert_backward(args)


def test_extreme_codes(isa):
    """Also -128, which quantize_rows never gives."""
    values = torch.tensor([-128, -127, -1, 0, 1, 127], dtype=torch.int8)
    for heads, width in ((4, 64), (5, 9), (1, 130)):
        rows = values.repeat(heads * width)[: 71 * heads * width].view(6, -1).repeat(12, 1)[:71]
        forward, backward = dots_arguments(ladder(), heads, width), backward_arguments(ladder(), heads, width)
        forward[8] = forward[10] = backward[11] = backward[13] = rows.contiguous()
        assert_sum([*forward[:10], None])
        assert_dots(forward)
        assert_backward(backward)


def test_no_columns(isa):
    """log_sums and ds are there nevertheless."""
    graph = graphs.graph("power law")
    out, log_sums = gat_sum_int8(*sum_arguments(graph, 3, 0))
    assert out.shape == (400, 0) and near(log_sums, gat_sum_int8(*sum_arguments(graph, 3, 5))[1], 0.0)
    assert same(gat_dots_int8(*dots_arguments(graph, 3, 0)), torch.zeros(400, 3))
    args = backward_arguments(graph, 3, 0)
    assert_backward(args)
    for rows in (False, True):
        dh, scale, _, ds = gat_backward_int8(*args, rows, None, None)
        assert dh.shape == (400, 0) and same(scale, torch.zeros(400 * rows)) and ds.any()


def test_nodes_without_edges(isa):
    """Their sum is the bias, and no weight is left: all would be e^(logit - infinity)."""
    graph = graphs.graph("isolated nodes")
    alone, no_sources = graph.t().degree == 0, graph.degree == 0
    args = sum_arguments(graph, 2, 5)
    out, log_sums = gat_sum_int8(*args)
    assert same(out[no_sources], args[10].expand(10, -1))
    assert torch.equal(log_sums == INF, no_sources.unsqueeze(1).expand(-1, 2))
    assert not gat_dots_int8(*dots_arguments(graph, 2, 5))[no_sources].any()
    args = backward_arguments(graph, 2, 5)
    dh, _, da_src, _ = gat_backward_int8(*args, *FLOATS)
    codes, scale, *_ = gat_backward_int8(*args, True, None, 4)
    assert not any(t[alone].any() for t in (dh, da_src, codes, scale)) and codes[~alone].any()


def test_logits_of_minus_infinity_are_no_edges(isa):
    """Also where a node has no others."""
    for heads in HEADS:
        args = changed(sum_arguments(graphs.graph("star"), heads, 5), 2, -INF)
        out, log_sums = gat_sum_int8(*args)
        assert same(out, args[10].expand(300, -1)) and (log_sums == INF).all()
        args = sum_arguments(ladder(), heads, 5)
        without = Graph.from_edge_index(ladder().edge_index[:, ladder().edge_index[0] != 70], (71, 71))
        kept = args[4][ladder().edge_index[0] != 70]
        got = gat_sum_int8(*changed(args, 2, -INF, 70))
        want = gat_sum_int8(without.rowptr, without.col, *args[2:4], kept, *args[5:])
        torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-6)  # sums of at most 70 numbers of size 1


def test_dropping_all_leaves_nothing(isa):
    graph = graphs.graph("power law")
    args = sum_arguments(graph, 3, 8, 3, 1.0)
    out, log_sums = gat_sum_int8(*args)
    assert same(out, args[10].expand(400, -1)) and same(log_sums, gat_sum_int8(*sum_arguments(graph, 3, 8))[1])
    assert not gat_dots_int8(*dots_arguments(graph, 3, 8, 3, 1.0)).any()
    args = changed(backward_arguments(graph, 3, 8, 3, 1.0), 10, 0.0)
    assert not any(t.any() for t in gat_backward_int8(*args, True, None, None))


# Together -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("drop", [0.0, 0.3])
@pytest.mark.parametrize("heads, width", [(3, 10), (4, 64)])
def test_all_are_attention_and_its_gradient(heads, width, drop, isa):
    """By autograd in float64, of <g, out> at the decoded rows."""
    graph = graphs.graph("power law")
    *given, g, g_scale = dots_arguments(graph, heads, width, 3, drop)
    rowptr, _, *terms, slope, _, seed, h, h_scale = given
    rows = h.double() * h_scale.double().unsqueeze(1)
    a_src, a_dst, a_edge, x = leaves = [t.double().requires_grad_() for t in (*terms, rows)]
    src, dst = graph.edge_index
    logits = torch.nn.functional.leaky_relu(a_src[src] + a_dst[dst] + a_edge, slope)
    total = torch.zeros(400, heads, dtype=torch.float64).index_add(0, dst, logits.exp())
    w = logits.exp() / total[dst] * dropout(torch.ones(graph.num_edges, heads), drop, seed)
    out = torch.zeros_like(x).index_add(0, dst, (w.unsqueeze(2) * x[src].view(-1, heads, width)).flatten(1))
    *of_logits, dh = torch.autograd.grad(out, leaves, g.double() * g_scale.double().unsqueeze(1))
    out = out.detach()

    sums, log_sums = gat_sum_int8(*given, None)
    dots, t = gat_dots_int8(*given, g, g_scale), graph.t()
    args = [t.rowptr, t.col, graph.t_perm, *terms, slope, drop, seed, log_sums, dots, g, g_scale, h, h_scale]
    got, _, da_src, ds = gat_backward_int8(*args, *FLOATS)
    pairs = [(sums, out), *zip((da_src, sums_by_row(rowptr, ds), ds), of_logits, strict=True)]
    for actual, want in pairs:
        torch.testing.assert_close(actual.double(), want, rtol=1e-4, atol=1e-5 * float(want.abs().max()))
    assert float((got - dh).norm()) <= 1e-4 * float(dh.norm())  # 16 bits for a weight
    assert_backward(args)


@functools.cache
def large_calls(heads, rows):
    return calls("power law", heads, 32 if heads == 4 else 13, rows)


def everything(heads, rows):
    return {name: OPS[name](*args) for name, args in large_calls(heads, rows).items()}


@functools.cache
def plainest(heads, rows):
    return on_baseline(lambda: everything(heads, rows))


@needs_native
@pytest.mark.parametrize("rows", [False, True])
def test_same_bits_for_every_instruction_set_and_thread_count(rows, isa, threads):
    for heads in HEADS:
        want = plainest(heads, rows)
        for name, got in everything(heads, rows).items():
            assert same_bits(got, want[name]), (name, heads)


@needs_native
def test_same_bits_of_very_long_rows(isa, threads):
    ways = (long_star(), long_star().t())
    forward = [dots_arguments(graph, 3, 5, 3, 0.3) for graph in ways]
    backward = [(*backward_arguments(graph, 3, 5, 3, 0.3), True, None, 5) for graph in ways]

    def run():
        sums = [(gat_sum_int8(*args[:10], None), gat_dots_int8(*args)) for args in forward]
        return sums, [gat_backward_int8(*args) for args in backward]

    assert same_bits(run(), on_baseline(run))


@needs_native
@pytest.mark.parametrize("name", calls())
def test_strides_and_alignment_change_nothing(name, isa):
    for args in (calls()[name], calls("power law", 3, 17, False)[name], calls("power law", 4, 64)[name]):
        want = OPS[name](*args)
        for change in (strided, unaligned):
            given = [change(a) if isinstance(a, torch.Tensor) and a.numel() else a for a in args]
            assert same_bits(OPS[name](*given), want)
