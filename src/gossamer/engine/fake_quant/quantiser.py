"""One site: the range of what passes, learned in training, and the levels that it is rounded to.

    lo = min(0, low)    hi = max(0, high)    scale = max((hi - lo) / (2^b - 1), 2^-23)    zero = clamp(rne(-lo / scale))

Zero is always a level, and codes are 0 .. 2^b - 1: after ReLU zero is code 0. The range follows by the observer:

    histogram     the `tail` and 1 - `tail` percentiles of a histogram over the last range, widened by a quarter on
                  either side; in the first twenty steps, then in every tenth:
                  r += max(0.096, 1 / (seen + 1)) (cur - r)
                  Of values other than zero, which is a level anyway: else sparse features, or what dropout left, would
                  have a range of nothing
    percentile    exact percentiles, merged by running extremes (as released)
    momentum      extremes, r += 0.01 (cur - r)
    extremes      running extremes

Rows that are protected are neither rounded nor observed. Where nothing was seen yet, x passes as it is.

Features that a model is given may have columns of very different scale (a price among normal columns): `columns` is
then a factor per column by which they are divided before they are rounded, and by which the weight that follows is
multiplied; else all ones. Buffers have fixed shapes, so that checkpoints load before the first batch.
"""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor, nn

from ... import ops
from ...ops.fake_quantize import fake_quantize
from ...state import facts
from .settings import Quantised

BINS = 2048
FIRST_STEPS, EVERY = 20, 10
FOLLOW, MOMENTUM = 0.096, 0.01
SMALLEST_SCALE = 2.0**-23
SPREAD_OF_COLUMNS = 4.0
"""Columns whose largest magnitudes differ by more are equalised."""


@final
class Quantiser(nn.Module):
    low: Tensor
    high: Tensor
    seen: Tensor
    steps: Tensor
    columns: Tensor | None

    def __init__(self, setting: Quantised, columns: int | None = None) -> None:
        """`columns`: those of a site that may meet a model's input."""
        super().__init__()
        self.setting = setting
        self.passes = False
        """Observe, but round nothing."""
        self.counts: Tensor | None = None
        """Where set, counts of equal parts of the range are added to it in place of observing."""
        self.register_buffer("low", torch.zeros(1))
        self.register_buffer("high", torch.zeros(1))
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64))
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))
        self.register_buffer("columns", None if columns is None else torch.ones(columns))

    @property
    def top(self) -> int:
        return 2**self.setting.bits - 1

    @property
    def is_ready(self) -> bool:
        """Whether it has a range."""
        return int(self.seen) > 0

    def levels(self) -> tuple[Tensor, Tensor]:
        """scale and zero, [1] each."""
        low, high = self.low.clamp(max=0), self.high.clamp(min=0)
        scale = ((high - low) / self.top).clamp(min=SMALLEST_SCALE)
        scale = torch.where(high == low, torch.ones_like(scale), scale)
        return scale, (-low / scale).round().clamp(0, self.top)

    def forward(
        self,
        x: Tensor,
        row: Tensor | None = None,
        keep: Tensor | None = None,
        dropped: float = 0.0,
        columns: Tensor | None = None,
    ) -> Tensor:
        """row x, rounded. `dropped` is the dropout that x has passed: it divided by 1 - p what is left, inference does
        not. `columns`: what columns are divided by, in place of the site's own.
        """
        if x.dim() != 2:
            return self(x.flatten(0, -2), row, keep, dropped, columns).view(x.shape)
        x = x.float() if x.dtype in (torch.bfloat16, torch.float16) else x  # autocast makes rows of that kind
        columns = self.columns if columns is None else columns
        with torch.no_grad():
            if self.training:
                self._observe(x.detach() if columns is None else x.detach() / columns, row, keep, 1 - dropped)
            if not self.is_ready or self.passes:
                return x if row is None else x * row.unsqueeze(1)
            scale, zero = self.levels()
            if dropped:
                scale = scale / (1 - dropped)
            if columns is not None:
                scale = scale * columns
        return fake_quantize(x, scale, zero, row, keep, self.top, self.setting.rule)

    def extra_repr(self) -> str:
        return f"{self.setting.bits} bits, [{float(self.low):.4g}, {float(self.high):.4g}]"

    # Observing --------------------------------------------------------------------------------------------------

    def _observe(self, x: Tensor, row: Tensor | None, keep: Tensor | None, factor: float) -> None:
        self.steps += 1
        steps = int(self.steps)
        if self.setting.observer == "histogram" and steps > FIRST_STEPS and steps % EVERY:
            return
        if x.numel() == 0 or (keep is not None and bool(keep.all())):
            return
        if self.counts is not None:
            self._count(x, row)
            return
        found = self._range_of(x, row, keep, factor)
        if found is not None:
            self._follow(*(value * factor for value in found))

    def _range_of(
        self, x: Tensor, row: Tensor | None, keep: Tensor | None, factor: float
    ) -> tuple[float, float] | None:
        """This batch's, of x that is 1 / factor times what inference will have; None if it is not finite."""
        observer, tail = self.setting.observer, self.setting.share_left_out
        if observer == "histogram" and self.is_ready and not float(self.low) == float(self.high) == 0:
            return self._by_histogram(x, row, keep, tail, factor)
        values = x if row is None else x * row.unsqueeze(1)
        values = values if keep is None else values[~keep]
        if observer == "histogram":
            values = values[values != 0]
            if not values.numel():
                return 0.0, 0.0
        if observer in ("histogram", "percentile") and tail > 0:
            low, high = exact_percentiles(values, tail)
        else:
            low, high = (float(end) for end in torch.aminmax(values))
        return (low, high) if -torch.inf < low <= high < torch.inf else None

    def _by_histogram(
        self, x: Tensor, row: Tensor | None, keep: Tensor | None, tail: float, factor: float
    ) -> tuple[float, float] | None:
        low, high = float(self.low) / factor, float(self.high) / factor
        width = max(high - low, SMALLEST_SCALE, 1e-6 * max(abs(low), abs(high)))
        start, end = low - width / 4, high + width / 4
        place_of_zero = ops.histogram(x.new_zeros(1, 1), None, None, start, end, BINS)
        counts = (ops.histogram(x, row, keep, start, end, BINS) - _zeros(x, row, keep) * place_of_zero).double()
        total = float(counts.sum())
        if total == 0:
            return None
        below = counts.cumsum(0) / total  # [BINS + 2]: the share up to the end of each bin
        edges = torch.linspace(start, end, BINS + 1, dtype=torch.float64)
        first, last = float(below[0]), 1 - float(below[-2])
        found_low = start - width / 2 if first > tail else _interpolated(below, edges, tail)
        found_high = end + width / 2 if last > tail else _interpolated(below, edges, 1 - tail)
        return found_low, found_high

    def _count(self, x: Tensor, row: Tensor | None) -> None:
        """Add a histogram over the range, zero included; what lies at its ends counts inside."""
        assert self.counts is not None
        low, high = min(0.0, float(self.low)), max(0.0, float(self.high))
        if high > low:
            found = ops.histogram(x, row, None, low, high, len(self.counts)).double()
            found[1] += found[0]
            found[-2] += found[-1]
            self.counts += found[1:-1]

    def _follow(self, low: float, high: float) -> None:
        """Merge this batch's range."""
        observer, seen = self.setting.observer, int(self.seen)
        if seen == 0:
            self.low.fill_(low)
            self.high.fill_(high)
        elif observer in ("percentile", "extremes"):
            self.low.clamp_(max=low)
            self.high.clamp_(min=high)
        else:
            weight = MOMENTUM if observer == "momentum" else max(FOLLOW, 1 / (seen + 1))
            self.low.lerp_(torch.full_like(self.low, low), weight)
            self.high.lerp_(torch.full_like(self.high, high), weight)
        self.seen += 1

    @torch.no_grad()
    def equalise(self, x: Tensor) -> None:
        """In the first steps let `columns` follow the largest magnitudes of a model's input, where they differ much."""
        fits = self.columns is not None and x.dim() == 2 and x.size(1) == self.columns.numel() and x.size(0) > 0
        if not fits or int(self.steps) >= FIRST_STEPS:
            return
        assert self.columns is not None
        largest = facts.remember(x, "largest of columns", lambda: x.detach().abs().amax(0).float())
        known = (largest > 0) & largest.isfinite()
        if int(known.sum()) < 2 or float(largest[known].max()) <= SPREAD_OF_COLUMNS * float(largest[known].median()):
            return
        before = torch.where(self.columns == 1, 0.0, self.columns)
        self.columns.copy_(torch.where(known, torch.maximum(largest, before), self.columns))


def exact_percentiles(values: Tensor, tail: float) -> tuple[float, float]:
    """The k-th smallest and largest of all values, k = clamp(int(n tail), 1, n)."""
    flat = values.flatten()
    count = flat.numel()
    k = min(max(int(count * tail), 1), count)
    last = min(max(int(count * (1 - tail)), 1), count)
    ordered = flat.sort().values if count < 2**16 else None
    if ordered is not None:
        return float(ordered[k - 1]), float(ordered[last - 1])
    return float(flat.kthvalue(k).values), float(flat.kthvalue(last).values)


def _zeros(x: Tensor, row: Tensor | None, keep: Tensor | None) -> int:
    """How many elements of row x are zero, without rows that have `keep` set."""
    others = x.count_nonzero(1)  # [rows]
    if row is not None:
        others = torch.where(row == 0, 0, others)
    if keep is not None:
        others = others[~keep]
    return others.numel() * x.size(1) - int(others.sum())


def _interpolated(below: Tensor, edges: Tensor, share: float) -> float:
    """Where the cumulative share is reached, within its bin."""
    k = int(torch.searchsorted(below, share))  # the bin, counted from the one below the window
    k = min(max(k, 1), BINS)
    start, end = float(below[k - 1]), float(below[k])
    part = (share - start) / (end - start) if end > start else 0.0
    return float(edges[k - 1]) + min(max(part, 0.0), 1.0) * float(edges[k] - edges[k - 1])
