"""Sampled mini-batches, numbered by hop, as gs.Blocks and as PyG's trimmed edge lists."""

from __future__ import annotations

import itertools
from typing import NamedTuple

import torch
from torch import Tensor

import gossamer as gs


class Batch(NamedTuple):
    """The same sampled nodes and edges for both libraries."""

    blocks: gs.Blocks
    edge_index: Tensor
    weight: Tensor | None
    nodes_per_hop: list[int]
    edges_per_hop: list[int]

    @property
    def num_nodes(self) -> int:
        return self.blocks.sizes[0]

    @property
    def seeds(self) -> int:
        return self.blocks.sizes[-1]

    @property
    def trimming(self) -> dict[str, list[int]]:
        """What PyG's ready models take."""
        return {"num_sampled_nodes_per_hop": self.nodes_per_hop, "num_sampled_edges_per_hop": self.edges_per_hop}


def batch(sizes=(61, 23, 7), most=6, weighted=False, loops=True, seed=0) -> Batch:
    """A random batch: up to `most` edges into a node, some nodes without any, loops and repeated edges among them.

    A node's neighbours are at most one hop further from the seeds than it is.
    """
    rng = torch.Generator().manual_seed(seed)
    degree = torch.randint(0, most + 1, (sizes[1],), generator=rng)
    rowptr = torch.cat([torch.zeros(1, dtype=torch.int64), degree.cumsum(0)])
    limit = torch.empty(sizes[1], dtype=torch.int64)  # how many nodes may be a node's neighbours
    for outer, inner in itertools.pairwise(sizes):
        limit[:inner] = outer
    dst = torch.repeat_interleave(torch.arange(sizes[1]), degree)
    src = (torch.rand(len(dst), generator=rng) * limit[dst]).long()
    if loops:
        src[::7] = dst[::7]
    else:
        src = torch.where(src == dst, (src + 1) % limit[dst], src)
    weight = torch.rand(len(dst), generator=rng) + 0.1 if weighted else None
    blocks = gs.Blocks(rowptr, src.int(), sizes, weight)
    seeds, *hops = reversed(sizes)
    nodes = [seeds, *(a - b for a, b in zip(hops, [seeds, *hops], strict=False))]
    ends = [int(rowptr[size]) for size in reversed(sizes[1:])]
    edges = [a - b for a, b in zip(ends, [0, *ends], strict=False)]
    return Batch(blocks, torch.stack([src, dst]), weight, nodes, edges)
