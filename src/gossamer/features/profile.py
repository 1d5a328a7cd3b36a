"""How much of an error in the features survives neighbour averages, compared with the signal.

With P the mean over neighbours, rows x_v of unit length, and errors of different nodes that are independent,

    K^S_v = ||(P^L X)_v||                  what is left of the signal after L averages
    K^E_v = sqrt(sum_u ((P^L)_vu)^2)       what is left of the errors: about ||(P^L E)_v||, E ~ N(0, 1/128), 128 columns

    Khat_L = mean_v K^E_v / mean_v K^S_v    over nodes with neighbours
    CR_safe = 32 / log2(Khat / 0.05)        the compression that is safe, any if Khat <= 0.05

and with the errors X^ - X that a codec really makes

    eta_L = mean_v ||(P^L (X^ - X))_v|| / mean_v ||(P^L X)_v||

Averaging shrinks independent errors faster than the signal, which neighbours share; so the denser the graph, the fewer
bits are enough. Khat needs no codec and is a warning light: real codecs make correlated errors, and a node's own
features (the root path of SAGE, an MLP) are not averaged at all, hence eta_0 beside it. A matrix of more than 2 GB is
sketched: projected to at most 512 random columns, which keeps norms on average.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from ..graph import Graph
from ..ops.spmm import spmm

HOPS = 3
ERROR_COLUMNS, COLUMNS_AT_ONCE = 128, 512
SKETCH_COLUMNS, LEAST_COLUMNS = 512, 16
SAFE_ERROR = 0.05
BUDGET_BYTES = 2**31
"""Memory for a matrix whose averages are taken; a larger one is sketched."""


class Gains(NamedTuple):
    """Norms of the rows after 0, 1, .. L averages, one tensor [nodes] each."""

    norms: list[Tensor]

    def mean(self, hop: int, nodes: Tensor | None) -> float:
        of = self.norms[hop]
        return float((of if nodes is None else of[nodes]).double().mean())


def gains(graph: Graph | None, rows: Tensor, hops: int) -> Gains:
    """||(P^l X)_v|| of every node for l = 0 .. hops, of which there are none without a graph."""
    hops = hops if graph is not None else 0
    squares = torch.zeros(hops + 1, len(rows), dtype=torch.float64)
    for part in rows.split(COLUMNS_AT_ONCE, dim=1):
        for hop, each in enumerate(_averages(graph, part, hops)):
            squares[hop] += torch.linalg.vector_norm(each, dim=1, dtype=torch.float64).square()
    return Gains(list(squares.sqrt()))


def _averages(graph: Graph | None, rows: Tensor, hops: int) -> Iterator[Tensor]:
    """X, P X, P^2 X, ..."""
    yield rows
    for _ in range(hops):
        assert graph is not None
        rows = spmm(graph, rows) / graph.degree.clamp(min=1).to(rows.dtype).unsqueeze(1)  # in float64 if rows are
        yield rows


def unit_rows(x: Tensor) -> Tensor:
    """Rows of length one; a row of zeros stays one."""
    return torch.nn.functional.normalize(x, dim=1, eps=torch.finfo(x.dtype).tiny)


def error_gains(graph: Graph, hops: int, seed: int, columns: int = ERROR_COLUMNS) -> Gains:
    """K^E_v of every node for l = 0 .. hops, estimated with Gaussian errors."""
    draw = torch.Generator().manual_seed(seed)
    return gains(graph, torch.randn(graph.num_nodes, columns, generator=draw) / math.sqrt(columns), hops)


def khat(signal: Gains, errors: Gains, nodes: Tensor | None) -> list[float]:
    """K^E / K^S after 1, 2, .. averages."""
    return [ratio(errors.mean(hop, nodes), signal.mean(hop, nodes)) for hop in range(1, len(signal.norms))]


def safe_ratio(khat: float) -> float:
    """The compression against float32 that Khat allows: infinite if any does."""
    return math.inf if khat <= SAFE_ERROR else 32 / math.log2(khat / SAFE_ERROR)


def ratio(part: float, whole: float) -> float:
    return part / whole if whole > 0 else (0.0 if part == 0 else math.inf)


class Sketch:
    """Rows in fewer columns, as they are if all of them take no more than the budget.

    What a row has in common with the mean of `example` rows is kept in a column of its own, the rest is added with
    random signs to random columns. Averages over neighbours come close to the mean, so without the first column the
    errors of all nodes would be one and the same, and no mean over nodes would lessen them.
    """

    def __init__(self, num_rows: int, example: Tensor, seed: int, budget: int | None = None) -> None:
        num_features = example.size(1)
        affordable = (BUDGET_BYTES if budget is None else budget) // (4 * num_rows)
        self.is_whole = num_features <= max(affordable, LEAST_COLUMNS)
        self.columns = num_features
        if not self.is_whole:
            self.columns = min(max(affordable, LEAST_COLUMNS), SKETCH_COLUMNS)
            draw = torch.Generator().manual_seed(seed)
            self.column_of = torch.randint(1, self.columns, (num_features,), generator=draw)
            self.sign = torch.randint(0, 2, (num_features,), generator=draw) * 2.0 - 1
            self.direction = unit_rows(example.mean(0, keepdim=True))[0]

    def __call__(self, rows: Tensor) -> Tensor:
        if self.is_whole:
            return rows
        out = rows.new_zeros(len(rows), self.columns)
        out[:, 0] = rows @ self.direction
        rest = (rows - out[:, :1] * self.direction) * self.sign
        return out.index_add_(1, self.column_of, rest)


def mean_graph(graph: Graph) -> Graph:
    """The graph whose plain mean over neighbours is P: without weights."""
    return graph.with_value(None) if graph.value is not None else graph
