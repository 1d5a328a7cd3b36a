"""GAT on int8 rows: what is exact to the bit, and where numbers that are not finite show."""

from __future__ import annotations

import pytest
import torch

from gossamer.ops import gat_backward_int8, gat_dots_int8, gat_sum_int8
from gossamer.ops.int8_linear import MAX_COLUMNS
from support import graphs
from support.compare import same, same_bits
from support.gat_int8 import (
    FLOATS,
    INF,
    LARGEST,
    NAN,
    TINY,
    backward_arguments,
    changed,
    dots_arguments,
    edge_weights,
    groups_of,
    ladder,
    sum_arguments,
    tops_of,
    weighted,
)
from support.int8_ops import HEADS
from support.paths import needs_native


def plain_weights(graph, heads, width, drop):
    """With p = 1: a weight is its row's scale, doubled or dropped."""
    args = backward_arguments(graph, heads, width, 3, drop)
    args[3:6] = [torch.zeros_like(args[3]), args[9], None]
    args[4], args[6] = torch.where(args[4] == INF, 0.0, args[4]), 1.0
    return args


@needs_native
@pytest.mark.parametrize("drop", [0.0, 0.5])
@pytest.mark.parametrize("heads, width", [(4, 64), (4, 17), (3, 70), (1, 33)])
def test_weights_have_sixteen_bits(heads, width, drop, isa):
    """dh to the bit: nearest integers for the largest of each group, exact sums, and those of groups added in order."""
    args = plain_weights(ladder(), heads, width, drop)
    t_rowptr, t_col, g, w = args[0], args[1], args[11], edge_weights(args)
    group, source = groups_of(t_rowptr)
    top = tops_of(t_rowptr, w)
    by = torch.where(top > 0, LARGEST / top, 0.0)
    terms = weighted((w * by[group]).round().long(), g, t_col)
    sums = terms.new_zeros(len(source), g.size(1)).index_add(0, group, terms).float()
    parts, want = sums * (top / LARGEST).repeat_interleave(width, 1), torch.zeros(len(t_rowptr) - 1, g.size(1))
    for k, j in enumerate(source.tolist()):
        want[j] += parts[k]
    assert same(gat_backward_int8(*args, *FLOATS)[0], want)


@needs_native
def test_weights_below_the_smallest_are_zero(isa):
    """Where all of a group are. The rest is as it was, down to that size."""
    args = plain_weights(ladder(), 3, 5, 0.0)
    args[12] = torch.ones(71)
    want = gat_backward_int8(*args, *FLOATS)[0]
    assert same(gat_backward_int8(*changed(args, 12, TINY), *FLOATS)[0], want * TINY)
    assert not gat_backward_int8(*changed(args, 12, TINY / 2), *FLOATS)[0].any() and want.any()


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("heads, width", [(1, MAX_COLUMNS), (4, MAX_COLUMNS // 64 * 64)])
def test_the_longest_product_does_not_overflow(heads, width, sign, isa):
    args = plain_weights(graphs.graph("one node, one loop"), heads, 1, 0.0)
    rows = torch.full((1, heads * width), 127, dtype=torch.int8)
    args[10:] = [torch.zeros(1, heads), rows, torch.ones(1), sign * rows, torch.ones(1)]
    dh, _, da_src, ds = gat_backward_int8(*args, *FLOATS)
    want = torch.full((1, heads), sign * 127**2 * width, dtype=torch.float32)
    assert same((da_src, ds), (want, want))
    torch.testing.assert_close(dh, rows.float())


@pytest.mark.parametrize("k", [-40, -1, 40])
def test_scaling_rows_scales_results_exactly(k, isa):
    graph, by = graphs.graph("power law"), 2.0**k
    for heads, width in ((3, 17), (4, 32)):
        args = sum_arguments(graph, heads, width, 3, 0.3, bias=False)
        out, log_sums = gat_sum_int8(*args)
        assert same(gat_sum_int8(*args[:9], args[9] * by, None), (out * by, log_sums))
        args = dots_arguments(graph, heads, width, 3, 0.3)
        dots = gat_dots_int8(*args)
        for at in (9, 11):
            assert same(gat_dots_int8(*args[:at], args[at] * by, *args[at + 1 :]), dots * by)
        args = backward_arguments(graph, heads, width, 3, 0.3)
        dh, _, da_src, ds = gat_backward_int8(*args, *FLOATS)
        codes, scale, *_ = gat_backward_int8(*args, True, None, 3)
        for at, of_dh in ((12, by), (14, 1.0)):
            given = [by * t if k in (10, at) else t for k, t in enumerate(args)]
            assert same(gat_backward_int8(*given, *FLOATS)[0::2], (dh * of_dh, da_src * by))
            assert same(gat_backward_int8(*given, True, None, 3), (codes, scale * of_dh, da_src * by, ds * by))


def test_zero_scales(isa):
    graph = graphs.graph("power law")
    args = sum_arguments(graph, 3, 6)
    assert same(gat_sum_int8(*changed(args, 9, 0.0))[0], args[10].expand(400, -1))
    for at in (9, 11):
        assert not gat_dots_int8(*changed(dots_arguments(graph, 3, 6), at, 0.0)).any()
    args = backward_arguments(graph, 3, 6)
    dh = gat_backward_int8(*args, *FLOATS)[0]
    for at, want in ((12, torch.zeros_like(dh)), (14, dh)):
        got, _, da_src, ds = gat_backward_int8(*changed(changed(args, 10, 0.0), at, 0.0), *FLOATS)
        assert same(got, want) and not ds.any() and not da_src.any()


# What is not finite ---------------------------------------------------------------------------------------------


def only(hit, got, clean):
    """Where nothing is finite, and what is as without it."""
    return torch.equal(~got.isfinite(), hit) and same_bits(got[~hit], clean[~hit])


def places(graph, node, source):
    """The edges into a node and those out of a source, and the nodes at their other ends."""
    src, dst = graph.edge_index
    ends = torch.zeros(2, 400, dtype=torch.bool)
    ends[0, src[dst == node]] = ends[1, dst[src == source]] = True
    return dst == node, src == source, *ends


def columns_of(hit, first, heads, width=1):
    """Those rows, from the first of the heads on."""
    return hit.unsqueeze(1) & (torch.arange(heads * width) >= first * width)


@pytest.mark.parametrize("bad", [NAN, INF])
@pytest.mark.parametrize("heads", [1, 3, 4, 5])
def test_bad_numbers_show_in_the_sums_that_use_them(bad, heads, isa):
    graph, width, last = graphs.graph("power law"), 6, heads - 1
    node, source = int(graph.degree.argsort()[-20]), int(graph.col[1234])
    _, _, _, used = places(graph, node, source)
    one, edge = torch.arange(400) == node, int(graph.rowptr[node])
    args, dots_args = sum_arguments(graph, heads, width), dots_arguments(graph, heads, width)
    (out, log_sums), dots = gat_sum_int8(*args), gat_dots_int8(*dots_args)
    logits = (2, (source, last), used, last), (3, (node, last), one, last), (4, (edge, last), one, last)
    for at, index, hit, first in (*logits, (9, source, used, 0)):
        got, got_logs = gat_sum_int8(*changed(args, at, bad, index))
        of_logs = columns_of(hit & (at < 9), first, heads) | (log_sums == INF)
        assert only(columns_of(hit, first, heads, width), got, out) and only(of_logs, got_logs, log_sums), at
        got = gat_dots_int8(*changed(dots_args, at, bad, index))
        assert only(columns_of(hit, first, heads), got, dots), at
    assert only(columns_of(one, 0, heads), gat_dots_int8(*changed(dots_args, 11, bad, node)), dots)
    column = torch.arange(heads * width) == 3
    assert only(column.expand(400, -1), gat_sum_int8(*changed(args, 10, bad, 3))[0], out)


@pytest.mark.parametrize("bad", [NAN, INF])
@pytest.mark.parametrize("heads", HEADS)
def test_bad_numbers_show_in_the_gradients_that_use_them(bad, heads, isa):
    graph, width, last = graphs.graph("power law"), 6, heads - 1
    node, source = int(graph.degree.argsort()[-20]), int(graph.col[1234])
    into, out_of, sources, _ = places(graph, node, source)
    one, none, edge = torch.arange(400) == source, torch.zeros_like(sources), torch.arange(graph.num_edges) == 1234
    args = backward_arguments(graph, heads, width)
    dh, _, da_src, ds = gat_backward_int8(*args, *FLOATS)
    cases = [  # edges of ds, rows of da_src and of dh, from a head on
        (12, node, into, sources, sources, 0),  # g_scale
        (14, source, out_of, one, none, 0),  # h_scale
        (10, (node, last), into, sources, none, last),  # dots
    ]
    logits = [
        (3, (source, last), out_of, one, one, last),
        (4, (node, last), into, sources, sources, last),
        (5, (1234, last), edge, one, one, last),
        (9, (node, last), into, sources, sources, last),  # log_sums
    ]
    for at, index, of_ds, of_da, of_dh, first in cases + (logits if bad is NAN else []):
        given = changed(args, at, bad, index)
        got, _, got_da, got_ds = gat_backward_int8(*given, *FLOATS)
        assert only(columns_of(of_dh, first, heads, width), got, dh), at
        assert only(columns_of(of_da, first, heads), got_da, da_src), at
        assert only(columns_of(of_ds, first, heads), got_ds, ds), at
        assert torch.equal(gat_backward_int8(*given, True, None, 1)[1].isnan(), of_dh), at


@pytest.mark.parametrize("heads", HEADS)
def test_a_bad_weight_stays_in_its_row_and_head(heads, isa):
    """At every edge of a source, also in the lanes that a last vector shares with other heads."""
    graph, width, source = ladder(), 3, 37
    args = backward_arguments(graph, heads, width, 3, 0.3)
    dh, _, da_src, ds = gat_backward_int8(*args, *FLOATS)
    w = edge_weights(args)
    for e in range(int(args[0][source]), int(args[0][source + 1])):
        place, head = int(args[2][e]), e % heads
        got, _, got_da, got_ds = gat_backward_int8(*changed(args, 5, NAN, (place, head)), *FLOATS)
        hits = [torch.zeros_like(t, dtype=torch.bool) for t in (dh, da_src, ds)]
        hits[0][source, head * width : (head + 1) * width] = bool(w[e, head] != 0)  # unless it is dropped
        hits[1][source, head] = hits[2][place, head] = True
        assert all(only(*each) for each in zip(hits, (got, got_da, got_ds), (dh, da_src, ds), strict=True))
