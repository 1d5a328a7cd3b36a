"""Merge neighbouring parts into the part of one rank: what `cut` gives with the coarser assignment, bit for bit.

    groups(16, 3) = [0, 5, 10, 16]                 rank r has the parts groups[r] .. groups[r + 1] - 1
    merge(parts[5:10], groups(16, 3))              the part of rank 1

Only the group's own parts are needed. Halo rows that now are own rows leave the halo; the others are united, in
ascending order of their ids.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..features import FeatureStore
from ..ops.gather_rows import gather_rows
from .part import Degrees, Part, Side


def groups(num_parts: int, ranks: int) -> list[int]:
    """The first part of each rank, and the number of parts: contiguous groups that differ by at most one part."""
    if not 1 <= ranks <= num_parts:
        raise ValueError(
            f"`ranks` must lie between 1 and the number of parts, {num_parts}, as every rank needs a part (got "
            f"{ranks}); start fewer ranks, or cut the graph into more parts"
        )
    return [rank * num_parts // ranks for rank in range(ranks + 1)]


class _Layout(NamedTuple):
    """How the merged part is put together."""

    bounds: Tensor
    rank: int
    node_ids: Tensor
    order: Tensor
    """Of each merged own row its place among the rows of all parts, one part below the other."""
    new_row: tuple[Tensor, ...]
    """Of each part's own rows, their merged rows."""

    def rank_of(self, part: Tensor) -> Tensor:
        return torch.searchsorted(self.bounds, part, right=True) - 1


def merge(parts: Sequence[Part], bounds: Sequence[int]) -> Part:
    """The parts of one rank as one part. `bounds`: see `groups`."""
    rank = _rank(parts, bounds)
    first = parts[0]
    ids = torch.cat([part.node_ids for part in parts])
    order = torch.argsort(ids)
    new_row = torch.empty_like(order)
    new_row[order] = torch.arange(len(order))
    split = tuple(new_row.split([part.num_own for part in parts]))
    layout = _Layout(torch.tensor(bounds), rank, ids[order], order, split)
    side = _merged_side(layout, [part.edges for part in parts])
    t_side = side if first.symmetric else _merged_side(layout, [part.t_edges for part in parts])
    both = torch.cat([layout.node_ids, side.halo_ids])
    known, place = first_of_each(torch.cat([torch.cat([part.node_ids, part.halo_ids]) for part in parts]))
    place = place[torch.searchsorted(known, both)]
    fields: dict[str, Any] = side._asdict() | {f"t_{name}": field for name, field in t_side._asdict().items()}
    for names, rows in ((Degrees._fields, place), (ROWS, order)):
        fields |= {name: _in_order(rows, [getattr(part, name) for part in parts]) for name in names}
    fields |= {"x": _joined(order, [part.x for part in parts]), "node_ids": layout.node_ids}
    return replace(first, part=rank, num_parts=len(bounds) - 1, **fields)


ROWS = ("y", "train_mask", "val_mask", "test_mask")


def _rank(parts: Sequence[Part], bounds: Sequence[int]) -> int:
    """Which rank has just these parts."""
    found = [part.part for part in parts]
    ranges = [list(range(low, high)) for low, high in itertools.pairwise(bounds)]
    if found not in ranges:
        raise ValueError(f"`parts` must be all parts of one rank, in order, of the groups {bounds} (got {found})")
    facts = {(part.num_parts, part.num_nodes, part.num_edges, part.fingerprint) for part in parts}
    if len(facts) > 1 or bounds[-1] != parts[0].num_parts:
        raise ValueError(f"`parts` must be of one graph, cut into {bounds[-1]} parts (got {parts})")
    return ranges.index(found)


def _in_order(place: Tensor, tensors: list[Tensor | None]) -> Tensor | None:
    kept = [tensor for tensor in tensors if tensor is not None]
    return gather_rows(torch.cat(kept), place) if kept else None


def _joined(order: Tensor, features: list[Tensor | FeatureStore | None]) -> Tensor | FeatureStore | None:
    stores = [each for each in features if isinstance(each, FeatureStore)]
    if stores:
        return FeatureStore.joined(stores).select(order)
    return _in_order(order, [each for each in features if isinstance(each, Tensor)])


def first_of_each(ids: Tensor) -> tuple[Tensor, Tensor]:
    """The different ids, ascending, and the first place of each."""
    ordered, place = ids.sort(stable=True)
    first = torch.ones(len(ids), dtype=torch.bool)
    first[1:] = ordered[1:] != ordered[:-1]
    return ordered[first], place[first]


def _merged_side(layout: _Layout, sides: list[Side]) -> Side:
    halo_ids, place = first_of_each(torch.cat([side.halo_ids for side in sides]))
    halo_rank = layout.rank_of(torch.cat([side.halo_part for side in sides])[place])
    remote = halo_rank != layout.rank
    halo_ids, halo_rank = halo_ids[remote], halo_rank[remote]
    cols = []
    for side, new_row in zip(sides, layout.new_row, strict=True):
        own = torch.searchsorted(layout.node_ids, side.halo_ids)
        halo = torch.searchsorted(halo_ids, side.halo_ids) + len(layout.node_ids)
        is_own = layout.rank_of(side.halo_part) == layout.rank
        table = torch.cat([new_row, torch.where(is_own, own, halo)]).to(torch.int32)
        cols.append(gather_rows(table, side.col.long()))
    counts = torch.cat([side.rowptr.diff() for side in sides])
    old = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
    counts = counts[layout.order]
    rowptr = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
    at = torch.arange(int(rowptr[-1])) + (old[layout.order] - rowptr[:-1]).repeat_interleave(counts)
    send = _merged_send(layout, sides)
    return Side(
        rowptr,
        gather_rows(torch.cat(cols), at),
        _in_order(at, [side.value for side in sides]),
        halo_ids,
        halo_rank.to(torch.int32),
        torch.tensor([0, *map(len, send)]).cumsum(0),
        torch.cat(send),
    )


def _merged_send(layout: _Layout, sides: list[Side]) -> list[Tensor]:
    """For each rank the merged rows that it has in its halo: own rows ascend by id, so they ascend."""
    found = []
    for rank in range(len(layout.bounds) - 1):
        low, high = layout.bounds[rank : rank + 2].tolist()
        rows = [
            new_row[side.send_row[int(side.send_ptr[low]) : int(side.send_ptr[high])]]
            for side, new_row in zip(sides, layout.new_row, strict=True)
        ]
        found.append(torch.cat(rows).unique() if rank != layout.rank else layout.order.new_empty(0))
    return found
