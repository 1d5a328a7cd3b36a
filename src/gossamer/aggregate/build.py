"""The Adjacency behind what a layer was called with, built once per tensor.

A layer takes PyG's `edge_index`, an `EdgeIndex`, a `torch.sparse` matrix (destinations as rows) or a `Graph`. What is
built from a tensor is remembered as a fact about it (state/facts.py); what is built from a Graph, on the Graph. Of a
block of a mini-batch, tensors of edges come in its own order, and may go on with the edges of outer layers.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch_geometric.nn.conv.gcn_conv import gcn_norm as pyg_gcn_norm
from torch_geometric.utils import add_remaining_self_loops, add_self_loops, remove_self_loops

from .. import memory
from ..graph import Graph
from ..graph.graph import LARGE
from ..graph.normalise import Normalised, gcn_parts, split_loops, with_loops
from ..state import facts
from . import traced
from .adjacency import Adjacency, Reduce
from .halo import adjacency_on

Sizes = tuple[int, int]
Built = TypeVar("Built")


def is_sparse(edge_index: Any) -> bool:
    return isinstance(edge_index, Tensor) and edge_index.layout != torch.strided


def _once(edge_index: Any, weight: Tensor | None, key: Hashable, build: Callable[[], Built]) -> Built:
    """`build()`, once for this tensor and these weights."""
    if not isinstance(edge_index, Tensor):
        raise TypeError(
            "`edge_index` must be a tensor of shape [2, nnz], an EdgeIndex, a torch.sparse matrix, a gs.Graph or "
            f"gs.Blocks (got {type(edge_index).__name__})"
        )

    def and_trim() -> Built:
        made = build()
        if edge_index.layout == torch.strided and edge_index.numel() >= 2 * LARGE:
            memory.trim_heap()
        return made

    return facts.remember(edge_index, key, and_trim, weight)


def neighbours(edge_index: Any, sizes: Sizes, weight: Tensor | None = None, reduce: Reduce = "sum") -> Adjacency:
    """Sum, mean or maximum over a graph of (num_src, num_dst) nodes; weights that require grad stay beside it."""
    if traced.is_traced(edge_index):
        return traced.neighbours(edge_index, sizes, weight, reduce)
    return _neighbours(edge_index, sizes, weight, reduce)


@torch.compiler.disable  # looks tensors up by identity, which a traced tensor has not: a graph break, not a wrong graph
def _neighbours(edge_index: Any, sizes: Sizes, weight: Tensor | None, reduce: Reduce) -> Adjacency:
    graph, value = _weighted(edge_index, sizes, weight)
    made = Adjacency.of(graph, value, reduce)
    return made if graph.halo is None else adjacency_on(graph, value, None, made.dst_scale, None, made.reduce)


def _weighted(edge_index: Any, sizes: Sizes, weight: Tensor | None) -> tuple[Graph, Tensor | None]:
    if isinstance(edge_index, Graph):
        graph = checked(edge_index, sizes)
        if graph.halo is not None and weight is not None:
            raise ValueError(
                "`edge_weight` must be None with a part of a graph, whose edges stand in an order of their own; give "
                "the weights to the whole graph, gs.Graph.from_edge_index(edge_index, num_nodes, weight)"
            )
        value = None if weight is None else in_csr_order(graph, weight.float().reshape(-1))
        fixed = value is not None and not value.requires_grad
        return (graph.with_value(value), None) if fixed else (graph, value)
    if is_sparse(edge_index):
        return checked(_once(edge_index, None, "graph", lambda: Graph.from_torch_sparse(edge_index)), sizes), None
    if weight is None or weight.requires_grad:
        graph = _once(edge_index, None, sizes, lambda: from_edges(edge_index, sizes, None))
        return graph, None if weight is None else graph.sort_edges(weight.float().reshape(-1))
    return _once(edge_index, weight, sizes, lambda: from_edges(edge_index, sizes, weight)), None


def gcn(edge_index: Any, num_nodes: int, weight: Tensor | None, improved: bool, loops: bool) -> Adjacency:
    """The matrix of a graph convolution, D^-1/2 (A + I) D^-1/2."""
    if traced.is_traced(edge_index):
        return traced.gcn(edge_index, num_nodes, weight, improved, loops)
    return _gcn(edge_index, num_nodes, weight, improved, loops)


@torch.compiler.disable
def _gcn(edge_index: Any, num_nodes: int, weight: Tensor | None, improved: bool, loops: bool) -> Adjacency:
    key, sizes = ("gcn", num_nodes, improved, loops), (num_nodes, num_nodes)
    if isinstance(edge_index, Graph) and edge_index.block is not None:
        return _block_gcn(checked(edge_index, (num_nodes, edge_index.num_dst)), weight, improved, loops)
    if isinstance(edge_index, Graph):
        if weight is not None and weight.requires_grad and edge_index.halo is None:
            return _gcn(listed(checked(edge_index, sizes)), num_nodes, weight, improved, loops)
        graph = _weighted(edge_index, sizes, weight)[0]
        return graph.derived(f"{key}", lambda: _of(gcn_parts(graph, improved, loops)))
    if is_sparse(edge_index):
        return _once(edge_index, None, key, lambda: _of(split_loops(_sparse_gcn(edge_index, sizes, improved, loops))))
    if weight is not None and weight.requires_grad:
        graph = _once(edge_index, None, ("structure", *key), lambda: _structure(edge_index, sizes, loops))
        weight = _one_per_edge(weight, edge_index)
        value = pyg_gcn_norm(edge_index, weight, num_nodes, improved, loops, "source_to_target", weight.dtype)[1]
        return Adjacency(graph, graph.sort_edges(value))
    return _once(
        edge_index, weight, key, lambda: _of(gcn_parts(from_edges(edge_index, sizes, weight), improved, loops))
    )


def _of(parts: Normalised) -> Adjacency:
    return adjacency_on(parts.graph, None, parts.src, parts.dst, parts.diagonal)


# Blocks: the destinations are the first sources -----------------------------------------------------------------


def _block_gcn(graph: Graph, weight: Tensor | None, improved: bool, loops: bool) -> Adjacency:
    """The matrix of the block's sources as nodes, cut to the rows of its destinations, which alone have edges.

    In a block that has all edges of its destinations, the degrees of sources are those of the whole graph.
    """
    if weight is not None and graph.block is not None and graph.block.whole is not None:
        raise ValueError(
            "`edge_weight` must be None with a part of a graph, as the degrees of its sources are those of the whole "
            "graph; build that with the weights: gs.Graph.from_edge_index(edge_index, num_nodes, weight)"
        )
    if weight is not None and weight.requires_grad:
        square = _gcn(listed(graph), graph.num_src, _edges_of(graph, weight), improved, loops)
        return _first_rows(square, graph.num_dst)
    graph = _weighted(graph, (graph.num_src, graph.num_dst), weight)[0]
    return graph.derived(f"gcn {improved} {loops}", lambda: _of(gcn_parts(graph, improved, loops)))


def _first_rows(adjacency: Adjacency, rows: int) -> Adjacency:
    """The matrix without its later rows; of one whose weights are `value`."""
    graph = adjacency.graph
    assert adjacency.value is not None
    rowptr = graph.rowptr[: rows + 1]
    col = graph.col[: int(rowptr[-1])]
    return Adjacency(Graph(rowptr, col, graph.num_src), adjacency.value[: len(col)])


def _edges_of(graph: Graph, attribute: Tensor) -> Tensor:
    """The rows of a tensor that belong to a block's edges: the first."""
    if attribute.dim() == 0 or attribute.size(0) < graph.num_edges:
        raise ValueError(
            f"a tensor of a block's edges must have a row for each of its {graph.num_edges} edges, in the order of "
            f"`Blocks.col` (got the shape {tuple(attribute.shape)})"
        )
    return attribute[: graph.num_edges]


def in_csr_order(graph: Graph, attribute: Tensor) -> Tensor:
    """A tensor of edges, given in the order of the list that the graph was built from or, of a block, of its CSR."""
    if graph.block is not None and graph.perm is None:
        return _edges_of(graph, attribute)
    return graph.sort_edges(attribute)


@torch.compiler.disable
def looped(edge_index: Any, sizes: Sizes) -> Graph:
    """The graph with one loop for each node that is both source and destination: attention weighs loops like edges."""
    if isinstance(edge_index, Graph):
        checked(edge_index, sizes)
        if edge_index.halo is not None:
            return edge_index.derived("looped", lambda: with_loops(edge_index))
        return edge_index.derived("looped", lambda: _looped(listed(edge_index), sizes))
    return _once(edge_index, None, ("looped", sizes), lambda: _looped(edge_index, sizes))


def _looped(edge_index: Tensor, sizes: Sizes) -> Graph:
    edges, _ = add_self_loops(remove_self_loops(_plain(edge_index))[0], num_nodes=min(sizes))
    return from_edges(edges, sizes, None)


def from_edges(edge_index: Tensor, sizes: Sizes, weight: Tensor | None) -> Graph:
    """`Graph.from_edge_index` whose error tells of `x`, which gave the sizes."""
    weight = None if weight is None else weight.detach().float().reshape(-1)
    try:
        return Graph.from_edge_index(edge_index, sizes, weight)
    except IndexError as error:
        rows = " and ".join(str(count) for count in dict.fromkeys(sizes))
        raise IndexError(f"`x` must have one row per node of `edge_index` (got {rows} rows): {error}") from None


def listed(graph: Graph) -> Tensor:
    """[2, nnz] in the order of the list that the graph was built from, CSR order if there was none."""
    return graph.derived("listed", lambda: listed_edges(graph))


def listed_edges(graph: Graph) -> Tensor:
    """`listed`, made anew."""
    edges = graph.edge_index
    return edges if graph.perm is None else graph.unsort_edges(edges.t().contiguous()).t()


def _plain(edge_index: Tensor) -> Tensor:
    return edge_index.as_tensor() if hasattr(edge_index, "as_tensor") else edge_index


def _structure(edge_index: Tensor, sizes: Sizes, loops: bool) -> Graph:
    """The graph that PyG's `gcn_norm` gives weights to."""
    plain = _plain(edge_index)
    graph = from_edges(plain, sizes, None)
    return from_edges(add_remaining_self_loops(plain, num_nodes=sizes[0])[0], sizes, None) if loops else graph


def _one_per_edge(weight: Tensor, edge_index: Tensor) -> Tensor:
    if weight.numel() != edge_index.size(1):
        raise ValueError(
            f"`edge_weight` must have one number for each of the {edge_index.size(1)} edges "
            f"(got the shape {tuple(weight.shape)})"
        )
    return weight.float().reshape(-1)  # autocast may have made it bfloat16


def _sparse_gcn(matrix: Tensor, sizes: Sizes, improved: bool, loops: bool) -> Graph:
    """As PyG does for sparse matrices: a loop is added to every node, beside one that may be there."""
    graph = checked(Graph.from_torch_sparse(matrix), sizes)
    if not loops:
        return graph.gcn_norm(add_self_loops=False)
    nodes = torch.arange(graph.num_nodes)
    edges = torch.cat([graph.edge_index, torch.stack([nodes, nodes])], dim=1)
    own = torch.ones(graph.num_edges) if graph.value is None else graph.value
    weight = torch.cat([own, torch.full((graph.num_nodes,), 2.0 if improved else 1.0)])
    return Graph.from_edge_index(edges, sizes, weight).gcn_norm(add_self_loops=False)


def checked(graph: Graph, sizes: Sizes) -> Graph:
    """The graph, if it has (num_src, num_dst) nodes; a part has as many sources as destinations for a layer."""
    own = graph.num_src if graph.halo is None else graph.num_dst
    if (own, graph.num_dst) != sizes:
        raise ValueError(
            f"`edge_index` must be a graph of {sizes[0]} source and {sizes[1]} destination nodes, as many as `x` has "
            f"rows (got {graph}); pass the features that belong to this graph"
        )
    return graph
