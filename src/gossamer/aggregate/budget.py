"""The budget of RSC: what the layers of a model may multiply in backward, and when.

    sum over layers l of  d_l sum_{i in S_l} deg_i   <=   C nnz sum over l of d_l        d_l columns, S_l the kept rows

A layer is known by its curve: how much of its score the best rows keep, by their share of the layer's work, as a
running average over the selections. It does not depend on which nodes there are, so it serves mini-batches as well.
What is kept is measured by what it is of the layer's result, ||dX_l||:

    greedy      as published: rows in steps of 2 % are taken from the layer that loses the least score by it
    threshold   rows are kept where score^2 / (||dX_l||^2 deg d_l) is above one number for all layers: the least squared
                error for the budget, if the dropped products were orthogonal

What a step leaves unspent goes to the layer that was shortened last. Time is counted in backward passes; in `gs.train`,
reallocation and a share as `exact_after` count epochs.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, final

import numpy as np
import torch
from torch import Tensor

from ..state.plain import real, whole

if TYPE_CHECKING:
    from ..state import ModelState
    from .policy import TopRows
    from .selection import ModuleRows, RowSelection

STEP = 0.02
"""The share of rows by which the greedy allocation lowers a layer; below it, where hubs are, finer."""
ROW_GRID = np.array([0, 0.0005, 0.001, 0.002, 0.005, 0.01, *np.arange(1, round(1 / STEP) + 1) * STEP])
WORK_GRID = (np.arange(97) / 96) ** 2
KEY_BITS = 19
"""Bits of a float that are left out when keys are put into bins: 16 bins for each power of two remain."""
MEASURED_EVERY = 100
"""Passes after which the true error is measured, by an exact product beside the selected one."""


MOST_PRODUCTS = 10_000
"""Of one module in a pass, in a checkpoint that is believed."""


class Curve(NamedTuple):
    """At each point of a grid the share of the work of the best rows up to there, and the score that they keep."""

    work: Sequence[float]
    kept: Sequence[float]

    @classmethod
    def of_plain(cls, found: Any, allocation: str) -> Curve:
        """That of a checkpoint; raises if it is no curve of this allocation."""
        work, kept = ([real(value, 0) for value in column] for column in found)
        points = len(ROW_GRID if allocation == "greedy" else WORK_GRID)
        if len(work) != points or len(kept) != points:
            raise ValueError(f"a curve must have {points} points (got {len(work)} and {len(kept)})")
        return cls(work, kept)

    def averaged(self, new: Curve) -> Curve:
        """The mean of both, point by point."""
        return Curve(*([(a + b) / 2 for a, b in zip(*pair, strict=True)] for pair in zip(self, new, strict=True)))


def curve_of(key: Tensor, cost: Tensor, score: Tensor, allocation: str) -> Curve:
    """Rows in bins of falling keys, interpolated to the grid of the allocation; nothing is sorted."""
    counts = key.isfinite() & (key > 0)
    bins = torch.where(counts, key, 0.0).view(torch.int32) >> KEY_BITS
    kept = torch.where(counts, score, 0.0).double()
    kept = kept if allocation == "greedy" else kept.square()
    columns = (counts.double(), torch.where(counts, cost, 0).double(), kept)
    sums = [torch.bincount(bins, column).flip(0).cumsum(0).numpy() for column in columns]
    rows, work, kept_sum = (np.concatenate([[0.0], column]) for column in sums)
    work = work / max(1.0, float(cost.sum()))
    if allocation == "greedy":
        at = np.interp(ROW_GRID, rows / len(key), np.arange(len(rows)))
    else:
        at = np.interp(WORK_GRID, work, np.arange(len(work)))
    steps = np.arange(len(rows))
    return Curve(*(np.interp(at, steps, column).tolist() for column in (work, kept_sum)))


class Demand(NamedTuple):
    """What the allocation asks of a layer: its curve, its exact work d nnz, and the norm of its result."""

    curve: Curve
    work: float
    norm: float

    def gains(self, power: int) -> Any:
        return np.asarray(self.curve.kept) / max(self.norm, 1e-30) ** power


def greedy(demands: Sequence[Demand], budget: float) -> list[float]:
    """The share of its work that each layer may do."""
    limit = budget * sum(d.work for d in demands)
    gains, works = [d.gains(1) for d in demands], [np.asarray(d.curve.work) for d in demands]
    at = [int(np.argmax(work >= work[-1])) for work in works]  # where nothing is lost
    spent = sum(d.work * w[k] for d, w, k in zip(demands, works, at, strict=True))
    last, room = None, 0.0
    while spent > limit and any(at):
        losses = [g[k] - g[k - 1] if k else math.inf for g, k in zip(gains, at, strict=True)]
        last = int(np.argmin(losses))
        room = works[last][at[last]] - works[last][at[last] - 1]
        at[last] -= 1
        spent -= demands[last].work * room
    shares = [float(w[k]) for w, k in zip(works, at, strict=True)]
    if last is None:
        return _with_rest(demands, shares, limit - spent)
    if spent < limit:
        shares[last] += min(room, (limit - spent) / demands[last].work)
    return shares


def threshold(demands: Sequence[Demand], budget: float) -> list[float]:
    """The share of its work that each layer may do: pieces of all curves are taken in the order of what they keep for
    their work, until the budget is spent.
    """
    left = budget * sum(d.work for d in demands)
    pieces = []
    for layer, demand in enumerate(demands):
        for step, kept in _concave(np.asarray(demand.curve.work), demand.gains(2)):
            pieces.append((kept / (step * demand.work), layer, step))
    shares = [0.0] * len(demands)
    for _, layer, step in sorted(pieces, key=lambda piece: (-piece[0], piece[1])):
        taken = min(step, left / demands[layer].work)
        shares[layer] += taken
        left -= taken * demands[layer].work
        if taken < step:
            return shares
    return _with_rest(demands, shares, left)


def _with_rest(demands: Sequence[Demand], shares: list[float], left: float) -> list[float]:
    """Nothing is lost, and the rest of the budget goes to all layers alike: a gradient to come may have fewer zeros."""
    missing = sum(d.work * (1 - share) for d, share in zip(demands, shares, strict=True))
    part = min(1.0, left / missing) if left > 0 and missing > 0 else 0.0
    return [share + part * (1 - share) for share in shares]


def _concave(work: Any, kept: Any) -> list[tuple[float, float]]:
    """Steps in work and in what is kept, merged until they fall: rows by score need not be in the order of gain."""
    pieces: list[tuple[float, float]] = []
    for step, gain in zip(np.diff(work), np.diff(kept), strict=True):
        if step <= 0:
            continue
        pieces.append((float(step), float(gain)))
        while len(pieces) > 1 and pieces[-1][1] * pieces[-2][0] > pieces[-2][1] * pieces[-1][0]:
            (a, b), (c, d) = pieces.pop(), pieces.pop()
            pieces.append((a + c, b + d))
    return pieces


@final
class Budget:
    """One per model: counts backward passes, and shares the budget out among the layers that take part."""

    def __init__(self, setting: TopRows, model: ModelState) -> None:
        self.setting, self.model = setting, model
        self.passes = 0
        self.seed = torch.initial_seed() % 2**63
        self._begin()

    def _begin(self) -> None:
        self.layers: dict[str, RowSelection] = {}
        """The backward products that there were, in that order."""
        self.allocated_at: tuple[str, int] | None = None
        """The unit of time, "epochs" or "passes", and when."""
        self.last_phase = "warm-up"
        """That of the last pass."""
        self._task: int | None = None
        self._seen: set[str] = set()
        self._began: float | None = None
        self._in_products = 0.0
        self.step_seconds = self.product_seconds = math.inf
        """The fastest exact pass, from one to the next, and its backward products."""

    def enter(self, module: str) -> None:
        """A backward product of this module begins; the first of a pass counts it, and allocates if that is due.

        A pass is a call of `backward`: it has a number of its own. Checkpointing may make calls within it, so another
        number counts only if the module has had its product.
        """
        task = torch._C._current_graph_task_id()
        begun = self._task is not None and task != -1
        same, self._task = begun and (task == self._task or module not in self._seen), task
        self._seen.add(module)
        if same:
            return
        self._seen = {module}
        self._time_step()
        self.passes += 1
        self.last_phase = self.phase
        if self.phase == "selected" and self._is_due():
            self.allocate()

    @property
    def phase(self) -> str:
        """ "warm-up", "selected" or "exact"."""
        after, epochs = self.setting.exact_after, self.model.epochs
        if isinstance(after, int) and self.passes > after:
            return "exact"
        if isinstance(after, float) and epochs is not None and self.model.epoch >= int(after * epochs):
            return "exact"
        return "warm-up" if self.passes <= self.setting.warmup else "selected"

    @property
    def is_measured(self) -> bool:
        """Whether the true error is measured in this pass: the first that selects, then now and then."""
        return (self.passes - self.setting.warmup) % MEASURED_EVERY == 1

    @property
    def _clock(self) -> tuple[str, int]:
        return ("passes", self.passes) if self.model.epochs is None else ("epochs", self.model.epoch)

    def _is_due(self) -> bool:
        (unit, now), before = self._clock, self.allocated_at
        return before is None or before[0] != unit or not 0 <= now - before[1] < self.setting.reallocate

    def allocate(self) -> None:
        """Give every layer that has been measured, and had a product in the pass before, its share."""
        known = [x for x in self.layers.values() if x.curve is not None and x.last_pass >= self.passes - 1]
        demands = [Demand(layer.curve, layer.width * layer.edges, layer.norm) for layer in known if layer.curve]
        share_out = greedy if self.setting.allocation == "greedy" else threshold
        for layer, share in zip(known, share_out(demands, self.setting.budget), strict=True):
            layer.share = share
        self.allocated_at = self._clock

    # What it gains ----------------------------------------------------------------------------------------------

    def spent_in_product(self, seconds: float) -> None:
        self._in_products += seconds

    def _time_step(self) -> None:
        now = time.perf_counter()
        if self._began is not None and 1 <= self.passes <= self.setting.warmup:
            step = now - self._began
            if step < self.step_seconds:
                self.step_seconds, self.product_seconds = step, self._in_products
        self._began, self._in_products = now, 0.0

    @property
    def product_share(self) -> float | None:
        """The share of a step that exact backward products take; None before two warm-up passes."""
        return None if math.isinf(self.step_seconds) else min(1.0, self.product_seconds / self.step_seconds)

    # Checkpoints ------------------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """Plain values for a checkpoint."""
        layers = {name: layer.state() for name, layer in self.layers.items()}
        times = None if math.isinf(self.step_seconds) else [self.step_seconds, self.product_seconds]
        plain = {"passes": self.passes, "seed": self.seed, "allocated_at": self.allocated_at, "seconds": times}
        return plain | {"last_phase": self.last_phase, "layers": layers}

    def restore(self, found: Mapping[str, Any] | None, policies: Mapping[str, ModuleRows]) -> None:
        """What `state` returned, back in place; None begins anew. `policies` are those of the modules by name."""
        for policy in policies.values():
            policy.reset()
        self._begin()
        self.passes = 0
        if found is None:
            return
        self.passes, self.seed, self.last_phase = whole(found["passes"]), whole(found["seed"]), str(found["last_phase"])
        unit, when = found["allocated_at"] or (None, 0)
        self.allocated_at = None if unit is None else (str(unit), whole(when))
        if found["seconds"] is not None:
            self.step_seconds, self.product_seconds = (real(seconds, 0) for seconds in found["seconds"])
        for name, own in found["layers"].items():
            layer = self.layers[name] = policies[own["module"]].product(whole(own["number"], high=MOST_PRODUCTS))
            layer.restore(own)
