"""The sampled neighbourhood of some seeds, as one graph with local ids or as the blocks of the layers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, final

import torch
from torch import Tensor

from ..graph import Blocks, Graph
from ..ops import _checks
from ..ops.csr import row_of_edge
from ..ops.gather_rows import gather_rows
from ..ops.sample_neighbours import sample_neighbours
from . import checks
from .seeds import derive


class Sample(NamedTuple):
    """Row i of the CSR holds the edges drawn into node i, for all nodes but those of the last hop.

    Nodes are numbered by hop: first the seeds, as given. `n_id`: their ids in the graph; `e_id`: positions of the edges
    in the graph's CSR, if asked for; `value`: weights of the edges, if the graph has any.
    """

    rowptr: Tensor
    col: Tensor
    n_id: Tensor
    nodes_per_hop: list[int]
    edges_per_hop: list[int]
    e_id: Tensor | None
    value: Tensor | None

    @property
    def edge_index(self) -> Tensor:
        """[2, edges] (source, destination) in local ids, hop by hop, int64."""
        return torch.stack([self.col.long(), row_of_edge(self.rowptr)])

    def with_placeholders(self) -> Sample:
        """A node for every hop that found none, as Blocks need: a copy of the first seed, without edges.

        Only last hops can be empty: where one finds no node, there is nothing to expand in the next.
        """
        missing = self.nodes_per_hop.count(0)
        if not missing:
            return self
        return self._replace(
            rowptr=torch.cat([self.rowptr, self.rowptr[-1:].expand(missing - 1)]),  # the last hop has no rows
            n_id=torch.cat([self.n_id, self.n_id[:1].expand(missing)]),
            nodes_per_hop=[count or 1 for count in self.nodes_per_hop],
        )

    def blocks(self, graph: Graph | None = None) -> Blocks:
        """The graphs of the layers, the outermost first; of a sample `with_placeholders`, drawn from `graph`."""
        sizes = torch.tensor(self.nodes_per_hop).cumsum(0).flip(0).tolist()
        _checks.passed(self.rowptr, self.col, sizes[0])
        origin = None if graph is None else (graph, self.n_id)
        return Blocks(self.rowptr, self.col, sizes, self.value, sampled=True, origin=origin)


@final
class NeighborSampler:
    """Samples the neighbours of seeds, `fanouts[0]` of each seed, `fanouts[1]` of each node found by that, and so on.

    graph: edges point from neighbours to the nodes that they are drawn for, as PyG's do. fanouts: -1 stands for all
    neighbours. replace: draw with replacement. weighted: with a probability in proportion to the weights of the graph's
    edges; edges of weight zero are never drawn (ops/sample_neighbours.py). What is drawn is a function of `seed` and
    the number `draw` given to `sample`.
    """

    def __init__(
        self, graph: Graph, fanouts: Sequence[int], replace: bool = False, weighted: bool = False, seed: int = 0
    ) -> None:
        self.graph, self.fanouts = checks.square(graph), checks.fanouts(fanouts)
        self.replace, self.weighted = bool(replace), bool(weighted)
        self.seed = checks.whole("seed", seed, -(2**63))
        self._weight = checks.weights(graph, weighted)

    def sample(self, seeds: Tensor, draw: int = 0, edges: bool = False) -> Sample:
        """The neighbourhood of `seeds`, int64 ids of which each occurs once; `edges`: say which edges were drawn."""
        graph, seed = self.graph, derive(self.seed, draw)
        drawn = sample_neighbours(
            graph.rowptr,
            graph.col,
            self._weight,
            seeds,
            self.fanouts,
            self.replace,
            seed,
            edges or graph.value is not None,
        )
        return Sample(
            drawn.rowptr,
            drawn.col,
            drawn.n_id,
            drawn.nodes_per_hop.tolist(),
            drawn.edges_per_hop.tolist(),
            drawn.e_id if edges else None,
            None if graph.value is None else gather_rows(graph.value, drawn.e_id),
        )

    def as_pyg(self) -> Any:
        """This sampler for PyG's `NodeLoader(data, node_sampler=...)` and `LinkLoader(data, link_sampler=...)`.

        Those do not say which batch they are at, so what is drawn depends on torch's random numbers, too.
        """
        from .pyg_sampler import pyg_sampler

        return pyg_sampler(self)

    def __repr__(self) -> str:
        options = "".join(f", {name}=True" for name in ("replace", "weighted") if getattr(self, name))
        return f"NeighborSampler({self.graph}, fanouts={self.fanouts}{options}, seed={self.seed})"
