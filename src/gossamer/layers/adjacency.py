"""The Graph behind what a layer was called with, built once per tensor.

A layer takes PyG's `edge_index`, an `EdgeIndex`, a `torch.sparse` matrix (destinations as rows) or a `Graph`. What is
built from a tensor is remembered for as long as that tensor lives and until it is changed in place; it is found by the
tensor's identity through a weak reference, never by its address. A change through NumPy or `.data` is not counted by
torch, hence not noticed.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary
from torch_geometric.nn.conv.gcn_conv import gcn_norm as pyg_gcn_norm
from torch_geometric.utils import add_remaining_self_loops

from .. import memory
from ..graph import Graph
from ..graph import build as graph_build

Sizes = tuple[int, int]
_remembered: WeakTensorKeyDictionary = WeakTensorKeyDictionary()


class Weighted(NamedTuple):
    """A graph, weights that replace its own because they are learned (CSR order), and a factor of either end's node."""

    graph: Graph
    value: Tensor | None = None
    scale: Tensor | None = None


class _Entry:
    """What was built from one version of a tensor, and what was built from it and one of weights."""

    def __init__(self, version: Hashable) -> None:
        self.version = version
        self.built: dict[Hashable, Any] = {}
        self.with_weight: WeakTensorKeyDictionary = WeakTensorKeyDictionary()


def version_of(tensor: Tensor) -> Hashable:
    """Changes when the tensor is changed in place or resized; None for inference tensors, which count no changes."""
    if tensor.is_inference():
        return None
    own = tensor._version, tuple(tensor.shape), tensor.data_ptr() if tensor.layout == torch.strided else 0
    held = tensor.as_tensor() if hasattr(tensor, "as_tensor") else None  # an EdgeIndex wraps the tensor of its ids
    return own if held is None else (own, version_of(held))


def remember(tensor: Tensor, weight: Tensor | None, key: Hashable, build: Callable[[], Any]) -> Any:
    """`build()`, once for this version of `tensor` (and of `weight`) and this key."""
    if not isinstance(tensor, Tensor):
        raise TypeError(
            "`edge_index` must be a tensor of shape [2, nnz], an EdgeIndex, a torch.sparse matrix or a gs.Graph "
            f"(got {type(tensor).__name__})"
        )
    version = version_of(tensor)
    weight_version = None if weight is None else version_of(weight)
    if version is None or (weight is not None and weight_version is None):
        return build()
    entry = _current(_remembered, tensor, version)
    if weight is not None:
        entry = _current(entry.with_weight, weight, weight_version)
    if key not in entry.built:
        entry.built[key] = build()
        memory.trim_heap()
    return entry.built[key]


def _current(entries: WeakTensorKeyDictionary, tensor: Tensor, version: Hashable) -> _Entry:
    entry = entries.get(tensor)
    if entry is None or entry.version != version:
        entry = entries[tensor] = _Entry(version)
    return entry


def is_sparse(edge_index: Any) -> bool:
    return isinstance(edge_index, Tensor) and edge_index.layout != torch.strided


@torch.compiler.disable  # looks tensors up by identity, which a traced tensor has not: a graph break, not a wrong graph
def graph_of(edge_index: Any, sizes: Sizes, weight: Tensor | None = None) -> Weighted:
    """The graph with (num_src, num_dst) nodes and its weights; weights that need a gradient are kept apart."""
    if isinstance(edge_index, Graph):
        return _given(edge_index, sizes, weight)
    if is_sparse(edge_index):
        graph = remember(edge_index, None, "graph", lambda: Graph.from_torch_sparse(edge_index))
        return Weighted(checked(graph, sizes))
    if weight is None or weight.requires_grad:
        graph = remember(edge_index, None, sizes, lambda: from_edges(edge_index, sizes, None))
        return Weighted(graph, None if weight is None else graph.sort_edges(weight.float().reshape(-1)))
    return Weighted(remember(edge_index, weight, sizes, lambda: from_edges(edge_index, sizes, weight)))


@torch.compiler.disable
def gcn_graph_of(edge_index: Any, num_nodes: int, weight: Tensor | None, improved: bool, loops: bool) -> Weighted:
    """`graph_of` with the weights of a graph convolution, D^-1/2 (A + I) D^-1/2."""
    key, sizes = ("gcn", num_nodes, improved, loops), (num_nodes, num_nodes)
    if isinstance(edge_index, Graph):
        if weight is not None and weight.requires_grad:
            graph = checked(edge_index, sizes)
            edges = graph._cached("listed", lambda: listed_edges(graph))
            return gcn_graph_of(edges, num_nodes, weight, improved, loops)
        graph = _given(edge_index, sizes, weight).graph
        return graph._cached(f"{key}", lambda: _normalised(graph, improved, loops))
    if is_sparse(edge_index):
        return Weighted(remember(edge_index, None, key, lambda: _sparse_gcn(edge_index, sizes, improved, loops)))
    if weight is not None and weight.requires_grad:
        graph = remember(edge_index, None, ("structure", *key), lambda: _structure(edge_index, sizes, loops))
        weight = _one_per_edge(weight, edge_index)
        value = pyg_gcn_norm(edge_index, weight, num_nodes, improved, loops, "source_to_target", weight.dtype)[1]
        return Weighted(graph, graph.sort_edges(value))
    return remember(
        edge_index, weight, key, lambda: _normalised(from_edges(edge_index, sizes, weight), improved, loops)
    )


def _normalised(graph: Graph, improved: bool, loops: bool) -> Weighted:
    """D^-1/2 (A + I) D^-1/2. Without weights it is a factor per node, which takes less memory than one per edge."""
    if graph.value is not None or improved:
        return Weighted(graph.gcn_norm(improved, loops))
    graph = graph.with_self_loops() if loops else graph
    graph = Graph(graph.rowptr, graph.col, graph.num_src)  # without what else it may remember of its making
    return Weighted(graph, None, graph._cached("node_factors", lambda: graph_build.node_factors(graph.rowptr)))


def from_edges(edge_index: Tensor, sizes: Sizes, weight: Tensor | None) -> Graph:
    """`Graph.from_edge_index` whose error tells of `x`, which gave the sizes."""
    weight = None if weight is None else weight.detach().float().reshape(-1)
    try:
        return Graph.from_edge_index(edge_index, sizes, weight)
    except IndexError as error:
        rows = " and ".join(str(count) for count in dict.fromkeys(sizes))
        raise IndexError(f"`x` must have one row per node of `edge_index` (got {rows} rows): {error}") from None


def listed_edges(graph: Graph) -> Tensor:
    """[2, nnz] in the order of the list that the graph was built from, CSR order if there was none."""
    edges = graph.edge_index
    return edges if graph.perm is None else graph.unsort_edges(edges.t().contiguous()).t()


def _structure(edge_index: Tensor, sizes: Sizes, loops: bool) -> Graph:
    """The graph that PyG's `gcn_norm` gives weights to."""
    plain = edge_index.as_tensor() if hasattr(edge_index, "as_tensor") else edge_index
    graph = from_edges(plain, sizes, None)
    return from_edges(add_remaining_self_loops(plain, num_nodes=sizes[0])[0], sizes, None) if loops else graph


def _one_per_edge(weight: Tensor, edge_index: Tensor) -> Tensor:
    if weight.numel() != edge_index.size(1):
        raise ValueError(
            f"`edge_weight` must have one number for each of the {edge_index.size(1)} edges "
            f"(got the shape {tuple(weight.shape)})"
        )
    return weight.float().reshape(-1)  # autocast may have made it bfloat16


def _given(graph: Graph, sizes: Sizes, weight: Tensor | None) -> Weighted:
    checked(graph, sizes)
    if weight is None:
        return Weighted(graph)
    if weight.requires_grad:
        return Weighted(graph, graph.sort_edges(weight.float().reshape(-1)))
    return Weighted(graph.with_value(graph.sort_edges(weight.float().reshape(-1))))


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
    """The graph, if it has (num_src, num_dst) nodes."""
    if (graph.num_src, graph.num_dst) != sizes:
        raise ValueError(
            f"`edge_index` must be a graph of {sizes[0]} source and {sizes[1]} destination nodes, as many as `x` has "
            f"rows (got {graph}); pass the features that belong to this graph"
        )
    return graph
