"""A sample and the rows of its nodes as PyG's `Data`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, final

import torch
from torch import Tensor

from ..graph import Graph
from ..ops.gather_rows import gather_rows
from ..quiet_pyg import importing_pyg
from ..state import facts
from ..state.facts import ORIGIN
from . import checks
from .rows import rows_of
from .sampler import NeighborSampler


@final
class Batches:
    """Makes a `Data` of some seeds: local ids in `edge_index`, hop by hop, or `blocks` for models that take them."""

    def __init__(
        self,
        graph: Graph,
        x: Any,
        fanouts: Sequence[int],
        y: Any,
        blocks: bool,
        replace: bool,
        weighted: bool,
        dtype: torch.dtype,
        decode: bool = True,
    ) -> None:
        self._sampler = NeighborSampler(graph, fanouts, replace, weighted)
        self._x = rows_of("x", x, graph.num_nodes, dtype, decode)
        self._y = checks.per_node("y", y, graph.num_nodes)
        self._blocks = blocks
        # here, since a loader calls `make` in a thread: filters of warnings belong to all threads
        with importing_pyg():
            from torch_geometric.data import Data
        self._data = Data

    def make(self, seeds: Tensor, input_id: Tensor, seed: int) -> Any:
        sample = self._sampler.sample(seeds, draw=seed)
        if self._blocks:
            sample = sample.with_placeholders()
        data = self._data(n_id=sample.n_id, num_nodes=sample.n_id.numel())
        if self._x is not None:
            data.x = self._x(sample.n_id)
        if self._y is not None:
            data.y = gather_rows(self._y, sample.n_id)
        if self._blocks:
            data.blocks = sample.blocks(self._sampler.graph)
        else:
            data.edge_index = sample.edge_index
            facts.note(data.edge_index, ORIGIN, (self._sampler.graph, sample.n_id))
            data.num_sampled_nodes, data.num_sampled_edges = sample.nodes_per_hop, sample.edges_per_hop
            if sample.value is not None:
                data.edge_weight = sample.value
        data.input_id, data.batch_size = input_id, seeds.numel()
        return data
