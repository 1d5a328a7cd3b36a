"""Labels beside their points that overlap neither each other nor, if it can be helped, what is drawn.

Each label tries places around its point, near ones first; the first place that covers nothing wins, else the one that
covers least. Widths are estimates: a page cannot ask a browser how wide a text is.
"""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from .markup import Markup, joined, tag

TEXT_HEIGHT = 14.0
LONGEST = 26
TOUCHING = 1e-6  # an area that is only rounding
_LEADER_FROM = 16.0  # a label further away than this gets a line to its point


class Box(NamedTuple):
    left: float
    top: float
    right: float
    bottom: float

    def overlap(self, other: Box) -> float:
        """The area that both cover."""
        wide = min(self.right, other.right) - max(self.left, other.left)
        high = min(self.bottom, other.bottom) - max(self.top, other.top)
        return wide * high if wide > 0 and high > 0 else 0.0

    def outside(self, other: Box) -> float:
        """How far this box reaches out of `other`."""
        reach = (other.left - self.left, other.top - self.top, self.right - other.right, self.bottom - other.bottom)
        return sum(max(0.0, part) for part in reach)


class Label(NamedTuple):
    text: str
    x: float
    y: float
    look: str


def around(x: float, y: float, radius: float) -> Box:
    return Box(x - radius, y - radius, x + radius, y + radius)


def short(text: str, longest: int = LONGEST) -> str:
    return text if len(text) <= longest else f"{text[: longest - 1].rstrip()}…"


def text_width(text: str) -> float:
    """Pixels at the plots' font size, on the generous side."""
    return sum(13.0 if unicodedata.east_asian_width(letter) in "WF" else 8.2 for letter in text)


def place(labels: Sequence[Label], obstacles: Sequence[Box], bounds: Box) -> list[Box]:
    """One box per label, in their order."""
    placed: list[Box] = []
    for label in labels:
        costs = [(_cost(box, label, labels, placed, bounds), box) for box in _places(label)]
        best, chosen = math.inf, costs[0][1]
        for cost, box in sorted(costs):
            if cost >= best:
                break
            # what is drawn counts last: there is much of it, and few places are still in question
            cost += 2 * sum(box.overlap(other) for other in obstacles)
            if cost < best:
                best, chosen = cost, box
        placed.append(chosen)
    return placed


def _places(label: Label) -> Iterator[Box]:
    """To the right, to the left and centred, on lines above and below."""
    width, half = text_width(short(label.text)), TEXT_HEIGHT / 2
    for line in range(9):
        for y in {label.y + line * TEXT_HEIGHT, label.y - line * TEXT_HEIGHT}:
            for away in (10, 30, 60):
                yield Box(label.x + away, y - half, label.x + away + width, y + half)
                yield Box(label.x - away - width, y - half, label.x - away, y + half)
            if line:
                yield Box(label.x - width / 2, y - half, label.x + width / 2, y + half)


def _cost(box: Box, label: Label, labels: Iterable[Label], placed: Iterable[Box], bounds: Box) -> float:
    """Outside is worse than on another label, that is worse than nearer to another point, that than far away."""
    own = _distance(box, label)
    mistaken = sum(_distance(box, other) + 4 < own for other in labels)
    areas = [area for other in placed if (area := box.overlap(other)) > TOUCHING]
    covered = sum(areas) + 100 * len(areas)  # however little is covered, another place is better
    return 1e6 * box.outside(bounds) + 1e3 * covered + 400 * mistaken + own


def _distance(box: Box, label: Label) -> float:
    x, y = _nearest(box, label)
    return abs(x - label.x) + abs(y - label.y)


def _nearest(box: Box, label: Label) -> tuple[float, float]:
    return min(max(label.x, box.left), box.right), min(max(label.y, box.top), box.bottom)


def drawn(labels: Sequence[Label], obstacles: Sequence[Box], bounds: Box) -> Markup:
    """The labels in the colours of their variants, with a thin line to points that are not near."""
    parts = []
    for label, box in zip(labels, place(labels, obstacles, bounds), strict=True):
        x, y = _nearest(box, label)
        if _distance(box, label) > _LEADER_FROM:
            parts.append(tag("line", x1=label.x, y1=label.y, x2=x, y2=y, class_=f"leader {label.look}"))
        # anchored on the side of its point, so that a text wider than estimated grows away from it
        x, anchor = (box.right, "end") if box.right < label.x else (box.left, "start")
        look = f"label {label.look}"
        parts.append(tag("text", short(label.text), x=x, y=box.bottom - 3, text_anchor=anchor, class_=look))
    return joined(parts)
