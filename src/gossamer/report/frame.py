"""What every plot with two axes has: a title, a grid at the ticks, and what the axes mean."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from .labels import Box
from .markup import Markup, tag
from .scale import Scale, scale_of

WIDTH, HEIGHT = 460.0, 300.0
LEFT, RIGHT, TOP, BOTTOM = 52.0, 442.0, 30.0, 256.0
ROOM = Box(LEFT, TOP, WIDTH, BOTTOM)
"""Where labels may stand."""


class Axes(NamedTuple):
    x: Scale
    y: Scale
    x_title: str
    y_title: str


def x_scale(values: Iterable[float], *, least_span: float = 0.0, log: bool | None = None) -> Scale:
    return scale_of(values, LEFT, RIGHT, zero=True, least_span=least_span, log=log)


def y_scale(values: Iterable[float], *, least_span: float = 0.0) -> Scale:
    return scale_of(values, BOTTOM, TOP, least_span=least_span)


def figure(caption: str, picture: Markup) -> Markup:
    return tag("figure", tag("figcaption", caption), picture)


def canvas(width: float, height: float, name: str, *parts: str) -> Markup:
    """An SVG that grows with the page; `name` is what a screen reader says."""
    return tag("svg", *parts, viewBox=f"0 0 {width:g} {height:g}", role="img", aria_label=name)


def window(*parts: str) -> Markup:
    """Parts of which only what lies between the axes is seen."""
    wide, high = RIGHT - LEFT, BOTTOM - TOP
    # a little more than the plot, so that a line along an axis keeps its width
    box = {"x": LEFT - 2, "y": TOP - 2, "width": wide + 4, "height": high + 4}
    return tag("svg", *parts, viewBox=f"{LEFT - 2:g} {TOP - 2:g} {wide + 4:g} {high + 4:g}", class_="window", **box)


def framed(caption: str, axes: Axes, *parts: str) -> Markup:
    """The plot's parts on a grid."""
    x_title = axes.x_title + (", logarithmic" if axes.x.log else "")
    y_title = axes.y_title + (", logarithmic" if axes.y.log else "")
    titles = [
        tag("text", y_title, x=4.0, y=15.0, class_="axis"),
        tag("text", x_title, x=RIGHT, y=HEIGHT - 6, class_="axis", text_anchor="end"),
    ]
    name = f"{caption}: {y_title} against {x_title}"
    return figure(caption, canvas(WIDTH, HEIGHT, name, *_grid(axes), *titles, *parts))


def _grid(axes: Axes) -> list[Markup]:
    found = []
    for tick, text in zip(axes.y.ticks, axes.y.tick_texts(), strict=True):
        y = axes.y(tick)
        found.append(tag("line", x1=LEFT, x2=RIGHT, y1=y, y2=y, class_="grid"))
        found.append(tag("text", text, x=LEFT - 7, y=y + 4, class_="tick", text_anchor="end"))
    for tick, text in zip(axes.x.ticks, axes.x.tick_texts(), strict=True):
        x = axes.x(tick)
        found.append(tag("line", x1=x, x2=x, y1=BOTTOM, y2=BOTTOM + 5, class_="stem"))
        found.append(tag("text", text, x=x, y=BOTTOM + 19, class_="tick", text_anchor="middle"))
    found.append(tag("line", x1=LEFT, x2=RIGHT, y1=BOTTOM, y2=BOTTOM, class_="stem"))
    return found
