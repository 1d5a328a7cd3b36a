"""The Adjacency behind what a layer was called with, inside a program that `torch.compile` or `torch.export` traces.

A traced tensor stands for another one in every call, so nothing is remembered of it: ops of the program build the CSR
anew whenever it runs, from the edges that it is called with. Within one run, layers that are given the same Graph share
it. No size depends on contents, which would break the traced graph: loops are not cut out, as they are in build.py.

    GCN         loops that a node has share the weight of the one it is to have; the diagonal has those of other nodes
    attention   loops are moved to one more source and one more destination; the result is cut to the others
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..graph import Graph
from ..ops import _checks
from ..ops.csr import coo_to_csr, count_loops
from .adjacency import EXACT, Adjacency, Reduce

Sizes = tuple[int, int]


def is_traced(edge_index: Any) -> bool:
    """Whether the program is being traced, and its ops are to build the adjacency."""
    if not torch.compiler.is_compiling():
        return False
    if isinstance(edge_index, Graph):
        return edge_index.block is None
    return (
        isinstance(edge_index, Tensor) and edge_index.layout == torch.strided and not hasattr(edge_index, "as_tensor")
    )


def graph_of(edge_index: Any, sizes: Sizes) -> Graph:
    """The CSR of a list of edges, or of a Graph without what that remembers."""
    if isinstance(edge_index, Graph):
        return edge_index if edge_index.is_traced else edge_index.as_traced()
    _checks.dtype_of("edge_index", edge_index, (torch.int64, torch.int32))
    _checks.shape_of("edge_index", edge_index, (2, None), "[2, nnz]")
    rowptr, col, perm = coo_to_csr(edge_index[1], edge_index[0], sizes[1], sizes[0])
    return Graph.traced(rowptr, col, sizes[0], None, perm)


def neighbours(edge_index: Any, sizes: Sizes, weight: Tensor | None, reduce: Reduce) -> Adjacency:
    """Sum, mean or maximum over the neighbours."""
    graph = graph_of(edge_index, sizes)
    return Adjacency.of(graph, None if weight is None else _sorted(graph, weight), reduce)


def gcn(edge_index: Any, num_nodes: int, weight: Tensor | None, improved: bool, loops: bool) -> Adjacency:
    """D^-1/2 (A + I) D^-1/2."""
    graph = graph_of(edge_index, (num_nodes, num_nodes))
    if weight is not None:
        return _normalised(graph, _sorted(graph, weight), improved, loops)
    return graph.derived(f"gcn {improved} {loops}", lambda: _normalised(graph, graph.value, improved, loops))


def _normalised(graph: Graph, value: Tensor | None, improved: bool, loops: bool) -> Adjacency:
    row, col, nodes = _rows(graph), graph.col.long(), graph.num_dst
    weight = torch.ones(col.size(0), device=col.device) if value is None else value
    zeros = torch.zeros(nodes, device=col.device)
    if not loops:
        factor = _inverse_root(zeros.index_add(0, row, weight))
        return Adjacency.of(graph, factor[row] * weight * factor[col])
    is_loop, count = col == row, count_loops(graph.rowptr, graph.col)
    if value is None:  # factors of nodes in place of weights: less passes over the edges
        factor = _inverse_root((graph.rowptr.diff() - count + 1).float())
        weight = torch.where(is_loop, count.clamp(min=1).float().reciprocal()[row], 1.0)
        diagonal = torch.where(count > 0, 0.0, factor.square())
        return Adjacency(graph, weight, factor, factor, diagonal, "sum", EXACT)
    own = torch.full((nodes + 1,), 2.0 if improved else 1.0, device=col.device)
    own = own.scatter(0, torch.where(is_loop, row, nodes), value)[:nodes]  # as in PyG the last of a node's loops counts
    factor = _inverse_root(zeros.index_add(0, row, torch.where(is_loop, 0.0, weight)) + own)
    weight = torch.where(is_loop, (own / count.clamp(min=1))[row], weight)
    diagonal = torch.where(count > 0, 0.0, own) * factor.square()
    return Adjacency.of(graph, factor[row] * weight * factor[col]).with_diagonal(diagonal)


def looped(edge_index: Any, sizes: Sizes) -> Graph:
    """One loop for each node that is both source and destination; those that were there join one more source to one
    more destination.
    """
    graph = graph_of(edge_index, sizes)
    return graph.derived("looped", lambda: _looped(graph))


def _looped(graph: Graph) -> Graph:
    row, col, (num_src, num_dst) = _rows(graph), graph.col.long(), (graph.num_src, graph.num_dst)
    is_loop, own = col == row, torch.arange(min(num_src, num_dst), device=col.device)
    src = torch.cat([torch.where(is_loop, num_src, col), own])
    dst = torch.cat([torch.where(is_loop, num_dst, row), own])
    return graph_of(torch.stack([src, dst]), (num_src + 1, num_dst + 1))


def _rows(graph: Graph) -> Tensor:
    """The destination of each edge."""

    def made() -> Tensor:
        rows = torch.arange(graph.num_dst, device=graph.col.device)
        return torch.repeat_interleave(rows, graph.rowptr.diff(), output_size=graph.col.size(0))

    return graph.derived("rows", made)


def _sorted(graph: Graph, weight: Tensor) -> Tensor:
    return graph.sort_edges(weight.float().reshape(-1))


def _inverse_root(degree: Tensor) -> Tensor:
    factor = degree.pow(-0.5)
    return factor.masked_fill(factor == torch.inf, 0.0)
