"""The comparison as JSON: created without runs; each run is added when it ends, and the summary is updated.

The summary of a variant is the mean score of its seeds, the largest of their peaks, and the seconds per epoch of its
fastest seed: other work on the machine makes a run slower, never faster. If one seed fails, its variant counts as
failed; the figures of its other seeds stay.
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Sequence
from datetime import datetime, timezone
from importlib.metadata import version
from typing import Any

from .. import native
from ..measurement.machine import cpu_name
from ..recipe import recipes
from ..report.command_line import command_line
from ..report.read import FORMAT
from .settings import Settings
from .variants import CSR, Variant

Document = dict[str, Any]


def new(
    settings: Settings,
    dataset: dict[str, Any],
    variants: Sequence[Variant],
    left_out: dict[str, str],
    inference: dict[str, Any] | None = None,
) -> Document:
    """A comparison in which nothing has run yet; `inference`: its inference table, if it is to have one."""
    baselines = [variant.name for variant in variants if variant.recipe is None]
    main = CSR if CSR in baselines else baselines[0] if baselines else None
    found = {"format": FORMAT, "dataset": dataset, **settings.describe(), "machine": machine(), "baseline": main}
    rows: list[dict[str, Any]] = [
        {"name": v.name, "label": v.label, "recipe": None if v.recipe is None else repr(v.recipe), "runs": []}
        for v in variants
    ]
    found |= {"command": command(settings, variants, inference is not None), "left_out": left_out}
    return sum_up(found | {"variants": rows, "inference": inference})


def command(settings: Settings, variants: Sequence[Variant], inference: bool) -> str | None:
    """The command line that repeats it; None if a recipe or the seeds have no name there."""
    named = [variant.name for variant in variants if variant.recipe is not None]
    if not set(named) <= set(recipes) or settings.seeds != tuple(range(len(settings.seeds))):
        return None
    model = {"name": settings.model, **settings.model_options}
    options = settings.describe()["settings"] | {"seeds": len(settings.seeds)}
    baselines = [variant.name for variant in variants if variant.recipe is None]
    return command_line(settings.dataset, model, options, named, baselines, inference)


def machine() -> dict[str, Any]:
    """What the figures were measured on."""
    found = {"cpu": cpu_name(), "cores": os.cpu_count(), "isa": native.isa()}
    packages = {"torch": "torch", "pyg": "torch_geometric", "gossamer": "gossamer-gnn"}
    date = datetime.now(timezone.utc).strftime("%Y-%m-%d")
    return found | {name: version(package) for name, package in packages.items()} | {"date": date}


def add(document: Document, name: str, run: dict[str, Any]) -> Document:
    """The comparison with one more run of the variant `name`, in place of an earlier one of that seed."""
    rows = []
    for row in document["variants"]:
        others = [other for other in row["runs"] if other["seed"] != run["seed"]]
        rows.append(row | {"runs": sorted([*others, run], key=lambda r: r["seed"])} if row["name"] == name else row)
    return sum_up(document | {"variants": rows})


def failed(seed: int, error: str) -> dict[str, Any]:
    """A run that gave no figures."""
    numbers = ("test", "val", "best_epoch", "seconds_per_epoch", "peak_bytes", "kept_bytes")
    curve: dict[str, list[float]] = {name: [] for name in ("loss", "val", "test", "seconds")}
    return {"seed": seed, **dict.fromkeys(numbers), "curve": curve, "error": error}


def done(document: Document, name: str, seed: int) -> bool:
    """Whether the variant has figures for this seed."""
    runs = [run for row in document["variants"] if row["name"] == name for run in row["runs"]]
    return any(run["seed"] == seed and run["error"] is None for run in runs)


def sum_up(document: Document) -> Document:
    """The comparison with the figures of every variant, and its ratios against every baseline, computed again."""
    rows = [_with_figures(row) for row in document["variants"]]
    bases = [row for row in rows if row["recipe"] is None and row["seconds_per_epoch"] is not None]
    for row in rows:
        row["times_faster"] = {b["name"]: _ratio(b, row, "seconds_per_epoch") for b in bases if _comparable(row)}
        row["times_smaller_peak"] = {b["name"]: _ratio(b, row, "peak_bytes") for b in bases if _comparable(row)}
    return document | {"variants": rows}


def _comparable(row: dict[str, Any]) -> bool:
    return row["seconds_per_epoch"] is not None


def _ratio(base: dict[str, Any], row: dict[str, Any], what: str) -> float | None:
    return base[what] / row[what] if row[what] else None


def _with_figures(row: dict[str, Any]) -> dict[str, Any]:
    runs = [run for run in row["runs"] if run["error"] is None]
    errors = [f"seed {run['seed']}: {run['error']}" for run in row["runs"] if run["error"] is not None]
    identity = {key: row[key] for key in ("name", "label", "recipe")} | {"error": "; ".join(errors) or None}
    test = [run["test"] for run in runs]
    figures = {
        "test_mean": statistics.fmean(test) if test else None,
        "test_std": statistics.stdev(test) if len(test) > 1 else 0.0 if test else None,
        "val_mean": statistics.fmean(run["val"] for run in runs) if runs else None,
        "seconds_per_epoch": min((run["seconds_per_epoch"] for run in runs), default=None),
        "peak_bytes": max((run["peak_bytes"] for run in runs), default=None),
        "kept_bytes": max((run["kept_bytes"] for run in runs), default=None),
    }
    return identity | figures | {"times_faster": {}, "times_smaller_peak": {}, "runs": row["runs"]}
