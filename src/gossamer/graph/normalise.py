"""The matrix of a graph convolution, D^-1/2 (A + I) D^-1/2, in parts.

    A_hat = diag(dst) V diag(src) + diag(diagonal)        V: the weights of `graph`, without self-loops

Without weights the edges have no values, only their nodes factors, 1 / sqrt(d): that takes less memory, and makes a sum
cheaper. In a block of a sampled batch the destinations are the first sources; a block that has all edges of its
destinations takes the degrees of its sources from the whole graph.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ..ops.csr import Sparse, row_of_edge
from . import build
from .graph import Graph
from .halo import Halo

ROWS_AT_A_TIME = 2**20
"""Of a large graph, where temporary tensors have one entry per edge."""


class Normalised(NamedTuple):
    graph: Graph
    src: Tensor | None = None
    dst: Tensor | None = None
    diagonal: Tensor | None = None


def as_edges(parts: Normalised, value: Tensor | None) -> Sparse:
    """The matrix with every factor in the values of its edges, and the diagonal as loops behind them.

    `value`: V, which may require grad. Values are None where all are 1.
    """
    rowptr, col = parts.graph.rowptr, parts.graph.col
    row = row_of_edge(rowptr)
    for factor, end in ((parts.dst, row), (parts.src, col.long())):
        if factor is not None:
            value = factor[end] if value is None else value * factor[end]
    if parts.diagonal is None:
        return Sparse(rowptr, col, value)
    looped = parts.diagonal.nonzero().squeeze(1)
    value = torch.ones(col.numel(), device=col.device) if value is None else value
    order = torch.cat([row, looped]).argsort(stable=True)
    counts = rowptr.diff()
    counts[looped] += 1
    return Sparse(
        torch.cat([rowptr.new_zeros(1), counts.cumsum(0)]),
        torch.cat([col, looped.to(col.dtype)])[order],
        torch.cat([value, parts.diagonal[looped].to(value.dtype)])[order],
    )


def gcn_parts(graph: Graph, improved: bool, loops: bool) -> Normalised:
    """Of a square graph, of a block, or of a part."""
    if graph.block is not None:
        return _of_block(graph, improved, loops)
    if graph.halo is not None:
        return _of_part(graph, graph.halo, improved, loops)
    if graph.value is not None or improved:
        return split_loops(graph.gcn_norm(improved, loops))
    plain, loops_of = graph.split_self_loops()
    structure = graph if plain.num_edges == graph.num_edges else plain
    structure = Graph(structure.rowptr, structure.col, structure.num_src)  # without what else it may remember
    if loops:  # one loop for every node, whatever was there
        loops_of = torch.ones_like(loops_of)
        factors = build.node_factors(structure.rowptr + torch.arange(structure.rowptr.numel()))
    else:
        factors = build.node_factors(graph.rowptr)
    diagonal = loops_of * factors.square() if loops or plain.num_edges < graph.num_edges else None
    return Normalised(structure, factors, factors, diagonal)


def split_loops(graph: Graph) -> Normalised:
    """Self-loops as a diagonal beside the edges."""
    plain, diagonal = graph.split_self_loops()
    return Normalised(plain, diagonal=diagonal) if plain.num_edges < graph.num_edges else Normalised(graph)


def _of_block(graph: Graph, improved: bool, loops: bool) -> Normalised:
    fill = _fill(graph, improved) if loops else None
    found = _Loops.of(graph.rowptr, graph.col, graph.value, 0, fill)
    if graph.block is not None and graph.block.whole is not None:
        factors = factors_of(graph.block.whole, improved, loops)[graph.block.nodes]
    else:
        others = found.degree.new_full((graph.num_src - graph.num_dst,), fill or 0.0)
        factors = _inverse_root(torch.cat([found.degree, others]))
    own = factors[: graph.num_dst]
    parts = (graph.rowptr, graph.col, graph.num_src, graph.value)
    if found.mask is not None:
        parts = build.filter_edges(*parts, ~found.mask)[:4]
    diagonal = None if found.own is None else found.own * own.square()
    return Normalised(Graph(*parts), factors, own, diagonal)  # a new Graph: this one would hold itself


def _of_part(graph: Graph, halo: Halo, improved: bool, loops: bool) -> Normalised:
    """Of the nodes of one rank, in the arithmetic of a whole graph; factors of the halo come from their owners.

    `dst` is of own nodes, `src` of [own | halo]. Called by all ranks at once.
    """
    if graph.value is None and not improved:
        side = _plain_side(graph)
        loops_of = torch.ones(graph.num_dst) if loops else side.loops
        degree = side.graph.rowptr.diff() + 1 if loops else graph.degree
        factors = _inverse_root(degree.to(torch.float32))
        has_diagonal = loops or bool((halo.ranks.gather(side.loops.sum().reshape(1)) > 0).any())
        diagonal = loops_of * factors.square() if has_diagonal else None
        reverse = None if halo.reverse is None else _plain_side(halo.reverse).graph
        made = _with_halo(side.graph, halo.with_reverse(reverse))
        return Normalised(made, halo.spread(factors), factors, diagonal)
    looped = _looped_side(graph, improved) if loops else graph
    row, weight = row_of_edge(looped.rowptr), _ones_if_none(looped)
    degree = torch.zeros(graph.num_dst).index_add(0, row, weight)
    factors = _inverse_root(degree)
    side = _weighted_side(looped, weight, factors, halo.spread(factors))
    reverse = None
    if halo.reverse is not None and halo.reverse.halo is not None:
        back = _looped_side(halo.reverse, improved) if loops else halo.reverse
        far = halo.reverse.halo.spread(factors)
        found = _weighted_side(back, _ones_if_none(back), factors, far, reversed_edges=True).graph
        reverse = _with_halo(found, halo.reverse.halo)
    has_diagonal = bool((halo.ranks.gather((side.loops != 0).sum().reshape(1)) > 0).any())
    made = _with_halo(side.graph, halo.with_reverse(reverse))
    return Normalised(made, diagonal=side.loops if has_diagonal else None)


class _Side(NamedTuple):
    """The edges of a part in one direction, without loops, and the weight of each own node's loops."""

    graph: Graph
    loops: Tensor


def _with_halo(graph: Graph, halo: Halo | None) -> Graph:
    return Graph(graph.rowptr, graph.col, graph.num_src, graph.value, halo=halo)


def _plain_side(graph: Graph) -> _Side:
    row = row_of_edge(graph.rowptr)
    mask = graph.col == row
    loops = torch.zeros(graph.num_dst).index_add(0, row[mask], torch.ones(int(mask.sum())))
    parts = build.filter_edges(graph.rowptr, graph.col, graph.num_src, None, ~mask)[:4] if bool(mask.any()) else None
    parts = (graph.rowptr, graph.col, graph.num_src, None) if parts is None else parts
    return _Side(Graph(*parts, halo=graph.halo), loops)


def _looped_side(graph: Graph, improved: bool) -> Graph:
    rowptr, col, _, value, _ = build.with_self_loops(graph.rowptr, graph.col, graph.value, 2.0 if improved else 1.0)
    return Graph(rowptr, col, graph.num_src, value)


def _ones_if_none(graph: Graph) -> Tensor:
    return torch.ones(graph.num_edges) if graph.value is None else graph.value


def _weighted_side(graph: Graph, weight: Tensor, own: Tensor, far: Tensor, reversed_edges: bool = False) -> _Side:
    """Values f_src w f_dst; `own` are factors of rows, `far` of [own | halo]."""
    row = row_of_edge(graph.rowptr)
    of_row, of_col = own[row], far[graph.col.long()]
    value = of_row * weight * of_col if reversed_edges else of_col * weight * of_row
    mask = graph.col == row
    loops = torch.zeros(graph.num_dst).index_add(0, row[mask], value[mask])
    parts = build.filter_edges(graph.rowptr, graph.col, graph.num_src, value, ~mask)[:4]
    return _Side(Graph(*parts), loops)


class _Loops(NamedTuple):
    """The self-loops of some rows of a CSR, and the weighted degrees of these rows, loops included."""

    mask: Tensor | None
    """Which edges are loops; None: no edge is."""
    own: Tensor | None
    """The weight of each row's loop; None: no row has one."""
    degree: Tensor

    @classmethod
    def of(cls, rowptr: Tensor, col: Tensor, value: Tensor | None, first: int, fill: float | None) -> _Loops:
        """`first`: the number of the first row. `fill`: the weight of a loop that a row has not; None: none is added.

        As in PyG the last of a row's loops counts where loops are added, else the sum of all.
        """
        rows, row = rowptr.numel() - 1, row_of_edge(rowptr)
        mask = col == row + first
        looped = row[mask]
        own = None if fill is None else torch.full((rows,), fill, device=col.device)
        degree = rowptr.diff().float()
        if value is not None:
            degree = torch.zeros(rows, device=col.device).index_add(0, row, value)
        if len(looped):
            weight = torch.ones(len(looped), device=col.device) if value is None else value[mask]
            total = torch.zeros(rows, device=col.device).index_add(0, looped, weight)
            if own is None:
                return cls(mask, total, degree)
            last = torch.ones_like(looped, dtype=torch.bool)
            last[:-1] = looped[1:] != looped[:-1]
            own[looped[last]] = weight[last]
            if value is None:
                degree = degree - total
            else:
                degree = torch.zeros(rows, device=col.device).index_add(0, row[~mask], value[~mask])
        return cls(mask if len(looped) else None, own, degree if own is None else degree + own)


def _fill(graph: Graph, improved: bool) -> float:
    """The weight of a new loop; in a graph without weights it is that of the edges, as in PyG."""
    return 2.0 if improved and graph.value is not None else 1.0


def factors_of(graph: Graph, improved: bool, loops: bool) -> Tensor:
    """deg^-1/2 of every node of a square graph, a part of the rows at a time."""
    fill = _fill(graph, improved) if loops else None

    def compute() -> Tensor:
        degree = torch.empty(graph.num_dst)
        for first in range(0, graph.num_dst, ROWS_AT_A_TIME):
            rowptr = graph.rowptr[first : first + ROWS_AT_A_TIME + 1]
            at = slice(int(rowptr[0]), int(rowptr[-1]))
            value = None if graph.value is None else graph.value[at]
            found = _Loops.of(rowptr - rowptr[0], graph.col[at], value, first, fill)
            degree[first : first + ROWS_AT_A_TIME] = found.degree
        return _inverse_root(degree)

    return graph.derived(f"gcn factors {improved} {loops}", compute)


def _inverse_root(degree: Tensor) -> Tensor:
    factor = degree.pow(-0.5)
    return factor.masked_fill(factor == torch.inf, 0.0)


def with_loops(graph: Graph) -> Graph:
    """One loop at each node that is source and destination, last in its row, in place of those that are there."""
    if graph.halo is not None:
        looped = with_loops(Graph(graph.rowptr, graph.col, graph.num_src))
        return Graph(looped.rowptr, looped.col, looped.num_src, halo=graph.halo)
    rows, row = graph.num_dst, row_of_edge(graph.rowptr)
    keep = graph.col != row
    kept_row, kept_col = row[keep], graph.col[keep]
    own = torch.arange(min(graph.num_src, rows), device=graph.col.device)
    counts = torch.bincount(kept_row, minlength=rows)
    counts[: len(own)] += 1
    rowptr = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
    col = graph.col.new_empty(int(rowptr[-1]))
    place = torch.arange(len(kept_row), device=col.device) + torch.where(kept_row < len(own), kept_row, len(own))
    col[place] = kept_col  # each row before has taken one place more
    col[rowptr[1 : len(own) + 1] - 1] = own.to(torch.int32)
    return Graph(rowptr, col, graph.num_src, None, None, graph.block)
