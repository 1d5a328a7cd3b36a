"""The table's cells, for the terminal and for the page."""

from __future__ import annotations

from .read import Comparison, Variant
from .units import UNKNOWN, seconds, size, times


def headings(told: Comparison) -> list[str]:
    unit = " (%)" if told.metric.percent else ""
    faster = [f"faster than\n{name}" for name in told.baselines]
    smaller = [f"smaller than\n{name}" for name in told.baselines]
    return [
        "variant",
        f"test\n{told.metric.title}{unit}",
        "time per\nepoch",
        *faster,
        "peak\nmemory",
        *smaller,
        "saved for\nbackward",
    ]


def cells(variant: Variant, told: Comparison) -> list[str]:
    """One cell per heading. A failed variant says so in place of its score; its error stands below the table."""
    score = told.metric.format(variant.score, variant.score_std)
    return [
        variant.label,
        score if variant.error is None else "failed",
        seconds(variant.seconds),
        *(_times(variant.times_faster, name) for name in told.baselines),
        size(variant.peak_bytes),
        *(_times(variant.times_smaller, name) for name in told.baselines),
        size(variant.kept_bytes),
    ]


def _times(ratios: dict[str, float], name: str) -> str:
    return times(ratios[name]) if name in ratios else UNKNOWN
