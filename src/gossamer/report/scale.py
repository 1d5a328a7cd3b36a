"""From values to pixels, with ticks at round numbers.

Ticks are multiples of 1, 2 or 5 times a power of ten. A scale is logarithmic when its values span more than a factor of
20; it then has a tick at every power of ten, and at 2 and 5 times it where there is room.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

LOG_FROM = 20
MOST_TICKS = 6
SMALLEST = 1e-12  # anything nearer to zero is zero


@dataclass(frozen=True)
class Scale:
    low: float
    high: float
    log: bool
    ticks: tuple[float, ...]
    start: float
    """The pixel of `low`."""
    end: float
    """The pixel of `high`."""

    def __call__(self, value: float) -> float:
        """The pixel of `value`, which may lie beyond the ends; on a logarithmic scale nothing is below the low end."""
        share = (self._place(value) - self._place(self.low)) / (self._place(self.high) - self._place(self.low))
        return self.start + share * (self.end - self.start)

    def _place(self, value: float) -> float:
        return math.log10(max(value, self.low)) if self.log else value

    def tick_texts(self) -> list[str]:
        """As many decimals as tell the ticks apart; on a logarithmic scale each has its own."""
        if self.log:
            return [f"{tick:,.{max(0, -math.floor(math.log10(tick)))}f}" for tick in self.ticks]
        step = self.ticks[1] - self.ticks[0]
        decimals = max(0, -math.floor(math.log10(step * 1.000001)))
        return [f"{tick:,.{decimals}f}" for tick in self.ticks]


def nice_step(span: float, most: int = MOST_TICKS) -> float:
    """The smallest of 1, 2, 5 x 10^k that divides `span` into fewer than `most` parts."""
    power = 10.0 ** math.floor(math.log10(span / most))
    return next(step * power for step in (1, 2, 5, 10, 20) if span / (step * power) <= most - 1)


def linear_ticks(low: float, high: float) -> tuple[float, ...]:
    """Round numbers, the first at or below `low`, the last at or above `high`."""
    step = nice_step(high - low)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    # one division by a whole number instead of a product with 0.1: 0.3 and not 0.30000000000000004
    scale = round(1 / step) if step < 1 else 0
    return tuple(n / scale if scale else n * step for n in range(first, last + 1))


def log_ticks(low: float, high: float) -> tuple[float, ...]:
    """Powers of ten around `low` and `high`, and 2 and 5 times them while that stays readable."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high) - 1e-9)
    for steps in ((1, 2, 5), (1, 3), (1,)):
        found = [step * 10.0**power for power in range(first, last + 1) for step in steps]
        below = max((i for i, tick in enumerate(found) if tick <= low * (1 + 1e-9)), default=0)
        above = min((i for i, tick in enumerate(found) if tick >= high * (1 - 1e-9)), default=len(found) - 1)
        ticks = found[below : above + 1]
        if len(ticks) <= MOST_TICKS + 2:
            return tuple(ticks)
    stride = math.ceil((len(ticks) - 1) / MOST_TICKS)
    return tuple(10.0**power for power in range(first, last + stride, stride))


def scale_of(
    values: Iterable[float],
    start: float,
    end: float,
    *,
    zero: bool = False,
    least_span: float = 0.0,
    log: bool | None = None,
) -> Scale:
    """A scale that holds all finite values; `zero` makes a linear one begin there. `log` None: as the range asks."""
    known = [value if abs(value) > SMALLEST else 0.0 for value in values if math.isfinite(value)]
    low, high = (min(known), max(known)) if known else (0.0, 1.0)
    if log is None:
        log = low > 0 and high / low > LOG_FROM
    if log and low > 0 and high > low:
        ticks = log_ticks(low, high)
        return Scale(ticks[0], ticks[-1], True, ticks, start, end)
    low = min(low, 0.0) if zero else low
    least_span = max(least_span, 1e-6 * abs(low), 1e-6 * abs(high))
    lacking = (least_span if least_span > SMALLEST else 1.0) - (high - low)
    if lacking > 0:
        low, high = (low, high + lacking) if zero else (low - lacking / 2, high + lacking / 2)
    ticks = linear_ticks(low, high)
    return Scale(ticks[0], ticks[-1], False, ticks, start, end)
