"""Score against cost: a point per variant, with whiskers of one standard deviation over the seeds.

Ours are round, baselines square: colour is not the only difference.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from .frame import ROOM, Axes, framed, x_scale, y_scale
from .labels import Box, Label, around, drawn
from .markup import Markup, tag
from .read import Comparison, Variant
from .units import Unit, byte_unit, seconds, size, time_unit

RADIUS = 6.0


def score_against_memory(told: Comparison) -> Markup:
    return _scatter(told, "memory", "peak memory", lambda v: v.peak_bytes, byte_unit)


def score_against_time(told: Comparison) -> Markup:
    return _scatter(told, "time", "time per epoch", lambda v: v.seconds, time_unit)


def _scatter(
    told: Comparison, against: str, title: str, cost: Callable[[Variant], float], unit_of: Callable[[float], Unit]
) -> Markup:
    shown = [v for v in told.variants if v.works and not math.isnan(cost(v))]
    if not shown:
        return Markup("")
    metric = told.metric
    unit = unit_of(max(map(cost, shown)))
    better = "higher" if metric.higher_is_better else "lower"
    reach = [metric.shown(v.score + sign * _spread(v)) for v in shown for sign in (-1, 1)]
    axes = Axes(
        x_scale(cost(v) / unit.size for v in shown),
        y_scale(reach, least_span=0.01 * max(map(abs, reach))),
        f"{title} ({unit.name}), less is better",
        f"test {metric.title}{' (%)' if metric.percent else ''}, {better} is better",
    )
    points, labels, taken = [], [], []
    for variant in shown:
        x, y = axes.x(cost(variant) / unit.size), axes.y(metric.shown(variant.score))
        low, high = (axes.y(metric.shown(variant.score + sign * _spread(variant))) for sign in (-1, 1))
        points.append(_point(variant, told, x, y, low, high))
        labels.append(Label(variant.label, x, y, variant.look))
        taken += [around(x, y, RADIUS + 2), Box(x - 5, high, x + 5, low)]
    return framed(
        f"{metric.title[0].upper()}{metric.title[1:]} against {against}", axes, *points, drawn(labels, taken, ROOM)
    )


def _spread(variant: Variant) -> float:
    return 0.0 if math.isnan(variant.score_std) else variant.score_std


def _point(variant: Variant, told: Comparison, x: float, y: float, low: float, high: float) -> Markup:
    said = f"{variant.label}: {told.metric.title} {told.metric.format(variant.score, variant.score_std)}, "
    said += f"{seconds(variant.seconds)} per epoch, peak {size(variant.peak_bytes)}"
    whisker = f"M{x:.1f} {low:.1f}V{high:.1f}M{x - 5:.1f} {low:.1f}h10M{x - 5:.1f} {high:.1f}h10"
    if variant.ours:
        mark = tag("circle", cx=x, cy=y, r=RADIUS)
    else:
        mark = tag("rect", x=x - RADIUS + 1, y=y - RADIUS + 1, width=2 * RADIUS - 2, height=2 * RADIUS - 2)
    parts = [tag("title", said), mark]
    if low - high > 1:
        parts.insert(1, tag("path", d=whisker, class_="whisker"))
    return tag("g", *parts, class_=f"point {variant.look}")
