"""Which nodes escape the quantisers in a training forward: a random set, drawn by in-degree (Degree-Quant).

    F(d)  = |{u : d(u) <= d}| / n        ties share one value; the highest degree has 1
    p(v)  = low + (high - low) F(d(v))
    m(v)  = [uniform(seed, forward, v) < p(v)]

Degrees are those of the graph that is passed, where loops that a layer adds to every node change no rank. In a batch of
graphs F is that of each graph alone; in a sampled batch it is that of the whole graph, which the loader knows. Uniform
numbers are a hash of (seed, number of the forward, row): all layers of a forward draw the same, and a resumed run draws
what it would have drawn.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ... import ops
from ...graph import Blocks, Graph
from ...state import ModelState, facts

RANK, BATCH = "degree rank", "batch"
"""Entries of `ModelState.drawn`: F(d) of each node in the whole graph, and which graph of a batch each belongs to."""


def note_call(model: ModelState, forward: Callable[..., Any], args: Sequence[Any], named: Mapping[str, Any]) -> None:
    """Let layers know of the batch that a model is called with: of its arguments `edge_index` and `batch`, or of a
    `data` that has them.
    """
    given = dict(zip(_parameters(forward), args, strict=False)) | dict(named)
    data = next((value for value in given.values() if hasattr(value, "edge_index")), None)
    note_batch(model, *(given.get(name, getattr(data, name, None)) for name in ("edge_index", "batch")))


def note_batch(model: ModelState, edge_index: Any, batch: Any) -> None:
    """The same of these two; `None` for what is not known."""
    model.drawn[BATCH] = batch if isinstance(batch, Tensor) and batch.dtype == torch.int64 else None
    if isinstance(edge_index, Blocks):
        origin = edge_index.origin
    else:
        origin = facts.recall(edge_index, facts.ORIGIN) if isinstance(edge_index, Tensor) else None
    model.drawn[RANK] = None if origin is None else rank_of(origin[0])[origin[1]]


@functools.cache
def _parameters(forward: Callable[..., Any]) -> tuple[str, ...]:
    """The names of a method's arguments, without self."""
    return tuple(inspect.signature(forward).parameters)[1:]


def degree_rank(degree: Tensor, batch: Tensor | None = None) -> Tensor:
    """F(d) of each node, float32; with `batch`, among the nodes of its own graph."""
    if degree.numel() == 0:
        return degree.float()
    if batch is None:
        counts = torch.bincount(degree)
        return (counts.cumsum(0).double() / degree.numel()).float()[degree]
    key = batch * (int(degree.max()) + 1) + degree
    up_to = torch.searchsorted(key.sort().values, key, right=True)
    size = torch.bincount(batch)
    before = size.cumsum(0) - size
    return ((up_to - before[batch]).double() / size[batch]).float()


def rank_of(graph: Graph, batch: Tensor | None = None, rank: Tensor | None = None) -> Tensor:
    """F(d) of the sources of a graph, by what is known of the batch it belongs to."""
    if rank is not None and rank.numel() >= graph.num_src:
        return rank[: graph.num_src]  # a block's sources are the first nodes of its batch
    if graph.block is not None and graph.block.whole is not None and graph.block.nodes is not None:
        return rank_of(graph.block.whole)[graph.block.nodes]
    if graph.num_src != graph.num_dst:  # the in-degree of sources is not known
        own = degree_rank(graph.degree)
        if graph.block is None:
            return torch.zeros(graph.num_src)
        return torch.cat([own, own.new_zeros(graph.num_src - graph.num_dst)])
    if batch is not None and batch.numel() == graph.num_dst:
        return degree_rank(graph.degree, batch)
    return graph.derived(RANK, lambda: degree_rank(graph.degree))


def protected(rank: Tensor, low: float, high: float, seed: int, forward: int) -> Tensor:
    """The mask m, bool [nodes]."""
    mixed = (seed + forward * 0x9E3779B97F4A7C15) % 2**63
    uniform = ((ops.random_bits(mixed, rank.numel()) >> 8) & (2**24 - 1)).float() * 2.0**-24
    return uniform < low + (high - low) * rank
