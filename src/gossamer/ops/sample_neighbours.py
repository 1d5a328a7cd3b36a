"""Edges drawn at random from the rows of a graph, and the nodes that they lead to, hop by hop.

    sample_edges        up to `fanout` of the edges of each given row (-1: all of them), in ascending order
    sample_neighbours   the edges into the seeds, then those into the nodes found by that, and so on, a fan-out per hop

Nodes of a batch are numbered in the order in which they are found: the seeds as given, then the sources of the edges in
their order. Each node is expanded once, with the fan-out of the hop after the one that found it, so all hops are one
CSR whose rows are the nodes that were expanded; nodes of the last hop have none.

    uniform, without replacement    min(fanout, degree) edges, every subset alike (Floyd's algorithm)
    uniform, with replacement       `fanout` edges if there is any, each alike; repeats stay
    weighted, without replacement   the edges with the smallest keys -log(u) / weight (Efraimidis and Spirakis): each
                                    is drawn in proportion to the weights of those left; one logarithm per edge
    weighted, with replacement      each in proportion to its weight

Edges of weight zero are never drawn, nor by a fan-out of -1; a row of zeros has no edges. Weights that are negative or
not finite are an error once a row with one is expanded: only rows that are needed are read.

Draw i of a node is splitmix64(splitmix64(splitmix64(seed) + node) + i), so what is drawn for a node depends on the
seed, the node and its fan-out alone: not on threads, nor on the batch that it is in. Positions are (word * n) >> 64, so
probabilities are off by at most 2^-64.

Scratch is four bytes per node of the graph, of which only the entries of sampled nodes are touched.
"""

from __future__ import annotations

import bisect
import math
from typing import NamedTuple, NoReturn

import torch
from torch import Tensor

from . import _checks
from ._library import define
from ._structure import structure
from .random import splitmix64

MAX_EDGES = 2**31 - 1  # of one hop: positions are int32


@structure
class SampledEdges(NamedTuple):
    """Row k holds the edges drawn for `rows[k]`: sources (int32, ids of the graph) and positions in the graph."""

    rowptr: Tensor
    source: Tensor
    edge: Tensor


@structure
class SampledNeighbours(NamedTuple):
    """A batch as a CSR of local ids. `n_id`: ids of the nodes in the graph; `e_id`: positions of the edges there."""

    rowptr: Tensor
    col: Tensor
    n_id: Tensor
    nodes_per_hop: Tensor
    edges_per_hop: Tensor
    e_id: Tensor


# Checks -----------------------------------------------------------------------------------------------------------


def _check_fanout(name: str, fanout: int, replace: bool) -> None:
    if fanout < -1 or fanout == 0:
        raise ValueError(f"`{name}` must be at least 1, or -1 for all neighbours (got {fanout})")
    if replace and fanout > MAX_EDGES:  # else a row's degree bounds what is drawn
        raise ValueError(
            f"`{name}` must be at most {MAX_EDGES} with replacement, draws of one row (got {fanout}); "
            "pass -1 for all neighbours"
        )


def _check_weight(weight: Tensor | None, nnz: int) -> None:
    if weight is not None:
        _checks.dtype_of("weight", weight, (torch.float32,))
        _checks.shape_of("weight", weight, (nnz,), f"[{nnz}], one number per edge")


def _check_rows(name: str, rows: Tensor, limit: int) -> None:
    _checks.dtype_of(name, rows, (torch.int64,))
    _checks.shape_of(name, rows, (None,), "[count]")
    _checks.ids_within(name, rows, limit, "nodes")


def _check_edges(
    rowptr: Tensor, col: Tensor, weight: Tensor | None, rows: Tensor, fanout: int, replace: bool, seed: int
) -> None:
    _checks.dtype_of("col", col, (torch.int32,))
    _checks.shape_of("col", col, (None,), "[nnz]")
    _checks.rowptr_of(rowptr, col.numel())
    _check_weight(weight, col.numel())
    _check_rows("rows", rows, rowptr.numel() - 1)
    _check_fanout("fanout", fanout, replace)


def _check(
    rowptr: Tensor,
    col: Tensor,
    weight: Tensor | None,
    seeds: Tensor,
    fanouts: list[int],
    replace: bool,
    seed: int,
    edges: bool,
) -> None:
    if rowptr.numel() == 0:
        raise ValueError(f"`rowptr` must have the shape [num_nodes + 1] (got {tuple(rowptr.shape)})")
    _checks.csr(rowptr, col, rowptr.numel() - 1)
    _check_weight(weight, col.numel())
    _check_rows("seeds", seeds, rowptr.numel() - 1)
    if seeds.numel() == 0:
        raise ValueError("`seeds` must hold at least one node (got none)")
    if not fanouts:
        raise ValueError("`fanouts` must hold one number per hop (got none)")
    for fanout in fanouts:
        _check_fanout("fanouts", fanout, replace)


def refuse_repeat(seeds: Tensor, at: int) -> NoReturn:
    """Raise for a seed that occurs before position `at`, too."""
    first = int((seeds == seeds[at]).nonzero()[0])
    raise ValueError(
        f"`seeds` must hold each node once (got {int(seeds[at])} at positions {first} and {at}); "
        "pass `seeds.unique()`, with `return_inverse=True` to find each seed again"
    )


def refuse_weight(weight: Tensor, at: int) -> NoReturn:
    raise ValueError(f"`weight` must be finite and not negative (got {float(weight[at])} at edge {at})")


def refuse_size(name: str, count: int) -> NoReturn:
    raise ValueError(
        f"`{name}` must lead to at most {MAX_EDGES} edges in one hop (got {count}); use fewer seeds or smaller fan-outs"
    )


# References -------------------------------------------------------------------------------------------------------


class _Words:
    """The random words of one node."""

    def __init__(self, seed: int, node: int) -> None:
        self.state = splitmix64(splitmix64(seed % 2**64) + node)

    def below(self, draw: int, n: int) -> int:
        return splitmix64(self.state + draw) * n >> 64

    def unit(self, draw: int) -> float:
        return ((splitmix64(self.state + draw) >> 12) + 0.5) * 2.0**-52


def _choose(words: _Words, weight: list[float] | None, degree: int, fanout: int, replace: bool) -> list[int]:
    """Positions in a row of `degree` edges, ascending."""
    possible = [i for i in range(degree) if weight is None or weight[i] > 0]
    if not possible or fanout < 0 or (not replace and len(possible) <= fanout):
        return possible
    if weight is not None and replace:
        sums, total = [], 0.0
        for w in weight:
            total += w
            sums.append(total)
        return sorted(bisect.bisect_right(sums, words.unit(i) * total) for i in range(fanout))
    if weight is not None:
        keys = sorted((-math.log(words.unit(i)) / weight[i], i) for i in possible)
        return sorted(i for _, i in keys[:fanout])
    if replace:
        return sorted(words.below(i, degree) for i in range(fanout))
    taken: set[int] = set()
    for i in range(fanout):
        last = degree - fanout + i
        drawn = words.below(i, last + 1)
        taken.add(last if drawn in taken else drawn)
    return sorted(taken)


def _edges_reference(
    rowptr: Tensor, col: Tensor, weight: Tensor | None, rows: Tensor, fanout: int, replace: bool, seed: int
) -> SampledEdges:
    ends, edges, bad = [0], [], []
    for row in rows.tolist():
        begin, end = rowptr[row : row + 2].tolist()
        own = None if weight is None else weight[begin:end].tolist()
        bad += [begin + i for i, w in enumerate(own or []) if not 0 <= w < math.inf]
        if not bad:
            edges += [begin + i for i in _choose(_Words(seed, row), own, end - begin, fanout, replace)]
        ends.append(len(edges))
    if bad:
        assert weight is not None
        refuse_weight(weight, min(bad))
    edge = torch.tensor(edges, dtype=torch.int64, device=col.device)
    return SampledEdges(torch.tensor(ends, dtype=torch.int64, device=col.device), col[edge], edge)


def _reference(
    rowptr: Tensor,
    col: Tensor,
    weight: Tensor | None,
    seeds: Tensor,
    fanouts: list[int],
    replace: bool,
    seed: int,
    edges: bool,
) -> SampledNeighbours:
    local: dict[int, int] = {}
    for at, node in enumerate(seeds.tolist()):
        if local.setdefault(node, at) != at:
            refuse_repeat(seeds, at)
    found, ends, e_id, known, first = [], [0], [seeds.new_empty(0)], [len(local)], 0
    for fanout in fanouts:
        frontier = torch.tensor(list(local)[first:], dtype=torch.int64, device=col.device)
        drawn = _edges_reference(rowptr, col, weight, frontier, fanout, replace, seed)
        first = len(local)
        ends += [ends[-1] + end for end in drawn.rowptr[1:].tolist()]
        found.append([local.setdefault(node, len(local)) for node in drawn.source.tolist()])
        e_id.append(drawn.edge)
        known.append(len(local) - first)
    return SampledNeighbours(
        torch.tensor(ends, dtype=torch.int64, device=col.device),
        torch.tensor([node for hop in found for node in hop], dtype=torch.int32, device=col.device),
        torch.tensor(list(local), dtype=torch.int64, device=col.device),
        torch.tensor(known, dtype=torch.int64),
        torch.tensor([len(hop) for hop in found], dtype=torch.int64),
        torch.cat(e_id) if edges else seeds.new_empty(0),
    )


# Shapes -----------------------------------------------------------------------------------------------------------


def _edges_fake(
    rowptr: Tensor, col: Tensor, weight: Tensor | None, rows: Tensor, fanout: int, replace: bool, seed: int
) -> SampledEdges:
    count = torch.library.get_ctx().new_dynamic_size()
    return SampledEdges(rowptr.new_empty(rows.numel() + 1), col.new_empty(count), rowptr.new_empty(count))


def _fake(
    rowptr: Tensor,
    col: Tensor,
    weight: Tensor | None,
    seeds: Tensor,
    fanouts: list[int],
    replace: bool,
    seed: int,
    edges: bool,
) -> SampledNeighbours:
    context = torch.library.get_ctx()
    expanded, count, nodes = (context.new_dynamic_size() for _ in range(3))
    return SampledNeighbours(
        rowptr.new_empty(expanded),
        col.new_empty(count),
        rowptr.new_empty(nodes),
        torch.empty(len(fanouts) + 1, dtype=torch.int64, device="cpu"),
        torch.empty(len(fanouts), dtype=torch.int64, device="cpu"),
        rowptr.new_empty(count if edges else 0),
    )


sample_edges = define(
    "sample_edges(Tensor rowptr, Tensor col, Tensor? weight, Tensor rows, int fanout, bool replace, int seed) "
    "-> SampledEdges",
    check=_check_edges,
    reference=_edges_reference,
    fake=_edges_fake,
)

sample_neighbours = define(
    "sample_neighbours(Tensor rowptr, Tensor col, Tensor? weight, Tensor seeds, int[] fanouts, bool replace, int seed, "
    "bool edges) -> SampledNeighbours",
    check=_check,
    reference=_reference,
    fake=_fake,
)
