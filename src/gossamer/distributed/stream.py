"""A streaming partitioner: linear time, a few numbers per node, edges read in order, block by block.

    shrink      clusters of a few nodes, again and again, until a graph of at most 2048 nodes is left
    divide      recursive bisection along Fiedler vectors; of a graph too large for that,
                score(v, p) = edges from v into p * (1 - load_p / capacity)       (linear deterministic greedy)
    refine      back through the graphs, each node goes to the part that most of its edges lead to, if there is room

A block of consecutive nodes is placed at once, those with the most edges into their part first; what finds no room in
its best parts fills the emptiest. Every step reads all blocks again and again, each node now knowing where all its
neighbours are (restreaming), until the cut hardly falls. Clusters are made the same way: a node joins that of most of
its edges, below a limit of weight. A cluster's weight and edges are the sums of its nodes'. Nodes weigh as for METIS.
The seed orders the blocks. If a graph of clusters would have too many edges, the graph is divided as it is.

At last parts are numbered so that neighbouring numbers share many edges (the Fiedler vector of the graph of parts).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..graph import Graph
from ..ops.csr import row_of_edge
from .metis import node_weight

SLACK = 0.03
"""How much heavier than the mean a part may be."""
PASSES, LEAST_GAIN = 12, 0.01
BLOCKS, SMALLEST, LARGEST = 100, 64, 65536
PREFER_OWN = 1e-3
CHOICES = 3
"""Parts that a node tries before it goes to the emptiest."""
CLUSTER_ROUNDS, NODES_PER_CLUSTER = 8, 16
COARSE_NODES, DENSE_NODES, LEAST_SHRINKING = 64, 2048, 1.5
"""A graph of so many nodes per part, or in all, is divided; one that clusters do not make so much smaller, too."""
MOST_COARSE_EDGES = 2**27


def stream(graph: Graph, num_parts: int, seed: int = 0, told: Callable[[float], None] | None = None) -> Tensor:
    """The part of each node. `told` hears which share of the work is done, roughly."""
    rng = torch.Generator().manual_seed(seed)
    levels = [_Level([graph, graph.t()], node_weight(graph).double())]
    labels: list[Tensor] = []
    while levels[-1].num_nodes > min(COARSE_NODES * num_parts, DENSE_NODES):
        found = _clusters(levels[-1], num_parts, rng)
        if levels[-1].num_nodes < LEAST_SHRINKING * (int(found.max()) + 1):
            break
        smaller = _contracted(levels[-1], found)
        if smaller is None:
            break
        levels.append(smaller)
        labels.append(found)
    part_of = _divided(levels[-1], num_parts, rng)
    for k in reversed(range(len(labels))):
        if told is not None:
            told(1 - (k + 1) / len(levels))
        part_of = _improved(_State(levels[k], num_parts, part_of[labels[k]]), rng)
    return neighbouring(quotient(graph, part_of, num_parts))[part_of]


class _Level(NamedTuple):
    """A graph and its transpose, and the weight of its nodes."""

    graphs: list[Graph]
    weight: Tensor

    @property
    def num_nodes(self) -> int:
        return self.weight.numel()

    def blocks(self, rng: torch.Generator) -> Iterator[tuple[int, int]]:
        size = min(max(self.num_nodes // BLOCKS, SMALLEST), LARGEST)
        starts = torch.arange(0, self.num_nodes, size)
        for low in starts[torch.randperm(len(starts), generator=rng)].tolist():
            yield low, min(low + size, self.num_nodes)

    def edges(self, low: int, high: int) -> tuple[Tensor, Tensor, Tensor]:
        """(row within the block, other end, weight) of a block's edges in both directions."""
        rows, cols, values = [], [], []
        for graph in self.graphs:
            rowptr = graph.rowptr[low : high + 1]
            at = slice(int(rowptr[0]), int(rowptr[-1]))
            rows.append(row_of_edge(rowptr - rowptr[0]))
            cols.append(graph.col[at].long())
            values.append(torch.ones(len(cols[-1])) if graph.value is None else graph.value[at])
        return torch.cat(rows), torch.cat(cols), torch.cat(values).double()


# Divide and refine ------------------------------------------------------------------------------------------------


def _divided(level: _Level, num_parts: int, rng: torch.Generator) -> Tensor:
    """The parts of the smallest graph: by halves where it is small enough, and by linear deterministic greedy."""
    if level.num_nodes <= DENSE_NODES:
        return _improved(_State(level, num_parts, _halved(level, num_parts)), rng)
    return _improved(_State(level, num_parts, None), rng)


def _halved(level: _Level, num_parts: int) -> Tensor:
    """Recursive bisection along the Fiedler vector of L v = lambda W v, W the weight of nodes."""
    graph, part_of = level.graphs[0], torch.zeros(level.num_nodes, dtype=torch.int64)
    between = torch.zeros(level.num_nodes, level.num_nodes, dtype=torch.float64)
    for row, col, value in edges_of(graph):
        ones = torch.ones(len(row)) if value is None else value
        between.index_put_((row, col), ones.double(), accumulate=True)
    between += between.t().clone()
    todo = [(torch.arange(level.num_nodes), 0, num_parts)]
    while todo:
        nodes, first, count = todo.pop()
        part_of[nodes] = first
        if count == 1:
            continue
        left = count // 2
        nodes = nodes[_fiedler(between[nodes][:, nodes], level.weight[nodes]).argsort(stable=True)]
        share = level.weight[nodes].cumsum(0) / level.weight[nodes].sum()
        at = int((share <= left / count).sum())
        at = min(max(at, left), len(nodes) - (count - left))  # a node for each part
        todo += [(nodes[:at], first, left), (nodes[at:], first + left, count - left)]
    return part_of


def _fiedler(between: Tensor, weight: Tensor) -> Tensor:
    between = between - torch.diag(between.diag())
    scale = weight.rsqrt()
    laplacian = (torch.diag(between.sum(1)) - between) * scale * scale.view(-1, 1)
    vectors = torch.linalg.eigh(laplacian).eigenvectors
    return (scale * vectors[:, min(1, len(weight) - 1)]).mul(1e9).round()


def _improved(state: _State, rng: torch.Generator) -> Tensor:
    """All nodes placed again and again: the best parts that were found."""
    best, kept = (state.cut() if state.is_refined else np.inf), state.part_of.clone()
    for _ in range(PASSES):
        for low, high in state.level.blocks(rng):
            state.place(low, high)
        before, now = best, state.cut()
        if now < best:
            best, kept = now, state.part_of.clone()
        if now >= before * (1 - LEAST_GAIN):
            break
    return kept


class _State:
    def __init__(self, level: _Level, num_parts: int, part_of: Tensor | None) -> None:
        self.level, self.num_parts, self.is_refined = level, num_parts, part_of is not None
        self.weight = level.weight
        self.capacity = (1 + SLACK) * float(self.weight.sum()) / num_parts
        self.part_of = torch.full((level.num_nodes,), num_parts) if part_of is None else part_of
        """num_parts: not placed yet."""
        placed = self.part_of < num_parts
        self.load = self._summed(self.part_of[placed], self.weight[placed])

    def place(self, low: int, high: int) -> None:
        own, weight = self.part_of[low:high], self.weight[low:high]
        placed = own < self.num_parts
        self.load -= self._summed(own[placed], weight[placed])
        score = self._score(low, high)
        score[placed.nonzero().view(-1), own[placed]] += PREFER_OWN
        choice = torch.full_like(own, self.num_parts)
        left = torch.arange(high - low)
        for _ in range(min(CHOICES, self.num_parts)):
            left = self._taken(score, choice, weight, left)
        choice[left] = self._emptiest(weight[left])
        self.load += self._summed(choice[left], weight[left])
        self.part_of[low:high] = choice

    def cut(self) -> float:
        return _cut(self.level, self.part_of)

    def _score(self, low: int, high: int) -> Tensor:
        row, col, value = self.level.edges(low, high)
        size = (high - low) * (self.num_parts + 1)
        edges = torch.bincount(row * (self.num_parts + 1) + self.part_of[col], value, minlength=size).double()
        edges = edges.view(high - low, -1)[:, :-1]
        room = (1 - self.load / self.capacity).clamp(min=0)
        return (edges if self.is_refined else edges * room) + PREFER_OWN * room

    def _taken(self, score: Tensor, choice: Tensor, weight: Tensor, nodes: Tensor) -> Tensor:
        """Give nodes their best part while it has room, the best first; those left lose this choice."""
        best, part = score[nodes].max(1)
        order = torch.argsort(best, descending=True, stable=True)
        order = order[torch.argsort(part[order], stable=True)]  # by part, the best first
        nodes, part = nodes[order], part[order]
        fits = _within(part, weight[nodes]) <= self.capacity - self.load[part]
        choice[nodes[fits]] = part[fits]
        self.load += self._summed(part[fits], weight[nodes[fits]])
        score[nodes[~fits], part[~fits]] = -1.0
        return nodes[~fits]

    def _summed(self, part: Tensor, weight: Tensor) -> Tensor:
        return torch.bincount(part, weight, minlength=self.num_parts).double()

    def _emptiest(self, weight: Tensor) -> Tensor:
        """Parts for nodes that found no room, the emptiest part first."""
        order = torch.argsort(self.load, stable=True)
        room = (self.capacity - self.load[order]).clamp(min=0).cumsum(0)
        return order[torch.searchsorted(room, weight.cumsum(0)).clamp(max=self.num_parts - 1)]


def _within(group: Tensor, weight: Tensor) -> Tensor:
    """The weight of each element and of those before it in its group; groups stand together."""
    total = weight.cumsum(0)
    first = torch.ones(len(group), dtype=torch.bool)
    first[1:] = group[1:] != group[:-1]
    before = (total - weight)[first]
    return total - before[first.cumsum(0) - 1]


def _cut(level: _Level, part_of: Tensor) -> float:
    graph, cut = level.graphs[0], 0.0
    for row, col, value in edges_of(graph):
        apart = part_of[row] != part_of[col]
        cut += float(apart.sum()) if value is None else float(value[apart].double().sum())
    return cut


# Shrink -----------------------------------------------------------------------------------------------------------


def _clusters(level: _Level, num_parts: int, rng: torch.Generator) -> Tensor:
    """The cluster of each node, numbered without gaps: label propagation below a limit of weight."""
    total, n = float(level.weight.sum()), level.num_nodes
    limit = min(NODES_PER_CLUSTER * total / n, total / (COARSE_NODES * num_parts))
    label, load = torch.arange(n), level.weight.clone()
    for _ in range(CLUSTER_ROUNDS):
        for low, high in level.blocks(rng):
            _join(level, label, load, limit, low, high, rng)
    return label.unique(return_inverse=True)[1]


def _join(level: _Level, label: Tensor, load: Tensor, limit: float, low: int, high: int, rng: torch.Generator) -> None:
    """Move half of a block's nodes, drawn anew each time: two nodes that join each other would only swap."""
    row, col, value = level.edges(low, high)
    row_moves = torch.rand(high - low, generator=rng) < 0.5
    keep = row_moves[row] & (col != row + low)
    row, joined, value = row[keep], label[col[keep]], value[keep]
    pair, inverse = (row * level.num_nodes + joined).unique(return_inverse=True)
    edges = torch.bincount(inverse, value, minlength=len(pair)).double()  # of no edges at all it would be int64
    row, joined = pair // level.num_nodes, pair % level.num_nodes
    weight, own = level.weight[low:high], label[low:high].clone()
    stays = joined == own[row]
    edges[~stays & (load[joined] + weight[row] > limit)] = 0
    edges[stays] += PREFER_OWN
    best = torch.zeros(high - low, dtype=torch.float64).scatter_reduce(0, row, edges, "amax")
    is_best = (edges == best[row]) & (edges > 0) & ~stays
    row, joined = row[is_best], joined[is_best]
    first = torch.ones(len(row), dtype=torch.bool)
    first[1:] = row[1:] != row[:-1]
    row, joined = row[first], joined[first]
    order = torch.argsort(joined, stable=True)
    row, joined = row[order], joined[order]
    fits = load[joined] + _within(joined, weight[row]) <= limit
    row, joined = row[fits], joined[fits]
    load.index_add_(0, own[row], -weight[row])
    load.index_add_(0, joined, weight[row])
    label[row + low] = joined


def _contracted(level: _Level, label: Tensor) -> _Level | None:
    """The graph of clusters; None if it has too many edges."""
    count = int(label.max()) + 1
    keys, sums = torch.empty(0, dtype=torch.int64), torch.empty(0, dtype=torch.float64)
    for row, col, value in edges_of(level.graphs[0]):
        key = label[row] * count + label[col]
        apart = label[row] != label[col]
        value = torch.ones(len(key)) if value is None else value
        keys, inverse = torch.cat([keys, key[apart]]).unique(return_inverse=True)
        sums = torch.bincount(inverse, torch.cat([sums, value[apart].double()]), minlength=len(keys))
        if len(keys) > MOST_COARSE_EDGES:
            return None
    rowptr = torch.cat([keys.new_zeros(1), torch.bincount(keys // count, minlength=count).cumsum(0)])
    graph = Graph(rowptr, (keys % count).to(torch.int32), count, sums.float())
    return _Level([graph, graph.t()], torch.bincount(label, level.weight, minlength=count))


def edges_of(graph: Graph, rows: int = 2**18) -> Iterator[tuple[Tensor, Tensor, Tensor | None]]:
    """(destination, source, weight) of all edges, some rows at a time."""
    for low in range(0, graph.num_dst, rows):
        rowptr = graph.rowptr[low : low + rows + 1]
        at = slice(int(rowptr[0]), int(rowptr[-1]))
        value = None if graph.value is None else graph.value[at]
        yield row_of_edge(rowptr - rowptr[0]) + low, graph.col[at].long(), value


# Numbers of parts -------------------------------------------------------------------------------------------------


def quotient(graph: Graph, part_of: Tensor, num_parts: int) -> Tensor:
    """How many edges lead from part q (column) into part p (row)."""
    counts = torch.zeros(num_parts**2, dtype=torch.int64)
    for row, col, _ in edges_of(graph):
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
