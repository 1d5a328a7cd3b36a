"""What requests are answered from: an engine, and perhaps a loaded graph with its features.

Outputs for the nodes of the loaded graph do not depend on the request, so they are computed once, at the start, with
all neighbours; or, with `fanouts`, for the asked nodes alone and from sampled neighbours, by a seed that is fixed: a
server that is started again answers the same bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, final

import torch
from torch import Tensor

from ..graph import Graph
from ..inference import Engine
from ..ops.gather_rows import gather_rows
from ..sampling import NeighborSampler

SEED = 0


class BadRequest(ValueError):
    """A request that cannot be answered; its message is for the client."""


@final
class Served:
    """`graph` and `x`: of the nodes that clients ask for by number; None: only graphs that are sent along."""

    def __init__(
        self, engine: Engine, graph: Graph | None = None, x: Any = None, fanouts: Sequence[int] | None = None
    ) -> None:
        self.engine, self.graph, self.x, self.fanouts = engine, graph, x, fanouts
        self.outputs: Tensor | None = None
        self.sampler: NeighborSampler | None = None
        if graph is None:
            return
        if engine.program.graph_level:
            raise ValueError("`--graph` must be left out: the model gives an output for a graph, not for its nodes")
        if fanouts is None:
            self.outputs = engine(x, graph)
            return
        if len(fanouts) != engine.program.convolutions:
            raise ValueError(
                f"`--fanouts` must have a number for each of the model's {engine.program.convolutions} convolutions "
                f"(got {len(fanouts)})"
            )
        self.sampler = NeighborSampler(graph, fanouts, seed=SEED)

    @property
    def num_nodes(self) -> int | None:
        return None if self.graph is None else self.graph.num_nodes

    def of_nodes(self, nodes: Sequence[int]) -> Tensor:
        """Outputs of nodes of the loaded graph, in their order."""
        if self.graph is None:
            raise BadRequest("no graph is loaded; send one to /predict/graph, or start the server with --graph")
        ids = torch.tensor(list(nodes), dtype=torch.int64)
        if len(ids) and (int(ids.min()) < 0 or int(ids.max()) >= self.graph.num_nodes):
            raise BadRequest(
                f"`nodes` must be numbers from 0 to {self.graph.num_nodes - 1} (got {_first_bad(ids, self)})"
            )
        if self.outputs is not None:
            return self.outputs[ids]
        assert self.sampler is not None
        seeds, place = ids.unique(return_inverse=True)
        sample = self.sampler.sample(seeds).with_placeholders()
        rows = self.x.gather(sample.n_id) if hasattr(self.x, "gather") and not isinstance(self.x, Tensor) else None
        rows = gather_rows(self.x, sample.n_id) if rows is None else rows
        return self.engine(rows, sample.blocks(self.graph))[place]

    def of_graph(self, x: Any, edge_index: Any, batch: Any = None) -> Tensor:
        """Outputs of a graph that was sent along."""
        if not x:
            return torch.empty(0, self.engine.num_outputs)
        try:
            rows = torch.tensor(x, dtype=torch.float32)
            edges = torch.tensor(edge_index, dtype=torch.int64).reshape(2, -1)
            groups = None if batch is None else torch.tensor(batch, dtype=torch.int64)
            if rows.dim() != 2:
                raise BadRequest(f"`x` must be a list of rows of {self.engine.num_features} numbers")
            if groups is not None and len(groups) and (int(groups.min()) < 0 or int(groups.max()) >= len(rows)):
                raise BadRequest("`batch` must hold numbers of graphs, from 0 on, fewer than there are nodes")
            return self.engine(rows, edges, *(() if groups is None else (groups,)))
        except BadRequest:
            raise
        except (ValueError, TypeError, IndexError, OverflowError) as error:
            raise BadRequest(str(error)) from None


def _first_bad(ids: Tensor, served: Served) -> int:
    bad = (ids < 0) | (ids >= (served.num_nodes or 0))
    return int(ids[bad][0])
