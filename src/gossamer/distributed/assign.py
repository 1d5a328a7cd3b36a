"""Which part each node belongs to: the partitioners by name."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ..graph import Graph
from . import metis
from .stream import stream

METHODS = ("metis", "stream")


def method_for(graph: Graph, method: str | None) -> str:
    """The partitioner of that name; by default METIS where it is installed and the graph fits."""
    if method is None:
        return "metis" if metis.is_installed() and metis.fits(graph) else "stream"
    if method not in METHODS:
        raise ValueError(f"`method` must be one of {', '.join(METHODS)}, or None for a choice by size (got {method!r})")
    return method


def check_parts(parts: int, num_nodes: int) -> None:
    if not isinstance(parts, int) or isinstance(parts, bool) or not 1 <= parts <= num_nodes:
        raise ValueError(
            f"`parts` must lie between 1 and the number of nodes, {num_nodes}, as every part needs a node (got {parts})"
        )


def assign(
    graph: Graph, parts: int, method: str | None = None, seed: int = 0, told: Callable[[float], None] | None = None
) -> Tensor:
    """The part of each node, int64 [nodes]; no part is empty. The same for the same seed."""
    check_parts(parts, graph.num_nodes)
    found = (
        metis.metis(graph, parts, seed) if method_for(graph, method) == "metis" else stream(graph, parts, seed, told)
    )
    return without_empty(found, parts)


def without_empty(assignment: Tensor, parts: int) -> Tensor:
    """Each empty part gets a node of the largest: of small graphs, METIS may leave one out."""
    sizes = torch.bincount(assignment, minlength=parts)
    for p in (sizes == 0).nonzero().view(-1).tolist():
        largest = int(sizes.argmax())
        assignment[int((assignment == largest).nonzero()[-1])] = p
        sizes[largest] -= 1
        sizes[p] += 1
    return assignment
