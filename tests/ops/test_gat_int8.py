"""GAT's backward on int8 rows: the references up to the order of sums, codes those of the float rows."""

from __future__ import annotations

import functools

import pytest
import torch

from gossamer import Graph
from gossamer.ops import (
    OPS,
    dropout,
    gat_backward_int8,
    gat_sources_int8,
    quantize_times,
)
from gossamer.ops.csr import row_of_edge

from . import graphs
from .compare import UNIT, on_baseline, same, same_bits
from .test_int8_linear_heads import HEADS, every_width, projection
from .test_int8_rows import factors, needs_native, strided, unaligned
from .test_quantize_rows import SEEDS
from .test_spmm import rand
from .test_spmm_int8 import codes_of

WIDTHS = (1, 7, 16, 17, 32, 64, 70)
DROPS = (0.0, 0.3, 1.0)


# By destination -------------------------------------------------------------------------------------------------


def rows_of(count, columns, seed):
    return codes_of(count, columns, seed=seed), rand(count, seed=seed + 1) / 127


def backward_arguments(graph, heads, width, turn=3, drop=0.0, slope=0.2):
    """a_dst and a_edge come and go with the bits of `turn`."""
    a_src, a_dst, a_edge = (
        2 * rand(n, heads, seed=k) for k, n in enumerate((graph.num_src, graph.num_dst, graph.num_edges))
    )
    terms = [graph.rowptr, graph.col, a_src, a_dst if turn & 1 else None, a_edge if turn & 2 else None, slope]
    p = OPS["gat_attention"].reference(*terms, None, None)
    sides = (*rows_of(graph.num_dst, heads * width, 11), *rows_of(graph.num_src, heads * width, 13))
    return [*terms, p, drop, 77 + turn, *sides]


def sums_by_row(rowptr, values):
    return values.new_zeros(rowptr.numel() - 1, values.size(1)).index_add(0, row_of_edge(rowptr), values)


def assert_backward(args):
    """w to the bit. ds is off by what its row's mean of dp is, its sum over the row by that and by its own rounding."""
    rowptr, _, a_src, *_, p, drop, seed, g, g_scale, h, h_scale = args
    pairs, da_dst = gat_backward_int8(*args)
    want_pairs, want_da = OPS["gat_backward_int8"].reference(*args)
    w, ds = pairs.chunk(2, 1)
    want_w, want_ds = want_pairs.chunk(2, 1)
    assert pairs.shape == want_pairs.shape and da_dst.shape == want_da.shape
    assert same(w, want_w) and same(w, p if drop == 0 else dropout(p, drop, seed))
    dp = OPS["sddmm_int8"].reference(rowptr, args[1], g, g_scale, h, h_scale, a_src.size(1)).abs()
    dp = dp if drop == 0 else OPS["dropout"].reference(dp, drop, seed)
    row, degree = row_of_edge(rowptr), rowptr.diff().unsqueeze(1)
    mean, slope = sums_by_row(rowptr, p * dp), max(1.0, abs(args[5]))
    allowed = slope * p * ((2 * (degree + 8) * UNIT * mean)[row] + 8 * UNIT * (dp + mean[row]))
    assert ((ds - want_ds).abs() <= allowed).all()
    bound = sums_by_row(rowptr, allowed) + 2 * (degree + 8) * UNIT * sums_by_row(rowptr, want_ds.abs())
    assert ((da_dst - want_da).abs() <= bound).all()


@pytest.mark.parametrize("name", graphs.GRAPHS)
def test_backward(name, isa):
    """All heads at all graphs; terms, dropout, slopes and widths go round."""
    for turn, heads in enumerate(HEADS * 2, start=graphs.GRAPHS.index(name)):
        drop, slope = DROPS[turn % 3], (0.2, 0.2, 0.0, 1.0, -0.3)[turn % 5]
        width = WIDTHS[turn % 7]
        assert_backward(backward_arguments(graphs.graph(name), heads, width, turn + turn // 6, drop, slope))


@pytest.mark.parametrize("drop", DROPS)
@pytest.mark.parametrize("turn", range(4))
def test_backward_with_and_without_terms_and_dropout(turn, drop, isa):
    for heads in HEADS:
        assert_backward(backward_arguments(graphs.graph("power law"), heads, 9, turn, drop))


def test_backward_at_every_width(isa):
    for turn, (heads, width) in enumerate(every_width()):
        assert_backward(backward_arguments(graphs.graph("duplicate edges"), heads, width, turn, DROPS[turn % 2]))


def test_backward_of_no_columns(isa):
    args = backward_arguments(graphs.graph("power law"), 3, 0)
    pairs, da_dst = gat_backward_int8(*args)
    assert same(pairs[:, :3], args[6]) and not pairs[:, 3:].any() and not da_dst.any()


@functools.cache
def long_star():
    """One row with nearly all edges, and one node without any."""
    src = torch.arange(1, 7000)
    return Graph.from_edge_index(torch.stack([src, torch.zeros_like(src)]), (7001, 7001))


@pytest.mark.parametrize("heads", [3, 8])
def test_very_long_rows(heads, isa):
    assert_backward(backward_arguments(long_star(), heads, 5, drop=0.3))
    assert_backward(backward_arguments(long_star().t(), heads, 5, drop=0.3))
    for graph in (long_star(), long_star().t()):
        assert_sources(sources_arguments(graph, heads, 5))


def test_dropping_all_leaves_nothing(isa):
    pairs, da_dst = gat_backward_int8(*backward_arguments(graphs.graph("power law"), 3, 8, drop=1.0))
    assert not pairs.any() and not da_dst.any()


def test_ds_sums_up_to_nothing_where_leaky_is_the_identity(isa):
    """As softmax's gradient does: over a row, up to the rounding of its terms."""
    args = backward_arguments(graphs.graph("power law"), 4, 16, slope=1.0)
    pairs, da_dst = gat_backward_int8(*args)
    size = sums_by_row(args[0], pairs[:, 4:].abs())
    assert (da_dst.abs() <= 1e-5 * size + 1e-6).all() and size.max() > 0.1


@pytest.mark.parametrize("k", [-20, -1, 20])
def test_scaling_rows_scales_their_gradients_exactly(k, isa):
    graph = graphs.graph("power law")
    args = backward_arguments(graph, 3, 17, drop=0.3)
    pairs, da_dst = gat_backward_int8(*args)
    for at in (10, 12):
        scaled = [*args[:at], args[at] * 2.0**k, *args[at + 1 :]]
        got, got_da = gat_backward_int8(*scaled)
        assert same(got, torch.cat([pairs[:, :3], pairs[:, 3:] * 2.0**k], 1)) and same(got_da, da_dst * 2.0**k)
    args = sources_arguments(graph, 3, 17)
    args[3][:, 3:] = 0.0  # linear in g_scale but for these
    args[7:9] = [None, None]
    scaled = [*args[:5], args[5] * 2.0**k, *args[6:]]
    assert same(gat_sources_int8(*scaled, False, None, None)[0], gat_sources_int8(*args, False, None, None)[0] * 2.0**k)
    codes, scale, _ = gat_sources_int8(*args, True, None, 3)
    assert same(gat_sources_int8(*scaled, True, None, 3)[:2], (codes, scale * 2.0**k))


def edges_into(graph, node):
    return row_of_edge(graph.rowptr) == node


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
@pytest.mark.parametrize("heads", [1, 3, 4, 5])
def test_bad_scales_show_in_every_row_that_uses_them(bad, heads, isa):
    """w never depends on them. Softmax spreads one bad edge over its row, and no further."""
    graph = graphs.graph("power law")
    node = int(graph.degree.argsort()[-20])
    source = int(graph.col[graph.rowptr[node]])
    clean_args = backward_arguments(graph, heads, 6)
    clean, clean_da = gat_backward_int8(*clean_args)
    rows = torch.zeros(400, dtype=torch.bool)
    rows[node] = True
    uses = torch.zeros(400, dtype=torch.bool)
    uses[row_of_edge(graph.rowptr)[graph.col == source]] = True
    for at, index, hit in ((10, node, rows), (12, source, uses)):
        args = list(clean_args)
        args[at] = args[at].clone()
        args[at][index] = bad
        pairs, da_dst = gat_backward_int8(*args)
        edges = hit[row_of_edge(graph.rowptr)]
        assert 0 < int(hit.sum()) < 400 and same(pairs[:, :heads], clean[:, :heads])
        assert not pairs[edges, heads:].isfinite().any() and not da_dst[hit].isfinite().any()
        assert same_bits((pairs[~edges], da_dst[~hit]), (clean[~edges], clean_da[~hit]))


@pytest.mark.parametrize("heads", HEADS)
def test_a_bad_weight_stays_in_its_row_and_head(heads, isa):
    """In every place of a row, also in the lanes that a last vector shares with other heads."""
    graph = graphs.graph("power law")
    node = int(graph.degree.argsort()[-30])
    args = backward_arguments(graph, heads, 6, drop=0.3)
    clean, clean_da = gat_backward_int8(*args)
    edges = edges_into(graph, node)
    for e in edges.nonzero().flatten().tolist():
        head, p = e % heads, args[6].clone()
        p[e, head] = torch.nan
        pairs, da_dst = gat_backward_int8(*args[:6], p, *args[7:])
        hit, of_nodes = torch.zeros_like(pairs, dtype=torch.bool), torch.zeros_like(da_dst, dtype=torch.bool)
        hit[edges, heads + head] = of_nodes[node, head] = True
        hit[e, head] = bool(clean[e, head] != 0)  # unless it is dropped
        assert torch.equal(pairs.isnan(), hit) and torch.equal(da_dst.isnan(), of_nodes)
        assert same_bits((pairs[~hit], da_dst[~of_nodes]), (clean[~hit], clean_da[~of_nodes]))


def test_zero_scales_give_no_gradient_of_logits(isa):
    args = backward_arguments(graphs.graph("power law"), 3, 6)
    for at in (10, 12):
        pairs, da_dst = gat_backward_int8(*args[:at], torch.zeros(400), *args[at + 1 :])
        assert same(pairs[:, :3], args[6]) and not pairs[:, 3:].any() and not da_dst.any()


# By source ------------------------------------------------------------------------------------------------------


def sources_arguments(graph, heads, width, both=True):
    """All but rows, factor and seed."""
    t, columns = graph.t(), heads * width
    of_dst = (rand(columns, seed=24), rand(graph.num_src, heads, seed=25)) if both else (None, None)
    pairs = rand(graph.num_edges, 2 * heads, seed=21)
    return [
        t.rowptr, t.col, graph.t_perm, pairs, *rows_of(graph.num_dst, columns, 22), rand(columns, seed=23), *of_dst,
    ]  # fmt: skip


def assert_sources(args):
    """Sums in any order, and codes of the very floats."""
    dh, none, da_src = gat_sources_int8(*args, False, None, None)
    want, _, want_da = OPS["gat_sources_int8"].reference(*args, False, None, None)
    positive = [t.abs() if t is not None and k > 2 else t for k, t in enumerate(args)]
    size, _, size_da = OPS["gat_sources_int8"].reference(*positive, False, None, None)
    near = 2 * (args[0].diff().unsqueeze(1) + 12) * UNIT
    assert dh.shape == want.shape and ((dh - want).abs() <= near * size).all()
    assert da_src.shape == want_da.shape and ((da_src - want_da).abs() <= near * size_da).all()
    assert none.shape == (0,)
    for factor in factors(dh.size(1)):
        for seed in SEEDS:
            *rows, again = gat_sources_int8(*args, True, factor, seed)
            assert same_bits(rows, quantize_times(dh, factor, seed)) and same_bits(again, da_src)


@pytest.mark.parametrize("name", graphs.GRAPHS)
def test_sources(name, isa):
    for turn, heads in enumerate(HEADS, start=graphs.GRAPHS.index(name)):
        assert_sources(sources_arguments(graphs.graph(name), heads, WIDTHS[turn % 7], both=turn % 2 == 0))


def test_sources_at_every_width(isa):
    for turn, (heads, width) in enumerate(every_width()):
        assert_sources(sources_arguments(graphs.graph("duplicate edges"), heads, width, both=turn % 3 > 0))


def test_codes_are_the_references_where_no_order_matters(isa):
    """One edge to a row, and only powers of two beside the codes."""
    args = sources_arguments(graphs.graph("star"), 2, 33)
    args[3], args[5] = args[3].sign(), args[5].sign() * 0.5
    args[6:9] = [args[6].sign(), args[7].sign(), args[8].sign() * 4]
    for factor in factors(66):
        for seed in SEEDS:
            want = OPS["gat_sources_int8"].reference(*args, True, factor, seed)
            assert same(gat_sources_int8(*args, True, factor, seed), want)


def test_sources_of_no_columns(isa):
    """Their sums of ds are there nevertheless."""
    args = sources_arguments(graphs.graph("power law"), 3, 0)
    want = OPS["edge_sums"](args[0], args[2], args[3][:, 3:].contiguous())
    for rows in (False, True):
        dh, scale, da_src = gat_sources_int8(*args, rows, None, None)
        assert dh.shape == (400, 0) and not scale.any() and scale.numel() == 400 * rows
        torch.testing.assert_close(da_src, want, rtol=1e-4, atol=1e-5)


def test_nodes_without_edges_have_the_destinations_part_alone(isa):
    graph = graphs.graph("isolated nodes")
    args = sources_arguments(graph, 2, 5)
    alone = graph.t().degree == 0
    dh, _, da_src = gat_sources_int8(*args, False, None, None)
    assert not da_src[alone].any()
    assert torch.equal(dh[alone], (args[8].repeat_interleave(5, 1) * args[7])[alone])
    args[7:9] = [None, None]
    codes, scale, _ = gat_sources_int8(*args, True, None, 4)
    assert not codes[alone].any() and not scale[alone].any() and codes[~alone].any()


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
@pytest.mark.parametrize("heads", HEADS)
def test_bad_numbers_show_in_the_rows_that_use_them(bad, heads, isa):
    graph, width = graphs.graph("power law"), 6
    args = sources_arguments(graph, heads, width)
    clean, _, clean_da = gat_sources_int8(*args, False, None, None)
    edge, node, head = 1234, int(graph.degree.argsort()[-20]), heads - 1
    source = int(graph.col[edge])
    columns = torch.arange(heads * width) // width == head
    into = torch.zeros(400, dtype=torch.bool)
    into[graph.col[edges_into(graph, node)].long()] = True
    one = torch.arange(400) == source
    none = torch.zeros_like(clean_da, dtype=torch.bool)
    of_ds = none.clone()
    of_ds[source, head] = True
    everywhere = torch.ones(heads * width, dtype=torch.bool)
    for at, index, hit, of_da in (
        (3, (edge, head), one.unsqueeze(1) & columns, none),  # w
        (3, (edge, heads + head), one.unsqueeze(1) & columns, of_ds),  # ds
        (5, node, into.unsqueeze(1) & everywhere, none),  # g_scale
        (8, (source, head), one.unsqueeze(1) & columns, none),  # da_dst
        (6, heads * width - 1, torch.arange(heads * width).expand(400, -1) == heads * width - 1, none),  # att_src
    ):
        given = list(args)
        given[at] = given[at].clone()
        given[at][index] = bad
        dh, _, da_src = gat_sources_int8(*given, False, None, None)
        assert torch.equal(~dh.isfinite(), hit), at
        assert torch.equal(~da_src.isfinite(), of_da), at
        assert same_bits((dh[~hit], da_src[~of_da]), (clean[~hit], clean_da[~of_da]))
        scale = gat_sources_int8(*given, True, None, 1)[1]
        assert torch.equal(scale.isnan(), hit.any(1)), at


def test_zero_scales_leave_the_logits_part(isa):
    args = sources_arguments(graphs.graph("power law"), 3, 6)
    args[5] = torch.zeros(400)
    dh, _, da_src = gat_sources_int8(*args, False, None, None)
    parts = ((da_src, args[6]), (args[8], args[7]))
    want = sum(da.repeat_interleave(6, 1) * att for da, att in parts)
    assert torch.equal(dh, want)


# Together -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("drop", [0.0, 0.3])
def test_both_are_the_gradient_of_attention_and_sum(drop, isa):
    """By autograd in float64, of <g, out> at the decoded rows."""
    graph, heads, width = graphs.graph("power law"), 3, 10
    args = backward_arguments(graph, heads, width, drop=drop)
    _, _, _, _, a_edge, slope, _, _, seed, g, g_scale, h_codes, h_scale = args
    atts = [rand(heads * width, seed=30 + k) for k in range(2)]
    h, wide_g = ((codes.double() * scale.double().unsqueeze(1)) for codes, scale in ((h_codes, h_scale), (g, g_scale)))
    leaves = [h.requires_grad_(), a_edge.double().requires_grad_()]
    a = [(h * att).view(400, heads, width).sum(2) for att in atts]
    src, dst = graph.edge_index
    s = a[0][src] + a[1][dst] + leaves[1]
    p = OPS["edge_softmax"].reference(graph.rowptr, torch.nn.functional.leaky_relu(s, slope))
    w = p if drop == 0 else OPS["dropout"].reference(p, drop, seed)
    out = torch.zeros_like(h).index_add(0, dst, (w.unsqueeze(2) * h[src].view(-1, heads, width)).flatten(1))
    dh, da_edge = torch.autograd.grad(out, leaves, wide_g)
    args[2:4], args[6] = [t.detach().float() for t in a], p.detach().float()
    pairs, da_dst = gat_backward_int8(*args)
    t = graph.t()
    got, _, _ = gat_sources_int8(
        t.rowptr, t.col, graph.t_perm, pairs, g, g_scale, *atts, da_dst, False, None, None
    )  # fmt: skip
    torch.testing.assert_close(pairs[:, heads:].double(), da_edge, rtol=1e-4, atol=1e-5 * float(da_edge.abs().max()))
    torch.testing.assert_close(got.double(), dh, rtol=1e-4, atol=1e-5 * float(dh.abs().max()))


def calls(name="self-loops", heads=2, width=3, rows=True):
    """A call of each op: its name and arguments."""
    graph, columns = graphs.graph(name), heads * width
    return {
        "int8_linear_heads": (*projection(graph.num_src, 6, columns, heads), 3),
        "gat_backward_int8": tuple(backward_arguments(graph, heads, width, drop=0.3)),
        "gat_sources_int8": (*sources_arguments(graph, heads, width), rows, factors(columns)[1] if rows else None, 3),
    }


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
    graph = long_star()
    given = [backward_arguments(graph, 3, 5, drop=0.3), backward_arguments(graph.t(), 3, 5, drop=0.3)]
    to_sources = [(*sources_arguments(g, 3, 5), True, None, 5) for g in (graph, graph.t())]

    def run():
        return [gat_backward_int8(*args) for args in given], [gat_sources_int8(*args) for args in to_sources]

    assert same_bits(run(), on_baseline(run))


@needs_native
@pytest.mark.parametrize("name", calls())
def test_strides_and_alignment_change_nothing(name, isa):
    for args in (calls()[name], calls("power law", 3, 17, False)[name]):
        want = OPS[name](*args)
        for changed in (strided, unaligned):
            given = [changed(a) if isinstance(a, torch.Tensor) and a.numel() else a for a in args]
            assert same_bits(OPS[name](*given), want)
