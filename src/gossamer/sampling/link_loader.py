"""Batches of edges to be scored, positive and negative, with the sampled neighbourhoods of their ends."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, final

import torch
from torch import Tensor

from ..graph import Graph
from ..ops import _checks
from ..ops.csr import row_of_edge
from ..ops.sample_neighbours import sample_edges
from . import checks
from .batches import Batches
from .epochs import Batching, Epochs
from .seeds import derive, generator

MOST_ROUNDS = 100
"""Redraws of negatives that are edges, before the graph is taken to have too few pairs without one."""


@final
class LinkNeighborLoader(Epochs):
    """Yields a PyG `Data` per batch of edges: that of `NeighborLoader` for their ends, and

    edge_label_index    the edges of the batch in local ids, [2, positives + negatives]
    edge_label          1 for positives and 0 for negatives; given labels for positives, raised by one if the least of
                        them is 0, as PyG does. Without negatives: the given labels, if any
    input_id            positions of the positives in the given `edge_label_index`
    batch_size          number of different ends: the seeds, to which `edge_label_index` points

    There are ceil(neg_sampling_ratio * positives) negatives: pairs of nodes, both drawn uniformly. They are not
    compared with the edges of the graph, so that a few may be edges; with `strict`, those that are edges of `graph` are
    drawn anew. The argument `batch_size` counts positives. Other arguments are those of `NeighborLoader`.
    """

    def __init__(
        self,
        graph: Graph,
        x: Any,
        fanouts: Sequence[int],
        edge_label_index: Tensor,
        batch_size: int,
        *,
        edge_label: Any = None,
        neg_sampling_ratio: float = 1.0,
        strict: bool = False,
        y: Any = None,
        shuffle: bool = False,
        drop_last: bool = False,
        blocks: bool = False,
        replace: bool = False,
        weighted: bool = False,
        seed: int = 0,
        prefetch: int | None = None,
        ranks: tuple[int, int] | None = None,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        self._graph = checks.square(graph)
        self._edges = _edges(edge_label_index, graph.num_nodes)
        if not 0 <= neg_sampling_ratio < math.inf:
            raise ValueError(f"`neg_sampling_ratio` must be finite and not negative (got {neg_sampling_ratio})")
        self._ratio, self._strict = neg_sampling_ratio, strict
        self._labels = _labels(edge_label, self._edges.size(1), self._ratio > 0)
        self._batches = Batches(graph, x, checks.fanouts(fanouts), y, blocks, replace, weighted, dtype)
        super().__init__(self._edges.size(1), x, Batching(batch_size, shuffle, drop_last, seed, prefetch, ranks))

    def _batch(self, input_id: Tensor, seed: int) -> Any:
        positives = self._edges[:, input_id]
        negatives = self._negatives(math.ceil(self._ratio * input_id.numel()), seed)
        seeds, local = torch.cat([positives, negatives], 1).unique(return_inverse=True)
        data = self._batches.make(seeds, input_id, seed)
        data.edge_label_index = local
        if self._labels is not None:
            labels = self._labels[input_id]
            data.edge_label = torch.cat([labels, labels.new_zeros(negatives.size(1), *labels.shape[1:])])
        return data

    def _negatives(self, count: int, seed: int) -> Tensor:
        random = generator(derive(seed, 1))
        pairs = torch.randint(self._graph.num_nodes, (2, count), generator=random)
        if not self._strict:
            return pairs
        left = torch.arange(count)
        for _ in range(MOST_ROUNDS):
            left = left[self._are_edges(pairs[:, left])]
            if left.numel() == 0:
                return pairs
            pairs[:, left] = torch.randint(self._graph.num_nodes, (2, left.numel()), generator=random)
        raise ValueError(
            f"`strict` needs pairs of nodes that are no edges of the graph (found none for {left.numel()} negatives in "
            f"{MOST_ROUNDS} draws each); the graph is nearly complete: pass strict=False"
        )

    def _are_edges(self, pairs: Tensor) -> Tensor:
        all_of = sample_edges(self._graph.rowptr, self._graph.col, None, pairs[1], -1, False, 0)
        pair = row_of_edge(all_of.rowptr)
        found = torch.zeros(pairs.size(1), dtype=torch.bool)
        found[pair[all_of.source == pairs[0][pair]]] = True
        return found


def _edges(given: Any, num_nodes: int) -> Tensor:
    edges = torch.as_tensor(given)
    _checks.dtype_of("edge_label_index", edges, (torch.int64, torch.int32))
    _checks.shape_of("edge_label_index", edges, (2, None), "[2, edges], sources and destinations")
    if edges.size(1) == 0:
        raise ValueError("`edge_label_index` must hold at least one edge (got none)")
    _checks.ids_within("edge_label_index", edges.reshape(-1), num_nodes, "nodes")
    return edges.long()


def _labels(given: Any, count: int, negatives: bool) -> Tensor | None:
    if given is None:
        return torch.ones(count) if negatives else None
    labels = torch.as_tensor(given)
    if labels.dim() == 0 or labels.size(0) != count:
        raise ValueError(f"`edge_label` must have one row for each of {count} edges (got {tuple(labels.shape)})")
    return labels + 1 if negatives and labels.min() == 0 else labels
