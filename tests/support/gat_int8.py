"""Arguments of GAT's attention on int8 rows, and the weights of its edges by the formulas."""

from __future__ import annotations

import functools

import torch

from gossamer import Graph
from gossamer.ops import OPS, dropout
from gossamer.ops.attention import leaky
from gossamer.ops.csr import row_of_edge

from . import graphs
from .int8_ops import factors, projection
from .tensors import codes_of, rand

FLUSHED, TINY = 1e-37, 2.0**-100  # smaller weights may be 0, and a group's where all are so small
GROUP, LARGEST = 32, 127 * 256  # edges of a source whose weights share a step; the largest weight in steps
FLOATS = (False, None, None)  # dh as it is
NAN, INF = torch.nan, torch.inf


def rows_of(count, columns, seed):
    return codes_of(count, columns, seed=seed), rand(count, seed=seed + 1) / 127


def forward_arguments(graph, heads, width, turn=3, drop=0.0, slope=0.2):
    """Up to h_scale. a_dst and a_edge come and go with the bits of `turn`."""
    a_src, a_dst, a_edge = (
        2 * rand(n, heads, seed=k) for k, n in enumerate((graph.num_src, graph.num_dst, graph.num_edges))
    )
    terms = [graph.rowptr, graph.col, a_src, a_dst if turn & 1 else None, a_edge if turn & 2 else None]
    return [*terms, slope, drop, 77 + turn, *rows_of(graph.num_src, heads * width, 13)]


def sum_arguments(graph, heads, width, *how, bias=True):
    return [*forward_arguments(graph, heads, width, *how), rand(heads * width, seed=19) if bias else None]


def dots_arguments(graph, heads, width, *how):
    return [*forward_arguments(graph, heads, width, *how), *rows_of(graph.num_dst, heads * width, 11)]


def backward_arguments(graph, heads, width, *how):
    """All but rows, factor and noise. dots are any numbers: whose they are is a test of its own."""
    rowptr, col, *rule, h, h_scale = forward_arguments(graph, heads, width, *how)
    _, log_sums = OPS["gat_sum_int8"].reference(rowptr, col, *rule, h, h_scale, None)
    t, dots = graph.t(), rand(graph.num_dst, heads, seed=15)
    g = rows_of(graph.num_dst, heads * width, 11)
    return [t.rowptr, t.col, graph.t_perm, *rule, log_sums, dots, *g, h, h_scale]


def changed(args, at, value, index=...):
    args = list(args)
    args[at] = args[at].clone()
    args[at][index] = value
    return args


def edge_weights(args):
    """dropout(p) g_scale of each edge of the transposed graph, by the formulas."""
    t_rowptr, t_col, t_perm, a_src, a_dst, a_edge, slope, drop, seed, log_sums, _, _, g_scale, *_ = args
    dst = t_col.long()
    s = a_src[row_of_edge(t_rowptr)]
    s = s if a_dst is None else s + a_dst[dst]
    s = s if a_edge is None else s + a_edge[t_perm]
    p = (leaky(s, slope) - log_sums[dst]).exp()
    kept = dropout(torch.ones_like(p), drop, seed)[t_perm] if drop else 1.0
    return p * kept * g_scale[dst].unsqueeze(1)


def groups_of(t_rowptr):
    """For each edge the number of its group, and for each group its source."""
    row, degree = row_of_edge(t_rowptr), t_rowptr.diff()
    count = (degree + GROUP - 1) // GROUP
    group = (count.cumsum(0) - count)[row] + (torch.arange(len(row)) - t_rowptr[row]) // GROUP
    return group, torch.repeat_interleave(torch.arange(len(degree)), count)


def tops_of(t_rowptr, w):
    """The largest weight of each group, by head."""
    group, source = groups_of(t_rowptr)
    return w.new_zeros(len(source), w.size(1)).scatter_reduce(0, group.unsqueeze(1).expand_as(w), w.abs(), "amax")


def weighted(w, g, t_col):
    """[nnz, columns]"""
    return (w.unsqueeze(2) * g[t_col.long()].view(len(w), w.size(1), g.size(1) // w.size(1)).to(w.dtype)).flatten(1)


@functools.cache
def ladder():
    """Node k has k edges out of it, 0 to 70, to any others: fewer than a group, one, two, and one more."""
    src = torch.repeat_interleave(torch.arange(71), torch.arange(71))
    dst = torch.randint(0, 71, src.shape, generator=torch.Generator().manual_seed(4))
    return Graph.from_edge_index(torch.stack([src, dst]), (71, 71))


def calls(name="self-loops", heads=2, width=3, rows=True):
    """A call of each op: its name and arguments."""
    graph, columns = graphs.graph(name), heads * width
    ends = (rows, factors(columns)[1] if rows else None, 3)
    return {
        "int8_linear_heads": (*projection(graph.num_src, 6, columns, heads), 3),
        "gat_sum_int8": tuple(sum_arguments(graph, heads, width, 3, 0.3)),
        "gat_dots_int8": tuple(dots_arguments(graph, heads, width, 3, 0.3)),
        "gat_backward_int8": (*backward_arguments(graph, heads, width, 3, 0.3), *ends),
    }
