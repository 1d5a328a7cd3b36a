"""The inference table of a comparison: one trained model in several forms, each in a process of its own.

The model is trained with seed 0 by the recipes that the forms name, with the settings of the comparison, and evaluated
with the weights of the best validation score. A form that fails is reported with its reason and the others continue.
The table is the part "inference" of the document:

    {"of": "nodes" or "graphs", "rows": [one for each form that ended], "left_out": {form: reason}}
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..measurement import fresh_process
from ..measurement.fresh_process import FreshProcessError
from ..report import units
from . import inference_worker as worker
from .forms import FORMS, Form, left_out
from .progress import Bars
from .settings import Settings

Table = dict[str, Any]
FIGURES = ("test", "count", "seconds", "per_second", "peak_bytes", "file_bytes")


def new(settings: Settings, task: str) -> Table:
    """A table in which no form has been evaluated yet."""
    return {"of": "graphs" if task.startswith("graph") else "nodes", "rows": [], "left_out": left_out(settings, task)}


def resumed(table: Table, before: Table | None) -> Table:
    """The table with the rows of an earlier one that have figures."""
    for row in (before or {"rows": []})["rows"]:
        if row["error"] is None and row["name"] not in table["left_out"]:
            table = _add(table, row)
    return table


def missing(table: Table) -> list[Form]:
    """The forms that have no figures yet."""
    done = {row["name"] for row in table["rows"] if row["error"] is None}
    return [form for form in FORMS if form.name not in done and form.name not in table["left_out"]]


def evaluate(settings: Settings, table: Table, progress: bool, keep: Callable[[Table], object]) -> Table:
    """The table with a row for each form; `keep` is called with the table so far after each."""
    forms = missing(table)
    trainings = len({form.trained for form in forms})
    with (
        tempfile.TemporaryDirectory() as folder,
        Bars(trainings * settings.epochs, progress and bool(forms)) as bars,
    ):
        trained: dict[str, str | None] = {}
        for form in forms:
            if form.trained not in trained:
                trained[form.trained] = _train(settings, form.trained, folder, bars)
            error = trained[form.trained]
            row = _figures(settings, form, folder, bars) if error is None else _failed(error)
            table = _add(table, {"name": form.name, "label": form.label, "ours": form.ours} | row)
            keep(table)
    return table


def _train(settings: Settings, recipe: str, folder: str, bars: Bars) -> str | None:
    """Leaves the weights in the folder; the reason if there are none."""
    bars.begin(f"training {recipe}", settings.epochs)
    try:
        test = fresh_process.listen(worker.train_weights, (settings, recipe, Path(folder)), {}, bars.heard).value
    except FreshProcessError as error:
        bars.fail(settings.epochs)
        return f"training by {recipe!r} failed: {error.reason}"
    bars.end(f"test {test:.4f}")
    return None


def _figures(settings: Settings, form: Form, folder: str, bars: Bars) -> dict[str, Any]:
    bars.begin(form.label, 1)
    arguments = (settings, form, Path(folder))
    try:
        if form.is_written:
            bars.say("writing the model")
            fresh_process.listen(worker.write_model, arguments, {}, bars.say)
        bars.say("measuring")
        found = fresh_process.listen(worker.measure_form, arguments, {}, bars.say).value
    except FreshProcessError as error:
        bars.fail()
        return _failed(error.reason)
    bars.end(f"test {found['test']:.4f}  {units.seconds(found['seconds'])}  {units.size(found['peak_bytes'])}")
    return {name: found[name] for name in FIGURES} | {"error": None}


def _failed(reason: str) -> dict[str, Any]:
    return {**dict.fromkeys(FIGURES), "error": reason}


def _add(table: Table, row: dict[str, Any]) -> Table:
    """The table with one more row, in place of an earlier one of that form; rows are in the order of FORMS."""
    order = [form.name for form in FORMS]
    rows = [other for other in table["rows"] if other["name"] != row["name"]]
    return table | {"rows": sorted([*rows, row], key=lambda r: order.index(r["name"]))}
