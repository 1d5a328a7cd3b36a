"""Sampling along several types of edges between several types of nodes.

In each hop, the nodes that the hop before found are expanded along every type of edge that ends in their type, in the
order in which the types were given; nodes of a type are numbered in the order in which they are found.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, final

import torch
from torch import Tensor

from ..graph import Graph
from ..ops.csr import row_of_edge
from ..ops.gather_rows import gather_rows
from ..ops.sample_neighbours import sample_edges
from ..quiet_pyg import importing_pyg
from . import checks
from .rows import rows_of
from .seeds import derive

EdgeType = tuple[str, str, str]


class HeteroSample(NamedTuple):
    """By node type: ids, and how many each hop found. By edge type: local (source, destination), number, weights."""

    n_id: dict[str, Tensor]
    nodes_per_hop: dict[str, list[int]]
    edge_index: dict[EdgeType, Tensor]
    edges_per_hop: dict[EdgeType, list[int]]
    value: dict[EdgeType, Tensor]


@final
class HeteroBatches:
    """Makes a `HeteroData` of some seeds; arguments are those of `NeighborLoader`."""

    def __init__(
        self,
        graphs: Mapping[EdgeType, Graph],
        x: Any,
        fanouts: Any,
        seeds: Any,
        y: Any,
        replace: bool,
        weighted: bool,
        dtype: torch.dtype,
    ) -> None:
        self._graphs, self._replace = dict(graphs), bool(replace)
        self._num_nodes = _num_nodes(self._graphs)
        self._weights = {kind: checks.weights(g, weighted, f"graph[{kind}]") for kind, g in graphs.items()}
        self._fanouts = _fanouts(fanouts, list(self._graphs))
        self._type, ids = _typed_seeds(seeds, self._num_nodes)
        self.seeds = checks.seeds(ids, self._num_nodes[self._type])
        by_type = _by_type("x", x, self._num_nodes)
        self._x = {kind: rows_of(f"x[{kind!r}]", rows, self._num_nodes[kind], dtype) for kind, rows in by_type.items()}
        labels = _by_type("y", y if isinstance(y, Mapping) or y is None else {self._type: y}, self._num_nodes)
        self._y = {kind: checks.per_node(f"y[{kind!r}]", each, self._num_nodes[kind]) for kind, each in labels.items()}
        # here, since a loader calls `make` in a thread: filters of warnings belong to all threads
        with importing_pyg():
            from torch_geometric.data import HeteroData
        self._data = HeteroData

    def sample(self, seeds: Tensor, seed: int) -> HeteroSample:
        n_id = {kind: seeds if kind == self._type else seeds.new_empty(0) for kind in self._num_nodes}
        found = {kind: [ids.numel()] for kind, ids in n_id.items()}
        ends: dict[EdgeType, list[Tensor]] = {kind: [torch.empty(2, 0, dtype=torch.int64)] for kind in self._graphs}
        edges: dict[EdgeType, list[Tensor]] = {kind: [torch.empty(0, dtype=torch.int64)] for kind in self._graphs}
        for hop in range(len(next(iter(self._fanouts.values())))):
            first = {kind: ids.numel() - found[kind][-1] for kind, ids in n_id.items()}
            frontier = {kind: ids[first[kind] :] for kind, ids in n_id.items()}
            for number, (kind, graph) in enumerate(self._graphs.items()):
                draw = (frontier[kind[2]], self._fanouts[kind][hop], self._replace, derive(seed, number))
                drawn = sample_edges(graph.rowptr, graph.col, self._weights[kind], *draw)
                n_id[kind[0]], source = _number(n_id[kind[0]], drawn.source.long())
                ends[kind].append(torch.stack([source, row_of_edge(drawn.rowptr) + first[kind[2]]]))
                edges[kind].append(drawn.edge)
            for node_type, ids in n_id.items():
                found[node_type].append(ids.numel() - sum(found[node_type]))
        return HeteroSample(
            n_id,
            found,
            {kind: torch.cat(parts, 1) for kind, parts in ends.items()},
            {kind: [part.numel() for part in parts[1:]] for kind, parts in edges.items()},
            {
                kind: gather_rows(g.value, torch.cat(edges[kind]))
                for kind, g in self._graphs.items()
                if g.value is not None
            },
        )

    def make(self, seeds: Tensor, input_id: Tensor, seed: int) -> Any:
        sample, data = self.sample(seeds, seed), self._data()
        for kind, ids in sample.n_id.items():
            store = data[kind]
            store.n_id, store.num_nodes, store.num_sampled_nodes = ids, ids.numel(), sample.nodes_per_hop[kind]
            gather, labels = self._x.get(kind), self._y.get(kind)
            if gather is not None:
                store.x = gather(ids)
            if labels is not None:
                store.y = gather_rows(labels, ids)
        for edge_type, edge_index in sample.edge_index.items():
            data[edge_type].edge_index = edge_index
            data[edge_type].num_sampled_edges = sample.edges_per_hop[edge_type]
            if edge_type in sample.value:
                data[edge_type].edge_weight = sample.value[edge_type]
        data[self._type].input_id, data[self._type].batch_size = input_id, seeds.numel()
        return data


def _number(known: Tensor, nodes: Tensor) -> tuple[Tensor, Tensor]:
    """`known` with new nodes behind, in the order of their first occurrence; the position in it of each of `nodes`."""
    together = torch.cat([known, nodes])
    distinct, place = together.unique(return_inverse=True)
    first = torch.full_like(distinct, together.numel())
    first.scatter_reduce_(0, place, torch.arange(together.numel()), "amin")
    order = first.argsort()
    rank = torch.empty_like(order)
    rank[order] = torch.arange(order.numel())
    return together[first[order]], rank[place[known.numel() :]]


def _num_nodes(graphs: Mapping[Any, Any]) -> dict[str, int]:
    """Of each node type, on which all graphs must agree."""
    if not graphs:
        raise ValueError("`graph` must hold at least one edge type (got none)")
    counts: dict[str, int] = {}
    for kind, graph in graphs.items():
        if not (isinstance(kind, tuple) and len(kind) == 3 and all(isinstance(part, str) for part in kind)):
            raise TypeError(f"`graph` must have keys (source type, relation, destination type) (got {kind!r})")
        if not isinstance(graph, Graph):
            raise TypeError(f"`graph[{kind}]` must be a gs.Graph (got {type(graph).__name__})")
        for node_type, count in ((kind[0], graph.num_src), (kind[2], graph.num_dst)):
            if counts.setdefault(node_type, count) != count:
                raise ValueError(
                    f"`graph[{kind}]` must have {counts[node_type]} nodes of type {node_type!r}, as the other edge "
                    f"types have (got {count})"
                )
    return counts


def _fanouts(given: Any, kinds: list[EdgeType]) -> dict[EdgeType, list[int]]:
    if not isinstance(given, Mapping):
        return dict.fromkeys(kinds, checks.fanouts(given))
    missing = [kind for kind in kinds if kind not in given]
    if missing:
        raise ValueError(f"`fanouts` must have a list for every edge type (got none for {missing[0]})")
    each = {kind: checks.fanouts(given[kind]) for kind in kinds}
    if len({len(hops) for hops in each.values()}) > 1:
        raise ValueError(f"`fanouts` must have as many hops for every edge type (got {given})")
    return each


def _typed_seeds(given: Any, num_nodes: Mapping[str, int]) -> tuple[str, Any]:
    if not (isinstance(given, Sequence) and len(given) == 2 and isinstance(given[0], str)):
        raise TypeError(
            f"`seeds` must be (node type, ids) for graphs of several edge types (got {type(given).__name__})"
        )
    if given[0] not in num_nodes:
        raise ValueError(f"`seeds` must be of one of the node types {list(num_nodes)} (got {given[0]!r})")
    return given[0], given[1]


def _by_type(name: str, given: Any, num_nodes: Mapping[str, int]) -> dict[str, Any]:
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise TypeError(f"`{name}` must be a dict by node type, as `graph` is one (got {type(given).__name__})")
    for kind in given:
        if kind not in num_nodes:
            raise ValueError(f"`{name}` must have node types of the graph, {list(num_nodes)} (got {kind!r})")
    return dict(given)
