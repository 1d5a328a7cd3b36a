"""The result, in one sentence per recipe, good or bad.

Scores are "the same within noise" when they differ by at most two standard errors of the difference,
2 sqrt((s1^2 + s2^2) / seeds); with one seed nothing is known of the noise, and only equal figures are the same. Times
and sizes within 5 % of each other are called equal.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from .read import Comparison, Form, Variant, read
from .units import Metric, seconds, size, times

CLOSE = 1.05
APART = 4


def headline(comparison: Mapping[str, Any]) -> str:
    """What was found, in one sentence."""
    return findings(read(comparison))[0]


def findings(told: Comparison) -> list[str]:
    """One sentence per recipe that worked, the most convincing first; if none did, what else there is to say."""
    working = sorted((v for v in told.variants if v.ours and v.works), key=lambda v: _rank(v, told))
    if not working:
        working = [v for v in told.variants if v.works]
    found = [_sentence(variant, told) for variant in working]
    return found or [failure(variant) for variant in told.variants] or ["Nothing was compared."]


def failure(variant: Variant | Form) -> str:
    """One line, however long the error was."""
    reason = " ".join((variant.error or "it has no result").split())
    reason = reason if len(reason) <= 300 else f"{reason[:299]}…"
    return f"{variant.label} failed: {reason}"


def verdict(variant: Variant, base: Variant, metric: Metric, seeds: int) -> int:
    """1 when the score of `variant` is better than that of `base`, -1 when it is worse, 0 when nobody can tell."""
    better = (variant.score - base.score) * (1 if metric.higher_is_better else -1)
    if metric.format(variant.score) == metric.format(base.score) or abs(better) <= _noise(variant, base, seeds):
        return 0
    return 1 if better > 0 else -1


def _noise(variant: Variant, base: Variant, seeds: int) -> float:
    if seeds < 2:
        return 0.0
    spreads = (s for s in (variant.score_std, base.score_std) if not math.isnan(s))
    return 2 * math.sqrt(sum(s * s for s in spreads) / seeds)


def _base_of(told: Comparison) -> Variant | None:
    """The baseline of the ratios: the main one, or another one if that failed."""
    working = {v.name: v for v in told.variants if v.works and not v.ours}
    return working.get(told.baseline) or next(iter(working.values()), None)


def _rank(variant: Variant, told: Comparison) -> tuple[bool, float]:
    """Those that lose no accuracy come first, the fastest of them in front."""
    base = _base_of(told)
    worse = base is not None and verdict(variant, base, told.metric, told.seeds) < 0
    return worse, variant.seconds if not math.isnan(variant.seconds) else math.inf


def _sentence(variant: Variant, told: Comparison) -> str:
    base = _base_of(told)
    if base is None or base is variant or not variant.ours:
        return _alone(variant, told.metric)
    faster = variant.times_faster.get(base.name, math.nan)
    smaller = variant.times_smaller.get(base.name, math.nan)
    speed = _speed(faster, base.label)
    claims = [speed, _memory(smaller, "" if speed else base.label)]
    opposed = (faster > CLOSE and smaller < 1 / CLOSE) or (faster < 1 / CLOSE and smaller > CLOSE)
    said = (" but " if opposed else " and ").join(claim for claim in claims if claim)
    if not said:
        return _alone(variant, told.metric)
    return f"{variant.label} {said}{_kept(variant, base)}, {_score(variant, base, told)}"


def _speed(faster: float, base: str) -> str:
    if math.isnan(faster) or faster <= 0:
        return ""
    if faster > CLOSE:
        return f"is {times(faster)} faster than {base}"
    return f"is {times(1 / faster)} slower than {base}" if faster < 1 / CLOSE else f"is as fast as {base}"


def _memory(smaller: float, base: str) -> str:
    """Without the baseline's name where `_speed` has just said it."""
    if math.isnan(smaller) or smaller <= 0:
        return ""
    if smaller > CLOSE:
        return f"needs {times(smaller)} less memory{base and f' than {base}'}"
    if smaller < 1 / CLOSE:
        return f"needs {times(1 / smaller)} more memory{base and f' than {base}'}"
    return f"needs as much memory{base and f' as {base}'}"


def _kept(variant: Variant, base: Variant) -> str:
    """The bytes saved for backward, if they differ from the baseline's by more than the factor APART."""
    if not (variant.kept_bytes > 0 and base.kept_bytes > 0):
        return ""
    less = base.kept_bytes / variant.kept_bytes
    if 1 / APART <= less <= APART:
        return ""
    ratio = f"{times(less)} fewer" if less > 1 else f"{times(1 / less)} more"
    return f", with {ratio} bytes saved for backward"


def _score(variant: Variant, base: Variant, told: Comparison) -> str:
    metric = told.metric
    figures = [metric.format(v.score, v.score_std) for v in (variant, base)]
    exactly = metric.format(variant.score) == metric.format(base.score)
    same = f"at the same {metric.title}" + ("" if exactly else " within noise")
    said = {0: same, 1: f"with better {metric.title}", -1: f"but with worse {metric.title}"}
    seeds = "" if told.seeds > 1 else ", one seed"
    return f"{said[verdict(variant, base, metric, told.seeds)]} ({figures[0]} against {figures[1]}{seeds})"


def _alone(variant: Variant, metric: Metric) -> str:
    unit = " %" if metric.percent else ""
    score = f"{metric.title} {metric.format(variant.score, variant.score_std)}{unit}"
    costs = [
        (variant.seconds, f"{seconds(variant.seconds)} per epoch"),
        (variant.peak_bytes, f"{size(variant.peak_bytes)} of memory"),
    ]
    return f"{variant.label}: {', '.join([score, *(said for cost, said in costs if not math.isnan(cost))])}"
