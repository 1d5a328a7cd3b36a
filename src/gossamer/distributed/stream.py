"""A streaming partitioner: linear time, a few numbers per node, edges read in order, block by block.

    score(v, p) = neighbours of v in p * (1 - load_p / capacity)        (linear deterministic greedy)
    v goes to the part of highest score that has room

A block of consecutive nodes is placed at once, those with the most neighbours in their part first; what finds no room
fills the emptiest parts. All blocks are read again and again, each node now knowing the parts of all its neighbours
(restreaming), until the cut hardly falls. Nodes weigh as for METIS. Of graphs with communities the cut comes near that
of METIS; of meshes and road networks it stays far from it. The seed orders the blocks.

At last parts are numbered so that neighbouring numbers share many edges (the Fiedler vector of the graph of parts).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import torch
from torch import Tensor

from ..graph import Graph
from ..ops.csr import row_of_edge
from .metis import node_weight

SLACK = 0.03
"""How much heavier than the mean a part may be."""
PASSES, LEAST_GAIN = 12, 0.01
BLOCKS, SMALLEST, LARGEST = 100, 16, 65536
PREFER_OWN = 1e-3


def stream(graph: Graph, num_parts: int, seed: int = 0, told: Callable[[float], None] | None = None) -> Tensor:
    """The part of each node. `told` hears which share of the passes is done."""
    state = _State(graph, num_parts)
    rng = torch.Generator().manual_seed(seed)
    size = min(max(graph.num_nodes // BLOCKS, SMALLEST), LARGEST)
    starts = torch.arange(0, graph.num_nodes, size)
    cut = graph.num_edges + 1.0
    for k in range(PASSES):
        for low in starts[torch.randperm(len(starts), generator=rng)].tolist():
            state.place(low, min(low + size, graph.num_nodes))
        before, cut = cut, state.cut()
        if told is not None:
            told((k + 1) / PASSES)
        if cut >= before * (1 - LEAST_GAIN):
            break
    return neighbouring(quotient(graph, state.part_of, num_parts))[state.part_of]


class _State:
    def __init__(self, graph: Graph, num_parts: int) -> None:
        self.graphs = [graph, graph.t()]
        self.num_parts = num_parts
        self.weight = node_weight(graph).double()
        self.capacity = (1 + SLACK) * float(self.weight.sum()) / num_parts
        self.part_of = torch.full((graph.num_nodes,), num_parts)
        """num_parts: not placed yet."""
        self.load = torch.zeros(num_parts, dtype=torch.float64)

    def place(self, low: int, high: int) -> None:
        own, weight = self.part_of[low:high], self.weight[low:high]
        placed = own < self.num_parts
        self.load -= self._summed(own[placed], weight[placed])
        room = (1 - self.load / self.capacity).clamp(min=0)
        score = self._neighbours(low, high) * room + PREFER_OWN * room
        score[placed.nonzero().view(-1), own[placed]] += PREFER_OWN
        best, choice = score.max(1)
        order = torch.argsort(best, descending=True, stable=True)
        order = order[torch.argsort(choice[order], stable=True)]  # by part, the best first
        fits = self._taken(choice[order], weight[order]) <= self.capacity - self.load[choice[order]]
        self.load += self._summed(choice[order[fits]], weight[order[fits]])
        left = order[~fits]
        choice[left] = self._emptiest(weight[left])
        self.load += self._summed(choice[left], weight[left])
        self.part_of[low:high] = choice

    def cut(self) -> float:
        graph = self.graphs[0]
        return float(sum((self.part_of[row] != self.part_of[col]).sum() for row, col in edges_of(graph)))

    def _neighbours(self, low: int, high: int) -> Tensor:
        """How many neighbours each node of the block has in each part."""
        counts = torch.zeros((high - low) * (self.num_parts + 1), dtype=torch.int64)
        for graph in self.graphs:
            rowptr = graph.rowptr[low : high + 1]
            part = self.part_of[graph.col[int(rowptr[0]) : int(rowptr[-1])].long()]
            row = row_of_edge(rowptr - rowptr[0])
            counts += torch.bincount(row * (self.num_parts + 1) + part, minlength=counts.numel())
        return counts.view(high - low, -1)[:, :-1].double()

    def _summed(self, part: Tensor, weight: Tensor) -> Tensor:
        return torch.bincount(part, weight, minlength=self.num_parts)

    def _taken(self, part: Tensor, weight: Tensor) -> Tensor:
        """The weight of each node and those before it in its part; parts ascend."""
        total = weight.cumsum(0)
        before = torch.cat([total.new_zeros(1), self._summed(part, weight).cumsum(0)])
        return total - before[part]

    def _emptiest(self, weight: Tensor) -> Tensor:
        """Parts for nodes that found no room, the emptiest part first."""
        order = torch.argsort(self.load, stable=True)
        room = (self.capacity - self.load[order]).clamp(min=0).cumsum(0)
        return order[torch.searchsorted(room, weight.cumsum(0)).clamp(max=self.num_parts - 1)]


def edges_of(graph: Graph, rows: int = 2**18) -> Iterator[tuple[Tensor, Tensor]]:
    """(destination, source) of all edges, some rows at a time."""
    for low in range(0, graph.num_dst, rows):
        rowptr = graph.rowptr[low : low + rows + 1]
        yield row_of_edge(rowptr - rowptr[0]) + low, graph.col[int(rowptr[0]) : int(rowptr[-1])].long()


def quotient(graph: Graph, part_of: Tensor, num_parts: int) -> Tensor:
    """How many edges lead from part q (column) into part p (row)."""
    counts = torch.zeros(num_parts**2, dtype=torch.int64)
    for row, col in edges_of(graph):
        counts += torch.bincount(part_of[row] * num_parts + part_of[col], minlength=counts.numel())
    return counts.view(num_parts, num_parts)


def neighbouring(between: Tensor) -> Tensor:
    """A new number for each part, so that parts with many edges between them have neighbouring numbers."""
    shared = (between + between.t()).double().numpy()
    np.fill_diagonal(shared, 0)
    laplacian = np.diag(shared.sum(1)) - shared
    vector = np.linalg.eigh(laplacian)[1][:, min(1, len(shared) - 1)]
    order = torch.from_numpy(np.round(vector, 9)).argsort(stable=True)
    number = torch.empty_like(order)
    number[order] = torch.arange(len(order))
    return number
