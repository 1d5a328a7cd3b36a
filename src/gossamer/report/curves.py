"""How training went: the mean over the seeds, in a band of one standard deviation.

Runs may have stopped early; a curve ends with its shortest run, so that all its points are means over the same seeds.
Against the clock, an epoch stands at the mean time at which the seeds had finished it.
"""

from __future__ import annotations

import itertools
import math
import statistics
from typing import NamedTuple, TypeVar

from .frame import ROOM, Axes, framed, window, x_scale, y_scale
from .labels import Label, around, drawn
from .markup import Markup, tag
from .read import Comparison, Curve, Variant
from .scale import LOG_FROM
from .units import Unit, digits, time_unit

MOST_POINTS = 240
Drawn = TypeVar("Drawn")


class Point(NamedTuple):
    epoch: float
    clock: float
    mean: float
    std: float


def training_curves(told: Comparison) -> list[Markup]:
    """Validation score and loss, each against epochs and against the clock; those without data are left out."""
    metric = told.metric
    scored = f"validation {metric.title}{' (%)' if metric.percent else ''}"
    kinds = (("val", scored, metric.shown(1.0)), ("loss", "training loss", 1.0))
    plots = []
    for (part, title, factor), by_clock in itertools.product(kinds, (False, True)):
        found = [(variant, points_of(variant.curves, part, factor)) for variant in told.variants]
        if by_clock:
            found = [(variant, [p for p in points if not math.isnan(p.clock)]) for variant, points in found]
        drawable = [(variant, points) for variant, points in found if points]
        if drawable:
            plots.append(_plot(title, drawable, by_clock))
    return plots


def points_of(curves: list[Curve], part: str, factor: float = 1.0) -> list[Point]:
    """The mean curve of several runs: an epoch that no run has a number for is left out."""
    values = list(zip(*(curve[part] for curve in curves if curve[part]), strict=False))
    clocks = list(zip(*(itertools.accumulate(curve["seconds"]) for curve in curves if curve["seconds"]), strict=False))
    points = []
    for index, column in enumerate(values):
        known = [factor * value for value in column if not math.isnan(value)]
        clock = statistics.fmean(clocks[index]) if index < len(clocks) else math.nan
        if known:
            std = statistics.stdev(known) if len(known) > 1 else 0.0
            points.append(Point(index + 1, clock, statistics.fmean(known), std))
    return points


def _plot(title: str, found: list[tuple[Variant, list[Point]]], by_clock: bool) -> Markup:
    everything = [point for _, points in found for point in points]
    late = _late(everything)
    ends = [points[-1].clock if by_clock else points[-1].epoch for _, points in found]
    # what matters against the clock is when each variant is done, not its first epoch
    log = by_clock and min(ends) > 0 and max(ends) / min(ends) > LOG_FROM
    unit = time_unit(min(ends) if log else max(ends)) if by_clock else Unit(1, "")
    firsts = [min(point.clock for point in late)] if log else []
    axes = Axes(
        x_scale([end / unit.size for end in (*firsts, *ends)], least_span=0.0 if by_clock else 5.0, log=log),
        y_scale(_reach(late), least_span=0.01 * max(abs(point.mean) for point in late)),
        f"training time ({unit.name})" if by_clock else "epoch",
        title if late is everything else f"{title}, after the first epochs",
    )
    lines, labels, taken = [], [], []
    for variant, points in found:
        pixels = [(axes.x((p.clock if by_clock else p.epoch) / unit.size), axes.y(p.mean)) for p in points]
        lines.append(_line(variant, _thinned(points, MOST_POINTS), axes, by_clock, unit.size))
        labels.append(Label(variant.label, *pixels[-1], variant.look))
        taken += [around(x, y, 4) for x, y in _along(_thinned(pixels, 80))]
    caption = f"{title[0].upper()}{title[1:]} against {'the clock' if by_clock else 'epochs'}".replace(" (%)", "")
    return framed(caption, axes, window(*lines), drawn(labels, taken, ROOM))


def _reach(points: list[Point]) -> list[float]:
    """Everything the axis must hold; a band does not pull a positive quantity below zero."""
    positive = all(p.mean > 0 for p in points)
    lows = [p.mean if positive and p.mean <= p.std else p.mean - p.std for p in points]
    return lows + [p.mean + p.std for p in points]


def _late(points: list[Point]) -> list[Point]:
    """The points without the first fifth of training, if showing that would halve the room for the rest."""
    last = max(p.epoch for p in points)
    late = [p for p in points if p.epoch > last / 5]
    whole, rest = (max(p.mean for p in part) - min(p.mean for p in part) for part in (points, late))
    return late if last >= 10 and whole > 2 * rest > 0 else points


def _thinned(points: list[Drawn], most: int) -> list[Drawn]:
    """Evenly fewer, with the last."""
    stride = max(1, math.ceil(len(points) / most))
    return points[:-1:stride] + points[-1:]


def _along(pixels: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """Points every few pixels along a line, however far apart its epochs are."""
    found = pixels[-1:]
    for (x, y), (next_x, next_y) in itertools.pairwise(pixels):
        steps = min(50, 1 + int(math.hypot(next_x - x, next_y - y) / 8))
        found += [(x + (next_x - x) * step / steps, y + (next_y - y) * step / steps) for step in range(steps)]
    return found


def _line(variant: Variant, points: list[Point], axes: Axes, by_clock: bool, size: float) -> Markup:
    xs = [axes.x((p.clock if by_clock else p.epoch) / size) for p in points]
    last = points[-1]
    said = f"{variant.label}: {digits(last.mean)} after {last.epoch:g} epochs"
    parts = [tag("title", said if math.isnan(last.clock) else f"{said} and {digits(last.clock)} s")]
    if len(points) == 1:
        return tag("g", *parts, tag("circle", cx=xs[0], cy=axes.y(last.mean), r=4.0), class_=f"point {variant.look}")
    if any(p.std > 0 for p in points):
        upper = [(x, axes.y(p.mean + p.std)) for x, p in zip(xs, points, strict=True)]
        lower = [(x, axes.y(p.mean - p.std)) for x, p in zip(xs, points, strict=True)]
        parts.append(tag("path", d=f"{_path(upper + lower[::-1])}Z", class_="band"))
    parts.append(tag("path", d=_path([(x, axes.y(p.mean)) for x, p in zip(xs, points, strict=True)]), class_="curve"))
    return tag("g", *parts, class_=variant.look)


def _path(points: list[tuple[float, float]]) -> str:
    return "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in points)
