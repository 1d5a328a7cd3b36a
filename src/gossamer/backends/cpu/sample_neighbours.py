"""Native kernels of ops/sample_neighbours.py."""

from __future__ import annotations

import torch
from torch import Tensor

from ... import memory
from ...native import library, num_threads
from ...ops._library import implement
from ...ops.sample_neighbours import (
    MAX_EDGES,
    SampledEdges,
    SampledNeighbours,
    refuse_repeat,
    refuse_size,
    refuse_weight,
    sample_edges,
    sample_neighbours,
)
from ._arguments import MASK64, at, contiguous

I32, I64 = torch.int32, torch.int64


def _sample_edges(
    rowptr: Tensor, col: Tensor, weight: Tensor | None, rows: Tensor, fanout: int, replace: bool, seed: int
) -> SampledEdges:
    rowptr, col, weight, rows = contiguous(rowptr, col, weight, rows)
    graph = (at(rowptr), at(col), rowptr.numel() - 1, at(weight), replace, seed & MASK64)
    ends = memory.empty([rows.numel() + 1], I64)
    ends[0] = 0
    drawn = (at(rows), rows.numel(), fanout, at(ends))
    bad = library.count_sampled(*graph, *drawn, num_threads())
    if bad >= 0:
        refuse_weight(weight, bad)
    count = int(ends[-1])
    source, edge = memory.empty([count], I32), memory.empty([count], I64)
    library.sample_edges(*graph, *drawn, at(source), at(edge), num_threads())
    return SampledEdges(ends, source, edge)


def _longer(tensor: Tensor, used: int, more: int) -> Tensor:
    """The first `used` elements, in front of room for `more`. Hops grow, so little is copied."""
    longer = memory.empty([used + more], tensor.dtype)
    longer[:used] = tensor[:used]
    return longer


def _sample_neighbours(
    rowptr: Tensor,
    col: Tensor,
    weight: Tensor | None,
    seeds: Tensor,
    fanouts: list[int],
    replace: bool,
    seed: int,
    edges: bool,
) -> SampledNeighbours:
    rowptr, col, weight, seeds = contiguous(rowptr, col, weight, seeds)
    graph = (at(rowptr), at(col), rowptr.numel() - 1, at(weight), replace, seed & MASK64)
    table = memory.empty([rowptr.numel() - 1], I32)  # where to look for a node's local id; never cleared
    n_id = memory.empty([seeds.numel()], I64)
    repeat = library.number_seeds(at(seeds), seeds.numel(), at(n_id), at(table))
    if repeat >= 0:
        refuse_repeat(seeds, repeat)
    ends, found, e_id = torch.zeros(1, dtype=I64), torch.empty(0, dtype=I32), torch.empty(0, dtype=I64)
    nodes_per_hop, edges_per_hop, first, drawn = [seeds.numel()], [], 0, 0
    for hop, fanout in enumerate(fanouts):
        known = sum(nodes_per_hop)
        ends = _longer(ends, first + 1, known - first)
        rows = (at(n_id[first:]), known - first, fanout, at(ends[first:]))
        bad = library.count_sampled(*graph, *rows, num_threads())
        if bad >= 0:
            refuse_weight(weight, bad)
        count = int(ends[-1]) - drawn
        if count > MAX_EDGES:
            refuse_size("fanouts", count)
        found, n_id = _longer(found, drawn, count), _longer(n_id, known, count)
        rows = (at(n_id[first:]), *rows[1:])
        e_id = _longer(e_id, drawn, count) if edges else e_id
        library.sample_edges(*graph, *rows, at(found), at(e_id) if edges else 0, num_threads())
        room = memory.empty([2 * count], I32)
        more = hop + 1 < len(fanouts)
        own = (at(found[drawn:]), count, known, at(n_id), at(table), more, at(room), num_threads())
        first, drawn = known, drawn + count
        nodes_per_hop.append(library.number_sources(*own) - known)
        edges_per_hop.append(count)
    hops = torch.tensor(nodes_per_hop, dtype=I64), torch.tensor(edges_per_hop, dtype=I64)
    return SampledNeighbours(ends, found, n_id[: sum(nodes_per_hop)], *hops, e_id)


implement(sample_edges, "cpu", _sample_edges)
implement(sample_neighbours, "cpu", _sample_neighbours)
