"""The folder of a comparison: comparison.json, rewritten after every run, and comparison.html at the end.

A folder belongs to one comparison. Resuming reuses the runs that have figures, so everything that they depend on must
be the same: dataset, model, settings, machine and versions. Seeds, variants and the inference table may be added.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from .. import report
from ..atomic import check_folder, replacing
from ..report.read import FORMAT
from ..training.folder import RESUME
from . import inference
from .document import Document, add

JSON_NAME, PAGE_NAME = "comparison.json", "comparison.html"
MAY_DIFFER = {("machine", "date"), ("settings", "seeds")}


class OtherComparison(ValueError):
    """The folder holds a comparison that is not this one."""


def take_over(folder: Path, document: Document, resume: bool) -> Document:
    """The new comparison with the runs that `folder` has of it; raises, before anything is written, if it may not."""
    path = folder / JSON_NAME
    check_folder(folder, "out")
    if not path.exists():
        return document
    before = _read(path)
    try:
        differing = differences(before, document)
    except (KeyError, TypeError, AttributeError) as error:
        raise OtherComparison(f"{path} is damaged ({error!r}); remove it or choose another folder") from None
    if differing:
        raise OtherComparison(
            f"`out` must be a new folder, or hold this comparison ({folder} holds another: {'; '.join(differing)}); "
            "choose another folder, or give the settings of that comparison"
        )
    if not resume:
        raise FileExistsError(
            f"`out` must be a new folder ({folder} holds this very comparison); {RESUME} to go on with it, or choose "
            "another folder"
        )
    runs = [(row["name"], run) for row in before["variants"] for run in row["runs"] if run["error"] is None]
    for name, run in runs:
        document = add(document, name, run)
    if document["inference"] is not None:
        document["inference"] = inference.resumed(document["inference"], before.get("inference"))
    return document


def differences(before: Document, now: Document) -> list[str]:
    """The differences, in words, because of which `now` cannot reuse the runs of `before`."""
    found = []
    for part in ("dataset", "model", "settings", "machine"):
        for key in before[part] | now[part]:
            there, here = before[part].get(key), now[part].get(key)
            if there != here and (part, key) not in MAY_DIFFER:
                found.append(f"{part} {key} is {there!r} there and {here!r} here")
    missing = [seed for seed in before["settings"]["seeds"] if seed not in now["settings"]["seeds"]]
    found += [f"it has the seeds {missing}, which are not asked for"] if missing else []
    asked = {row["name"]: row["recipe"] for row in now["variants"]}
    for row in before["variants"]:
        if row["name"] not in asked:
            found.append(f"it has {row['name']!r}, which is not asked for")
        elif row["recipe"] != asked[row["name"]]:
            found.append(f"{row['name']!r} is {row['recipe']} there and {asked[row['name']]} here")
    if before.get("inference") is not None and now["inference"] is None:
        found.append("it has an inference table, which is not asked for (--inference)")
    return found


def write(folder: Path, document: Document) -> Path:
    """comparison.json, whole or not at all."""
    folder.mkdir(parents=True, exist_ok=True)
    with replacing(folder / JSON_NAME) as temporary:
        Path(temporary).write_text(json.dumps(document, indent=1) + "\n")
    return folder / JSON_NAME


def write_page(folder: Path, document: Document) -> Path:
    """comparison.html, whole or not at all."""
    report.write_page(document, folder / PAGE_NAME)
    return folder / PAGE_NAME


def _read(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text())
    except ValueError as error:
        raise OtherComparison(f"{path} cannot be read ({error}); remove it or choose another folder") from None
    if not isinstance(found, dict) or found.get("format") != FORMAT:
        got = found.get("format") if isinstance(found, dict) else type(found).__name__
        raise OtherComparison(f"{path} must have the format {FORMAT!r} (got {got!r}); choose another folder")
    return found
