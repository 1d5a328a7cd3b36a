"""What steps need to know of a graph: along which edges to sum, and the factors of its nodes."""

from __future__ import annotations

from typing import Any, final

import torch
from torch import Tensor

from ..graph import Blocks, Graph
from ..graph.normalise import Normalised, as_edges, gcn_parts, with_loops


@final
class Graphs:
    """The graph of one call: the same for all steps, or, in a sampled batch, a block for each convolution."""

    def __init__(self, graph: Any, num_nodes: int) -> None:
        self._given = None if graph is None else graph_of(graph, num_nodes)

    @property
    def given(self) -> Graph | Blocks:
        if self._given is None:
            raise TypeError("`graph` must be a gs.Graph, gs.Blocks or an edge_index tensor (got None)")
        return self._given

    def of_rows(self, rows: int) -> Graph:
        """The graph whose sources have so many rows."""
        if isinstance(self.given, Blocks):
            return self.given.of_rows(rows)
        return self.given

    def normalised(self, rows: int, loops: bool) -> Normalised:
        """GCN's matrix in parts."""
        graph = self.of_rows(rows)
        return graph.derived(f"gcn parts {loops}", lambda: gcn_parts(graph, False, loops))

    def edges(self, rows: int, norm: str) -> Graph:
        """The edges with their factors as values: GCN's, with its diagonal as loops, or the weights of the graph."""
        graph = self.of_rows(rows)

        def made() -> Graph:
            parts = self.normalised(rows, norm == "gcn")
            found = as_edges(parts, parts.graph.value)
            return Graph(found.rowptr, found.col, graph.num_src, found.value)

        if norm:
            return graph.derived(f"edges {norm}", made)
        if graph.value is None:
            raise ValueError("`graph` must have weights, as those that the model was trained on; pass them to gs.Graph")
        return graph

    def looped(self, rows: int) -> Graph:
        """With one loop at every node that is source and destination."""
        graph = self.of_rows(rows)
        return graph.derived("with loops", lambda: with_loops(graph))

    def factors(self, name: str, rows: int) -> Tensor | None:
        """The factors of rows: of the sources of the graph that has so many, or of its destinations."""
        if not name:
            return None
        if name == "mean":
            return self.of_rows(rows).inverse_degree
        parts = self.normalised(rows, name.startswith("gcn"))
        return parts.src if name.endswith("src") else parts.dst


def graph_of(graph: Any, num_nodes: int) -> Graph | Blocks:
    """A Graph or Blocks as they are, an `edge_index` as a Graph."""
    if isinstance(graph, Tensor):
        return Graph.from_edge_index(graph, num_nodes)
    if not isinstance(graph, (Graph, Blocks)):
        raise TypeError(
            f"`graph` must be a gs.Graph, gs.Blocks or an edge_index tensor (got {type(graph).__name__}); build one "
            "with gs.Graph.from_edge_index(edge_index, num_nodes)"
        )
    sources = graph.sizes[0] if isinstance(graph, Blocks) else graph.num_src
    if sources != num_nodes:
        raise ValueError(
            f"`x` must have one row for each of the {sources} nodes of `graph` (got {num_nodes} rows); pass the "
            "features that belong to it"
        )
    if isinstance(graph, Graph) and graph.num_src != graph.num_dst and graph.block is None:
        raise ValueError(f"`graph` must have as many sources as destinations, or be a block of a batch (got {graph})")
    return graph


def pool_graph(batch: Tensor | None, num_nodes: int, num_graphs: int | None) -> Graph:
    """Nodes as sources, graphs as destinations: an edge from each node to its graph."""
    if batch is None:
        batch = torch.zeros(num_nodes, dtype=torch.int64)
    if batch.dtype not in (torch.int64, torch.int32) or batch.shape != (num_nodes,):
        raise ValueError(
            f"`batch` must hold the number of its graph for each of {num_nodes} nodes, int64 (got {batch.dtype} of "
            f"shape {tuple(batch.shape)})"
        )
    count = num_graphs if num_graphs is not None else int(batch.max()) + 1 if num_nodes else 0
    nodes = torch.arange(num_nodes)
    return Graph.from_edge_index(torch.stack([nodes, batch.long()]), (num_nodes, count))
