"""What samplers and loaders ask of their arguments."""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Integral
from typing import Any

import torch
from torch import Tensor

from ..graph import Graph
from ..ops import _checks


def whole(name: str, value: Any, least: int) -> int:
    """An int of at least `least`; NumPy's will do."""
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise TypeError(f"`{name}` must be a whole number (got {value!r})")
    _checks.at_least(name, int(value), least)
    return int(value)


def fanouts(given: Any) -> list[int]:
    """One number per hop, each at least 1, or -1 for all neighbours."""
    if not isinstance(given, Sequence) or isinstance(given, str) or not given:
        raise TypeError(f"`fanouts` must be a list of whole numbers, one per hop (got {given!r})")
    for fanout in given:
        if isinstance(fanout, bool) or not isinstance(fanout, Integral):
            raise TypeError(f"`fanouts` must hold whole numbers (got {fanout!r})")
        if int(fanout) == 0 or int(fanout) < -1:
            raise ValueError(f"`fanouts` must be at least 1, or -1 for all neighbours (got {fanout})")
    return [int(fanout) for fanout in given]


def square(graph: Any) -> Graph:
    if not isinstance(graph, Graph):
        raise TypeError(f"`graph` must be a gs.Graph (got {type(graph).__name__}); build it with Graph.from_edge_index")
    if graph.num_src != graph.num_dst:
        raise ValueError(
            f"`graph` must have as many sources as destinations (got {graph.num_src} and {graph.num_dst}); "
            "pass bipartite graphs as a dict of edge types"
        )
    return graph


def weights(graph: Graph, weighted: bool, name: str = "graph") -> Tensor | None:
    """What probabilities are proportional to."""
    if not weighted:
        return None
    if graph.value is None:
        raise ValueError(f"`weighted` needs edge weights, but `{name}` has none; build it with `weight=`")
    return graph.value


def seeds(given: Any, num_nodes: int) -> Tensor:
    """Ids of nodes, each once; a mask over all nodes stands for those where it is true."""
    ids = torch.as_tensor(given)
    if ids.dtype == torch.bool:
        _checks.shape_of("seeds", ids, (num_nodes,), f"[{num_nodes}] if it is a mask, one truth value per node")
        ids = ids.nonzero().squeeze(1)
    if ids.numel() == 0:
        raise ValueError("`seeds` must hold at least one node (got none)")
    _checks.dtype_of("seeds", ids, (torch.int64, torch.int32))
    _checks.shape_of("seeds", ids, (None,), "[count]")
    _checks.ids_within("seeds", ids, num_nodes, "nodes")
    ids = ids.long()
    ordered = ids.sort().values
    repeated = ordered[1:][ordered[1:] == ordered[:-1]]
    if repeated.numel():
        at = (ids == repeated[0]).nonzero().squeeze(1).tolist()
        raise ValueError(
            f"`seeds` must hold each node once (got {int(repeated[0])} at positions {at[0]} and {at[1]}); "
            "pass `seeds.unique()`"
        )
    return ids


def per_node(name: str, given: Any, num_nodes: int) -> Tensor | None:
    """A tensor with one row per node, or None."""
    if given is None:
        return None
    tensor = torch.as_tensor(given)
    if tensor.dim() == 0 or tensor.size(0) != num_nodes:
        raise ValueError(
            f"`{name}` must have one row for each of the graph's {num_nodes} nodes (got {tuple(tensor.shape)})"
        )
    return tensor
