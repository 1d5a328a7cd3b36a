"""Partition by METIS, recursive bisection: few edges cut, and neighbouring numbers for neighbouring parts.

Nodes weigh their edges plus half the mean degree, so that parts have about as many edges (time) and nodes (memory). An
edge counts for each direction in which it is there. METIS takes about 60 bytes per edge and direction.
"""

from __future__ import annotations

import importlib.util
import os

import numpy as np
import torch
from torch import Tensor

from ..graph import Graph

MOST_EDGES = 2**31 - 1
"""METIS counts in int32."""
BYTES_PER_EDGE = 60


def is_installed() -> bool:
    return importlib.util.find_spec("pymetis") is not None


def fits(graph: Graph) -> bool:
    """Whether METIS can count the edges of both directions, and this machine has the memory."""
    edges = 2 * graph.num_edges
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return edges + int(node_weight(graph).sum()) <= MOST_EDGES and edges * BYTES_PER_EDGE < memory


def metis(graph: Graph, num_parts: int, seed: int = 0) -> Tensor:
    """The part of each node."""
    if not is_installed():
        raise ModuleNotFoundError(
            "`method` 'metis' needs pymetis: pip install 'gossamer-gnn[distributed]', or pass the method 'stream'"
        )
    import pymetis

    plain = undirected(graph)
    weight = node_weight(graph)
    if plain.num_edges > MOST_EDGES or int(weight.sum()) > MOST_EDGES:
        raise ValueError(
            f"`method` 'metis' counts edges of both directions in int32 (got {plain.num_edges}); pass the method "
            "'stream'"
        )
    if num_parts == 1:
        return torch.zeros(graph.num_nodes, dtype=torch.int64)
    adjacency = pymetis.CSRAdjacency(plain.rowptr.numpy().astype(np.int32), plain.col.numpy())
    found = pymetis.part_graph(
        num_parts,
        adjacency=adjacency,
        vweights=weight.numpy().astype(np.int32),
        eweights=None if plain.value is None else plain.value.numpy().astype(np.int32),
        recursive=True,
        options=pymetis.Options(seed=seed),
    )
    return torch.tensor(found.vertex_part)


def node_weight(graph: Graph) -> Tensor:
    """What balanced parts have equal amounts of, int64 [nodes]."""
    mean = graph.num_edges / max(graph.num_nodes, 1)
    return graph.degree + max(1, round(mean / 2))


def undirected(graph: Graph) -> Graph:
    """Each pair of neighbours in both directions, weighing the edges between them (1 without weights); no loops."""
    plain, _ = graph.split_self_loops()
    t = plain.t()
    if torch.equal(t.rowptr, plain.rowptr) and torch.equal(t.col, plain.col) and _ascends(plain):
        return plain.with_value(None)
    edges = plain.edge_index
    return Graph.from_edge_index(torch.cat([edges, edges.flip(0)], 1), graph.num_nodes, duplicates="sum")


def _ascends(graph: Graph) -> bool:
    """Whether the sources of every row ascend, none of them twice."""
    falls = graph.col[1:] <= graph.col[:-1]
    starts = graph.rowptr[1:-1]
    falls[starts[(starts > 0) & (starts < graph.num_edges)] - 1] = False
    return not bool(falls.any())
