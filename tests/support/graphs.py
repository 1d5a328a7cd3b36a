"""The graphs that break kernels, small enough to meet all of them in every test."""

from __future__ import annotations

import functools

import torch

from gossamer import Graph

COLUMNS = (0, 1, 7, 16, 17, 64, 130)  # none, fewer than a vector, one vector, one more, several, several and a tail
HEADS = {0: 3, 1: 1, 7: 7, 16: 2, 17: 17, 64: 4, 130: 2}  # a divisor of each


def _random(num_src: int, num_dst: int, num_edges: int, seed: int) -> torch.Tensor:
    rng = torch.Generator().manual_seed(seed)
    ends = [torch.randint(0, count, (num_edges,), generator=rng) for count in (num_src, num_dst)]
    return torch.stack(ends)


def _power_law(num_nodes: int, num_edges: int) -> torch.Tensor:
    """Sources uniform, destinations with a density falling as 1 / id: a few hubs and a long tail."""
    rng = torch.Generator().manual_seed(3)
    dst = (num_nodes ** torch.rand(num_edges, generator=rng)).long() - 1
    return torch.stack([torch.randint(0, num_nodes, (num_edges,), generator=rng), dst])


def _edges(*pairs: tuple[int, int]) -> torch.Tensor:
    return torch.tensor(pairs, dtype=torch.int64).reshape(-1, 2).t()


_BUILDERS = {
    "no edges": lambda: (_edges(), (5, 5)),
    "no nodes": lambda: (_edges(), (0, 0)),
    "one node": lambda: (_edges(), (1, 1)),
    "one node, one loop": lambda: (_edges((0, 0)), (1, 1)),
    "isolated nodes": lambda: (_edges((9, 3), (3, 9), (4, 3)), (12, 12)),
    "self-loops": lambda: (_edges(*((k, k) for k in range(6)), (2, 2), (0, 5)), (6, 6)),
    "duplicate edges": lambda: (_edges((1, 0), (1, 0), (2, 0), (1, 0), (0, 2), (0, 2)), (3, 3)),
    "star": lambda: (_edges(*((k, 0) for k in range(299, 0, -1))), (300, 300)),
    "reversed star": lambda: (_edges(*((0, k) for k in range(299, 0, -1))), (300, 300)),
    "power law": lambda: (_power_law(400, 3000), (400, 400)),
    "bipartite, few sources": lambda: (_random(4, 90, 500, 1), (4, 90)),
    "bipartite, few destinations": lambda: (_random(90, 4, 500, 2), (90, 4)),
    "no destinations": lambda: (_edges(), (4, 0)),
}
GRAPHS = tuple(_BUILDERS)


@functools.cache
def graph(name: str) -> Graph:
    edge_index, num_nodes = _BUILDERS[name]()
    return Graph.from_edge_index(edge_index, num_nodes)


def small() -> Graph:
    """For numerical gradients: bipartite, with an isolated destination, an unused source and a repeated edge."""
    return Graph.from_edge_index(_edges((3, 0), (1, 0), (0, 2), (3, 2), (3, 2), (0, 1), (1, 2)), (5, 4))


def random_graph(
    num_src: int, num_dst: int, num_edges: int, weighted: bool = False, isolated: int = 2, seed: int = 1
) -> Graph:
    """With loops and duplicates; the last `isolated` sources and destinations have no edges."""
    rng = torch.Generator().manual_seed(seed)
    ends = [torch.randint(0, count - isolated, (num_edges,), generator=rng) for count in (num_src, num_dst)]
    value = torch.rand(num_edges, generator=rng) + 0.1 if weighted else None
    return Graph.from_edge_index(torch.stack(ends), (num_src, num_dst), value)
