"""What was run, on what, and how to run it again."""

from __future__ import annotations

from typing import Any

from .command_line import command_line
from .read import Comparison

IMPLIED = ("higher_is_better",)  # the plots say it


def facts(told: Comparison) -> list[tuple[str, str]]:
    """Name and value of everything that a reader needs to judge the numbers."""
    found = []
    for part in ("dataset", "model", "settings", "machine"):
        said = [
            _fact(key, value) for key, value in told.facts[part].items() if key not in IMPLIED and value is not None
        ]
        found.append((part, ", ".join(said)))
    found += [(variant.label, variant.recipe) for variant in told.variants if variant.recipe is not None]
    found += [(f"{name}, not run", reason) for name, reason in told.left_out.items()]
    return [(name, value) for name, value in found if value]


def subject(told: Comparison) -> str:
    """The experiment in one line."""
    dataset, model, settings = (told.facts[part] for part in ("dataset", "model", "settings"))
    parts = [str(dataset.get("name", "")), str(model.get("name", "")).upper()]
    if model.get("layers") and model.get("width"):
        parts.append(f"{model['layers']} layers of {model['width']}")
    sizes = [f"{_said(dataset[key])} {key}" for key in ("nodes", "edges") if dataset.get(key)]
    counts = [
        _counted(settings.get("epochs"), "epoch"),
        _counted(told.seeds, "seed"),
        _counted(settings.get("threads"), "thread"),
    ]
    return " · ".join(part for part in (*parts, *sizes, *counts) if part)


def command(told: Comparison) -> str:
    """The command line that repeats it, empty if none can; the comparison's own words if it has them."""
    if told.command is not None:
        return told.command
    recipes, baselines = ([v.name for v in told.variants if v.ours is ours] for ours in (True, False))
    model, settings = told.facts["model"], told.facts["settings"] | {"seeds": told.seeds}
    return command_line(
        str(told.facts["dataset"].get("name") or "DATASET"),
        model,
        settings,
        recipes,
        baselines,
        told.inference is not None,
    )


def _fact(key: str, value: Any) -> str:
    return _said(value) if key == "name" else f"{key.replace('_', ' ')} {_said(value)}"


def _said(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)


def _counted(count: Any, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}" if isinstance(count, int) else ""
