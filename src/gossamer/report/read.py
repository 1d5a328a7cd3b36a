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
class Form:
    """A trained model in one form, and what a call of it costs."""

    name: str
    label: str
    error: str | None
    ours: bool
    score: float
    seconds: float
    per_second: float
    peak_bytes: float
    file_bytes: float
    look: str

    @property
    def works(self) -> bool:
        return self.error is None and not math.isnan(self.seconds)


@dataclass(frozen=True)
class Inference:
    of: str
    """What a call is over: nodes or graphs."""
    count: float
    """How many of them."""
    forms: list[Form]
    left_out: dict[str, str]


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
    inference: Inference | None = None

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
    inference = None if comparison.get("inference") is None else _inference(comparison["inference"])
    baseline, left_out = str(comparison.get("baseline")), _texts(comparison.get("left_out"))
    return Comparison(metric, baseline, variants, facts, command, left_out, inference)


def _variant(plain: Mapping[str, Any], seen: dict[str, int]) -> Variant:
    name = str(plain.get("name"))
    return Variant(
        name=name,
        label=str(plain.get("label") or name),
        recipe=_text(plain.get("recipe")),
        error=_text(plain.get("error")),
        score=number(plain.get("test_mean")),
        score_std=number(plain.get("test_std")),
        seconds=number(plain.get("seconds_per_epoch")),
        peak_bytes=number(plain.get("peak_bytes")),
        kept_bytes=number(plain.get("kept_bytes")),
        times_faster=_numbers(plain.get("times_faster")),
        times_smaller=_numbers(plain.get("times_smaller_peak")),
        curves=[_curve(run) for run in plain.get("runs") or [] if run.get("error") is None and run.get("curve")],
        look=_look(plain.get("recipe") is not None, seen),
    )


def _inference(plain: Mapping[str, Any]) -> Inference:
    rows, seen = plain.get("rows") or [], dict.fromkeys(LOOKS, 0)
    count = next((counted for row in rows if not math.isnan(counted := number(row.get("count")))), math.nan)
    return Inference(
        str(plain.get("of") or "nodes"), count, [_form(row, seen) for row in rows], _texts(plain.get("left_out"))
    )


def _form(plain: Mapping[str, Any], seen: dict[str, int]) -> Form:
    name, ours = str(plain.get("name")), bool(plain.get("ours"))
    return Form(
        name=name,
        label=str(plain.get("label") or name),
        error=_text(plain.get("error")),
        ours=ours,
        score=number(plain.get("test")),
        seconds=number(plain.get("seconds")),
        per_second=number(plain.get("per_second")),
        peak_bytes=number(plain.get("peak_bytes")),
        file_bytes=number(plain.get("file_bytes")),
        look=_look(ours, seen),
    )


def _look(ours: bool, seen: dict[str, int]) -> str:
    """The next colour of this kind."""
    kind = "ours" if ours else "base"
    seen[kind] += 1
    return f"{kind}-{(seen[kind] - 1) % LOOKS[kind]}"


def _text(plain: Any) -> str | None:
    return None if plain is None else str(plain)


def _texts(plain: Mapping[str, Any] | None) -> dict[str, str]:
    return {str(name): str(text) for name, text in (plain or {}).items()}


def _numbers(plain: Mapping[str, Any] | None) -> dict[str, float]:
    return {str(name): number(value) for name, value in (plain or {}).items()}


def _curve(run: Mapping[str, Any]) -> Curve:
    return {part: [number(value) for value in run["curve"].get(part) or []] for part in ("loss", "val", "seconds")}
