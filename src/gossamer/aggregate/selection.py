"""RSC for one module: which rows of the gradient its backward product takes, and for how long.

    exact       dX = A^T dZ = sum over i of A_i^T dZ_i              selected    the sum over i in S alone
    score_i     = ||A_i||_2 ||dZ_i||_2 = ||A_i^T dZ_i||_F

S holds whole rows within the module's share of the budget (budget.py): sampled, or those of largest key; the key is the
score, or score / sqrt(deg), which is the better buy for given work. Parallel edges count as entries of their own, so
that the score of a row with many of them is too low. With D the rows left out, and without parallel edges

    ||dX - dX_S||_F  <=  sum_D score_i        and  =  sqrt(sum_D score_i^2)  if their products were orthogonal

With `sample`, row i is kept with p_i = min(1, lambda score_i / sqrt(deg_i)) and weighted by 1 / p_i: E[dX_S] = dX with
the variance sum of (1/p_i - 1) score_i^2, the least for the expected work. The estimated error is the second sum, or
the root of this one, over ||dX||_F.

A selection serves `refresh` passes. In its first it masks the product's sources; if the same graph comes again, the
edges that are kept are copied to a matrix of their own, in their order, and later passes multiply by that.
"""

from __future__ import annotations

import base64
import math
import time
import weakref
import zlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, final

import numpy as np
import torch
from torch import Tensor

from .. import ops
from ..graph import Graph
from ..ops.csr import Sparse, row_of_edge
from ..ops.quantize_rows import QRows
from ..ops.row_selection import kept_matrix
from ..ops.spmm import row_sums
from ..state.plain import real, whole
from .budget import Budget, Curve, curve_of
from .policy import NonzeroRows, Product, Result, Transposed

if TYPE_CHECKING:
    from .adjacency import Adjacency

LEAST_ROWS = 10
LEAST_CHANCE = 2.0**-24
"""What random numbers of 24 bits can tell from zero."""
SAMPLED_ROWS = 1024
"""Rows of a gradient or a result, evenly spaced, that are looked at in every pass."""
FOLLOWED_EVERY = 5
"""Passes after which a selection adds to the curve: one in every pass would cost as much as the selection."""
NEW_ENERGY = 0.01
"""The share of the squared gradient that rows without one at the last draw may carry before rows are drawn again."""
NONZERO = NonzeroRows()


@final
class ModuleRows:
    """The policy `TopRows` of one module: a selection for each of its products in a pass, as a module may have several.

    The n-th product of a pass has the n-th selection: gradients of the layers that share a module differ.
    """

    def __init__(self, name: str, budget: Budget) -> None:
        self.name, self.budget = name, budget
        self.reset()

    def reset(self) -> None:
        self._products: list[RowSelection] = []
        self._pass = self._count = 0

    def product(self, number: int) -> RowSelection:
        """The selection of the product of that number, from 0 on."""
        while len(self._products) <= number:
            self._products.append(RowSelection(self.name, len(self._products), self.budget))
        return self._products[number]

    def multiply(
        self, adjacency: Adjacency, gradient: Tensor | QRows, product: Product[Result], factor: Tensor | None = None
    ) -> Result:
        self.budget.enter(self.name)
        self._count = self._count + 1 if self._pass == self.budget.passes else 1
        self._pass = self.budget.passes
        return self.product(self._count - 1).multiply(adjacency, gradient, product, factor)

    def edge_rows(self) -> Tensor | None:
        return self.product(self._count - 1).edge_rows() if self._count else None


@final
class RowSelection:
    """The rows of one backward product of a module, with what is remembered of it."""

    def __init__(self, module: str, number: int, budget: Budget) -> None:
        self.module, self.number, self.budget = module, number, budget
        self.last_pass = 0
        self.width = self.edges = 0
        self.share: float | None = None
        """Of the work of an exact product; None until the first allocation."""
        self.curve: Curve | None = None
        self.followed_at = -FOLLOWED_EVERY
        """The pass that last added to the curve."""
        self.norm = 0.0
        self.draws = 0
        self.kept_work = 1.0
        self.estimated_error = self.measured_error = math.nan
        self.at_floor = False
        """Whether the least number of rows was taken though it is more than the share allows."""
        self._norms: _Norms | None = None
        self._forget()

    @property
    def name(self) -> str:
        return f"{self.module} ({self.number + 1})" if self.number else self.module

    def _forget(self) -> None:
        """Drop the selection."""
        self._keep: Tensor | None = None
        self._had: Tensor | None = None
        self._weight: Tensor | None = None
        self._graph: tuple[int, ...] | None = None
        self._drawn_for: float | None = None
        self._uses = 0
        self._compact: tuple[weakref.ref[Graph], Sparse] | None = None

    def edge_rows(self) -> Tensor | None:
        if self.budget.setting.edge_grad != "sliced" or self._keep is None:
            return None
        return self._keep.float() if self._weight is None else self._weight

    # A backward product -----------------------------------------------------------------------------------------

    def multiply(
        self, adjacency: Adjacency, gradient: Tensor | QRows, product: Product[Result], factor: Tensor | None = None
    ) -> Result:
        rows = gradient.codes if isinstance(gradient, QRows) else gradient
        if rows.size(1) == 0 or adjacency.graph.num_edges == 0:
            self._forget()
            return product(Transposed(adjacency.transpose()))
        self.width, self.edges, self.last_pass = rows.size(1), adjacency.graph.num_edges, self.budget.passes
        self.budget.layers.setdefault(self.name, self)
        if self.budget.phase == "exact":
            self._forget()
            self._norms = None
            return NONZERO.multiply(adjacency, gradient, product)
        if self.budget.phase == "warm-up" or self.share is None:
            self._scores(adjacency, gradient)
            start = time.perf_counter()
            out = NONZERO.multiply(adjacency, gradient, product)
            self.budget.spent_in_product(time.perf_counter() - start)
            self._follow_norm(out, factor)
            return out
        if self._is_stale(adjacency.graph) or self._has_moved(gradient):
            self._draw(adjacency, gradient)
        if self.kept_work == 1 and self._weight is None:
            out = NONZERO.multiply(adjacency, gradient, product)
        else:
            out = product(self._transposed(adjacency))
            if adjacency.value is not None:
                self._add_loops(adjacency, rows, out)
        self._uses += 1
        self._follow_norm(out, factor)
        if self.budget.is_measured:
            exact = product(Transposed(adjacency.transpose()))
            self.measured_error = _distance(out, exact)
            return exact
        return out

    def _is_stale(self, graph: Graph) -> bool:
        spent = self._uses >= self.budget.setting.refresh
        return self._keep is None or spent or self._drawn_for != self.share or self._graph != _fingerprint(graph)

    def _has_moved(self, gradient: Tensor | QRows) -> bool:
        """Whether rows that had no gradient when the selection was drawn carry some of it now, or one is not finite.

        Some rows, evenly spaced, are looked at: others are loss nodes from step to step, or a run diverges.
        """
        assert self._had is not None
        few, _ = _some(gradient)
        energy = few.double().square().sum(1)
        had = self._had[:: max(1, len(self._had) // SAMPLED_ROWS)]
        new, total = float(torch.where(had, 0.0, energy).sum()), float(energy.sum())
        return not math.isfinite(total) or new > NEW_ENERGY * total

    def _scores(self, adjacency: Adjacency, gradient: Tensor | QRows) -> tuple[Tensor, Tensor]:
        """Score and key of each row; the curve follows them."""
        setting, degree = self.budget.setting, adjacency.graph.degree
        norms = ops.row_norms_int8(gradient) if isinstance(gradient, QRows) else ops.row_norms(gradient)
        score = norms * self._norms_of(adjacency)
        per_edge = score * degree.clamp(min=1).float().rsqrt()
        key = score if setting.rank == "score" and not setting.sample else per_edge
        if self.budget.phase == "warm-up" or self.budget.passes - self.followed_at >= FOLLOWED_EVERY:
            found = curve_of(key, degree, score, setting.allocation)
            self.curve = found if self.curve is None else self.curve.averaged(found)
            self.followed_at = self.budget.passes
        return score, key

    def _norms_of(self, adjacency: Adjacency) -> Tensor:
        """||A_i||_2 of each destination, without the diagonal; computed once for a fixed matrix."""
        if adjacency.value is not None:
            return row_norms(adjacency)
        if self._norms is None or not self._norms.are_of(adjacency):
            scales = (adjacency.src_scale, adjacency.dst_scale)
            self._norms = _Norms(weakref.ref(adjacency.graph), scales, row_norms(adjacency))
        return self._norms.norms

    def _draw(self, adjacency: Adjacency, gradient: Tensor | QRows) -> None:
        self._forget()
        self.at_floor = False
        score, key = self._scores(adjacency, gradient)
        degree = adjacency.graph.degree
        edges = math.floor((self.share or 0.0) * self.edges + 1e-6)  # a share k / n allows k of n edges
        if edges >= self.edges:  # rows that are zero now need not be so in later passes
            keep, lost = torch.ones_like(key, dtype=torch.bool), torch.zeros_like(key)
        elif self.budget.setting.sample:
            chance = chances(key, degree, edges)
            keep = _uniform(self.budget.seed, self.name, self.budget.passes, len(key)) < chance
            self._weight = torch.where(keep, chance.reciprocal(), 0.0)
            lost = score * torch.where(chance > 0, chance.reciprocal() - 1, 0.0).sqrt()  # squared: the variance
        else:
            keep = ops.top_rows(key, degree, edges)
            self.at_floor = _fill(keep, key)
            lost = torch.where(keep, 0.0, score)
        error = float(lost.double().square().sum().sqrt())
        self.estimated_error = error / self.norm if self.norm > 0 else math.nan
        self.kept_work = float(torch.where(keep, degree, 0).sum()) / self.edges
        self._keep, self._had = keep, (key != 0) | (degree == 0)  # without edges a gradient does not count
        self._graph, self._drawn_for = _fingerprint(adjacency.graph), self.share
        self.draws += 1

    def _transposed(self, adjacency: Adjacency) -> Transposed:
        matrix, keep = adjacency.transpose(), self._keep
        if self._weight is not None:
            scale = self._weight if matrix.src_scale is None else self._weight * matrix.src_scale
            matrix = matrix._replace(src_scale=scale)
        if adjacency.value is not None or self._uses == 0:  # values that change, or a graph that may not come again
            return Transposed(matrix, keep)
        if self._compact is None or self._compact[0]() is not adjacency.graph:
            self._compact = weakref.ref(adjacency.graph), kept_matrix(matrix, keep)
        kept = self._compact[1]
        return Transposed(matrix._replace(rowptr=kept.rowptr, col=kept.col, value=kept.value))

    def _add_loops(self, adjacency: Adjacency, dout: Tensor, out: Any) -> None:
        """What self-loops among edges whose weights require grad pass on, for rows that were left out: a node's own
        part is exact. Loops of a fixed adjacency stand on its diagonal.
        """
        at, nodes = loops_of(adjacency.graph)
        if not len(at):
            return
        assert adjacency.value is not None and self._keep is not None
        taken = self._keep.float() if self._weight is None else self._weight
        loop = torch.zeros_like(taken).index_add(0, nodes, adjacency.value.detach().float()[at])
        for scale in (adjacency.src_scale, adjacency.dst_scale):
            loop = loop if scale is None else loop * scale.float()
        out += ((1 - taken) * loop).unsqueeze(1).to(out.dtype) * dout

    def _follow_norm(self, out: Any, factor: Tensor | None) -> None:
        """A running average of ||dX||."""
        few, times = _some(out, factor)
        norm = math.sqrt(float(few.double().square().sum()) * times)
        if math.isfinite(norm):
            self.norm = norm if self.norm == 0 else (self.norm + norm) / 2

    @property
    def extra_bytes(self) -> int:
        """Memory of the selection beyond the graph's own."""
        held = [self._keep, self._had, self._weight, *(() if self._compact is None else self._compact[1][:3])]
        held += [] if self._norms is None else [self._norms.norms]
        return sum(tensor.nbytes for tensor in held if tensor is not None)

    # Checkpoints ------------------------------------------------------------------------------------------------

    NUMBERS = ("last_pass", "width", "edges", "share", "followed_at", "norm", "draws", "kept_work", "at_floor")

    def state(self) -> dict[str, Any]:
        plain = {name: getattr(self, name) for name in self.NUMBERS}
        errors = [None if math.isnan(e) else e for e in (self.estimated_error, self.measured_error)]
        curve = None if self.curve is None else [list(self.curve.work), list(self.curve.kept)]
        named = {"module": self.module, "number": self.number, "uses": self._uses}
        held = named | {"keep": _written(self._keep), "had": _written(self._had), "weight": _written(self._weight)}
        return plain | held | {"errors": errors, "curve": curve, "graph": self._graph, "drawn_for": self._drawn_for}

    def restore(self, found: Mapping[str, Any]) -> None:
        self._forget()
        self.last_pass, self.draws = whole(found["last_pass"]), whole(found["draws"])
        self.width, self.edges = whole(found["width"], 1), whole(found["edges"], 1)
        self.followed_at = whole(found["followed_at"], -FOLLOWED_EVERY)
        self.norm, self.kept_work = real(found["norm"], 0), real(found["kept_work"], 0, 1)
        self.share, self._drawn_for = (None if found[k] is None else real(found[k]) for k in ("share", "drawn_for"))
        self.at_floor, self._uses = bool(found["at_floor"]), whole(found["uses"])
        self.estimated_error, self.measured_error = (math.nan if e is None else float(e) for e in found["errors"])
        allocation = self.budget.setting.allocation
        self.curve = None if found["curve"] is None else Curve.of_plain(found["curve"], allocation)
        if found["keep"] is not None:
            _, rows, *_ = self._graph = tuple(whole(n) for n in found["graph"])
            self._keep, self._had = (_read(found[name], np.bool_, rows) for name in ("keep", "had"))
            self._weight = None if found["weight"] is None else _read(found["weight"], np.float32, rows)

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_compact": None, "_norms": None}  # what can be made again; weak references are no copy


def chances(key: Tensor, cost: Tensor, work: int) -> Tensor:
    """p = min(1, lambda key) such that the expected cost of what is kept is `work`, or all that has a key is kept."""
    sure = ~key.isfinite()
    wide = torch.where(sure, 0.0, key.double())
    chance = sure.double()
    for _ in range(1000):  # each round finds rows whose chance would exceed 1; few are needed
        left = work - float(torch.where(sure, cost, 0).sum())
        total = float(torch.where(sure, 0.0, wide * cost).sum())
        if left <= 0 or total == 0:
            return sure.float()
        chance = torch.where(sure, 1.0, wide * (left / total))
        more = (chance > 1) & ~sure
        if not bool(more.any()):
            break
        sure = sure | more
    return torch.where(chance < LEAST_CHANCE, 0.0, chance.clamp(max=1)).float()


def _fill(keep: Tensor, key: Tensor) -> bool:
    """Add the best rows to a selection of too few; whether that was needed."""
    least = min(LEAST_ROWS, int((key > 0).sum()))
    if int(keep.sum()) >= least:
        return False
    keep[torch.argsort(key, descending=True, stable=True)[:least]] = True
    return True


class _Norms(NamedTuple):
    """||A_i|| of a fixed matrix, and what that is made of."""

    graph: weakref.ref[Graph]
    scales: tuple[Tensor | None, Tensor | None]
    norms: Tensor

    def are_of(self, adjacency: Adjacency) -> bool:
        src, dst = self.scales
        return self.graph() is adjacency.graph and src is adjacency.src_scale and dst is adjacency.dst_scale


def row_norms(adjacency: Adjacency) -> Tensor:
    """||A_i||_2 of each destination, without the diagonal."""
    a = adjacency.matrix()
    squares = [None if t is None else t.detach().float().square() for t in (a.value, a.src_scale)]
    ones = torch.ones(adjacency.graph.num_src, 1, dtype=torch.float32, device=a.rowptr.device)
    sums = row_sums(Sparse(a.rowptr, a.col, *squares), ones).squeeze(1).sqrt()
    return sums if a.dst_scale is None else sums * a.dst_scale.float().abs()


def loops_of(graph: Graph) -> tuple[Tensor, Tensor]:
    """Positions of self-loops among the edges, and their nodes."""

    def find() -> tuple[Tensor, Tensor]:
        row = row_of_edge(graph.rowptr)
        at = (row == graph.col).nonzero().flatten() if graph.num_src == graph.num_dst else row[:0]
        return at, row[at]

    return graph.derived("loops", find)


def _fingerprint(graph: Graph) -> tuple[int, ...]:
    """Sizes, and a checksum of some entries: equal graphs share a selection, also after a checkpoint."""

    def checksum() -> tuple[int, ...]:
        some = [t[:: max(1, t.numel() // 2048)].contiguous().cpu().numpy().tobytes() for t in (graph.rowptr, graph.col)]
        return graph.num_src, graph.num_dst, graph.num_edges, zlib.crc32(some[1], zlib.crc32(some[0]))

    return graph.derived("fingerprint", checksum)


def _uniform(seed: int, name: str, number: int, rows: int) -> Tensor:
    """[0, 1), one number for each row, of this module and this pass."""
    mixed = (seed + zlib.crc32(name.encode()) * 0x9E3779B97F4A7C15 + number * 0xBF58476D1CE4E5B9) % 2**63
    return ((ops.random_bits(mixed, rows) >> 8) & (2**24 - 1)).float() * 2.0**-24


def _some(out: Any, factor: Tensor | None = None) -> tuple[Tensor, float]:
    """Evenly spaced rows of a result in float32, and how many rows each stands for."""
    rows = out.codes if isinstance(out, QRows) else out
    picked = slice(None, None, max(1, rows.size(0) // SAMPLED_ROWS))
    few = rows[picked]
    if isinstance(out, QRows):
        few = ops.dequantize_rows(few.contiguous(), out.scale[picked].contiguous())
    few = few if factor is None else torch.where(factor == 0, 0.0, few / factor)
    return few, rows.size(0) / max(1, few.size(0))


def _distance(out: Any, exact: Any) -> float:
    """||out - exact|| / ||exact|| of some rows."""
    (got, _), (want, _) = _some(out), _some(exact)
    size = float(torch.linalg.vector_norm(want.double()))
    return float(torch.linalg.vector_norm((got - want).double())) / size if size > 0 else math.nan


def _written(tensor: Tensor | None) -> str | None:
    """A tensor as text; truth values take a bit each before they are compressed."""
    if tensor is None:
        return None
    data = tensor.cpu().numpy()
    packed = np.packbits(data) if data.dtype == np.bool_ else data
    return f"{data.size}:{base64.b64encode(zlib.compress(packed.tobytes())).decode()}"


def _read(text: str, dtype: Any, rows: int) -> Tensor:
    """The tensor that was written; raises if it is not of so many rows, before more than that is unpacked."""
    size, data = text.split(":")
    expected = -(-rows // 8) if dtype is np.bool_ else rows * np.dtype(dtype).itemsize
    raw = zlib.decompressobj().decompress(base64.b64decode(data), expected + 1)
    if int(size) != rows or len(raw) != expected:
        raise ValueError(f"a selection of {rows} rows must stand where one of {size[:40]} does")
    if dtype is np.bool_:
        return torch.from_numpy(np.unpackbits(np.frombuffer(raw, np.uint8), count=rows).astype(np.bool_))
    return torch.from_numpy(np.frombuffer(raw, dtype).copy())
