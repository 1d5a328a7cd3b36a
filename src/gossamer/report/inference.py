"""The inference table: one trained model in several forms; for a terminal of 100 columns, and as cells for the page."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from rich.table import Table

from .read import Comparison, Form, Inference, read
from .table import shown
from .units import UNKNOWN, rate, seconds, size, times

BASELINES = ("pyg-edge-index", "pyg-csr")


def inference_table(comparison: Mapping[str, Any]) -> Table | None:
    """One row per form: score, time of a call, rate, memory and file; None for a comparison that has none."""
    told = read(comparison)
    if told.inference is None:
        return None
    forms = told.inference.forms
    found = shown(form_headings(told), [(form_cells(form, told), form) for form in forms])
    found.title, found.title_justify = title(told.inference), "left"
    return found


def title(inference: Inference) -> str:
    count = "" if math.isnan(inference.count) else f" over {inference.count:,.0f} {inference.of}"
    return f"Inference: one call{count}"


def form_headings(told: Comparison) -> list[str]:
    assert told.inference is not None
    unit = " (%)" if told.metric.percent else ""
    faster = [f"faster than\n{form.name}" for form in _baselines(told.inference)]
    return [
        "form", f"test\n{told.metric.title}{unit}", "time of\na call", f"{told.inference.of} per\nsecond", *faster,
        "peak\nmemory", "file\nsize",
    ]  # fmt: skip


def form_cells(form: Form, told: Comparison) -> list[str]:
    """One cell per heading. A form that failed says so in place of its score; its error stands below the table."""
    assert told.inference is not None
    return [
        form.label,
        told.metric.format(form.score) if form.error is None else "failed",
        seconds(form.seconds),
        rate(form.per_second),
        *(_times(base, form) for base in _baselines(told.inference)),
        size(form.peak_bytes),
        size(form.file_bytes),
    ]


def _baselines(inference: Inference) -> list[Form]:
    return [form for form in inference.forms if form.name in BASELINES and form.works]


def _times(base: Form, form: Form) -> str:
    return times(base.seconds / form.seconds) if form.seconds > 0 else UNKNOWN
