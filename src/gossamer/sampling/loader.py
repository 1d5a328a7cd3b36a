"""Batches of seeds with their sampled neighbourhoods and features, prefetched by a thread."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, final

import torch
from torch import Tensor

from ..graph import Graph
from . import checks
from .batches import Batches
from .epochs import Batching, Epochs
from .hetero import EdgeType, HeteroBatches


@final
class NeighborLoader(Epochs):
    """Yields a PyG `Data` per batch of seeds.

    n_id, x, y                  ids in the graph, features and labels of the batch's nodes, the seeds first
    edge_index, edge_weight     sampled edges in local ids; weights if the graph has any
    num_sampled_nodes, num_sampled_edges     of each hop, for PyG's `trim_to_layer`
    blocks                      with `blocks=True`, in place of edges and numbers: `model(batch.x, batch.blocks)` of a
                                lightened model returns the rows of the seeds
    batch_size, input_id        number of seeds, and their positions in `seeds`

    graph: edges point from neighbours to the nodes that they are drawn for. x: a tensor [nodes, ...], an array or
    memmap, an object whose `[ids]` are rows (compressed features), or None. fanouts: neighbours per hop, -1 for all.
    seeds: ids, each once, or a mask. replace, weighted: as of `NeighborSampler`. prefetch: batches computed ahead by a
    thread, 0 for none; by default two if there are cores that torch does not use, or if x is read from a file. dtype:
    of x. decode: whether rows of compressed x are decoded; if not, `batch.x` of a gs.Scalar code is a `CodedRows`, for
    `model(batch.x, batch.blocks)` of a lightened model, whose first layer sums codes.

    ranks: (rank, number of ranks) among the processes that share the seeds; by default those of torch.distributed, so
    that under torchrun every rank gets its own, in the same number of batches; (0, 1): all of them here.

    With a dict of graphs by edge type, ("author", "writes", "paper"), and a dict of x by node type, `seeds` is
    ("paper", ids) and a `HeteroData` is yielded; fanouts may be a dict by edge type, y one by node type.
    """

    def __init__(
        self,
        graph: Graph | Mapping[EdgeType, Graph],
        x: Any,
        fanouts: Sequence[int] | Mapping[EdgeType, Sequence[int]],
        seeds: Any,
        batch_size: int,
        *,
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
        decode: bool = True,
    ) -> None:
        if not decode and not blocks:
            raise ValueError("`decode` may be False only with blocks=True, whose layers take codes (got blocks=False)")
        self._batches: Batches | HeteroBatches
        if isinstance(graph, Mapping):
            if blocks:
                raise ValueError("`blocks` must be False for graphs of several edge types (got True)")
            self._batches = HeteroBatches(graph, x, fanouts, seeds, y, replace, weighted, dtype)
            self._seeds = self._batches.seeds
        else:
            num_nodes = checks.square(graph).num_nodes
            self._batches = Batches(graph, x, checks.fanouts(fanouts), y, blocks, replace, weighted, dtype, decode)
            self._seeds = checks.seeds(seeds, num_nodes)
        super().__init__(self._seeds.numel(), x, Batching(batch_size, shuffle, drop_last, seed, prefetch, ranks))

    def _batch(self, input_id: Tensor, seed: int) -> Any:
        return self._batches.make(self._seeds[input_id], input_id, seed)
