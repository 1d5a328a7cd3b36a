"""The comparison's JSON as objects: a missing, null or infinite number is NaN from here on.

A variant with a recipe is ours; one without is a baseline. `curve["seconds"]` holds the seconds of each epoch.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .units import Metric, number

FORMAT = "gossamer-comparison-1"
LOOKS = {"ours": 6, "base": 4}
"""How many colours `style.css` has for each kind; after that they repeat."""

Curve = dict[str, list[float]]


@dataclass(frozen=True)
class Variant:
    name: str
    label: str
    recipe: str | None
    error: str | None
    score: float
    score_std: float
    seconds: float
    peak_bytes: float
    kept_bytes: float
    times_faster: dict[str, float]
    times_smaller: dict[str, float]
    curves: list[Curve]
    look: str
    """The CSS class that gives it its colour."""

    @property
    def ours(self) -> bool:
        return self.recipe is not None

    @property
    def works(self) -> bool:
        return self.error is None and not math.isnan(self.score)


@dataclass(frozen=True)
class Comparison:
    metric: Metric
    baseline: str
    variants: list[Variant]
    facts: dict[str, dict[str, Any]]
    """The objects dataset, model, settings and machine as they came."""
    command: str | None
    """What repeats it; empty if no command line can, None if the comparison does not say."""
    left_out: dict[str, str]
    """Variants that were not run, and why."""

    @property
    def baselines(self) -> list[str]:
        """Names that ratios are against, the main one first."""
        named = [name for variant in self.variants for name in (*variant.times_faster, *variant.times_smaller)]
        return sorted(dict.fromkeys(named), key=lambda name: name != self.baseline)

    @property
    def seeds(self) -> int:
        given = self.facts["settings"].get("seeds")
        return len(given) if isinstance(given, Sequence) else 1


def read(comparison: Mapping[str, Any]) -> Comparison:
    """Check that this is a comparison and give it a shape."""
    found = comparison.get("format") if isinstance(comparison, Mapping) else type(comparison).__name__
    if found != FORMAT:
        remedy = "pass what gs.compare returned, or a comparison.json read with json.load"
        raise ValueError(f"`comparison` must have the format {FORMAT!r} (got {found!r}); {remedy}")
    facts = {part: dict(comparison.get(part) or {}) for part in ("dataset", "model", "settings", "machine")}
    dataset = facts["dataset"]
    metric = Metric(str(dataset.get("metric") or "score"), bool(dataset.get("higher_is_better", True)))
    seen = dict.fromkeys(LOOKS, 0)
    variants = [_variant(plain, seen) for plain in comparison.get("variants") or []]
    command = str(comparison["command"] or "") if "command" in comparison else None
    left_out = {str(name): str(reason) for name, reason in (comparison.get("left_out") or {}).items()}
    return Comparison(metric, str(comparison.get("baseline")), variants, facts, command, left_out)


def _variant(plain: Mapping[str, Any], seen: dict[str, int]) -> Variant:
    kind = "base" if plain.get("recipe") is None else "ours"
    look = f"{kind}-{seen[kind] % LOOKS[kind]}"
    seen[kind] += 1
    name = str(plain.get("name"))
    return Variant(
        name=name,
        label=str(plain.get("label") or name),
        recipe=None if plain.get("recipe") is None else str(plain["recipe"]),
        error=None if plain.get("error") is None else str(plain["error"]),
        score=number(plain.get("test_mean")),
        score_std=number(plain.get("test_std")),
        seconds=number(plain.get("seconds_per_epoch")),
        peak_bytes=number(plain.get("peak_bytes")),
        kept_bytes=number(plain.get("kept_bytes")),
        times_faster=_numbers(plain.get("times_faster")),
        times_smaller=_numbers(plain.get("times_smaller_peak")),
        curves=[_curve(run) for run in plain.get("runs") or [] if run.get("error") is None and run.get("curve")],
        look=look,
    )


def _numbers(plain: Mapping[str, Any] | None) -> dict[str, float]:
    return {str(name): number(value) for name, value in (plain or {}).items()}


def _curve(run: Mapping[str, Any]) -> Curve:
    return {part: [number(value) for value in run["curve"].get(part) or []] for part in ("loss", "val", "seconds")}
