"""One HTML file that needs nothing else: no network, no scripts, no fonts; its own small style, light and dark."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..atomic import replacing
from .bars import cost_bars, form_bars
from .columns import cells, headings
from .curves import training_curves
from .headline import failure, findings
from .inference import form_cells, form_headings, title
from .markup import Markup, joined, tag
from .read import Comparison, Form, Variant, read
from .scatter import score_against_memory, score_against_time
from .small_print import command, facts, subject

# the browser itself keeps the page from loading anything
POLICY = "default-src 'none'; style-src 'unsafe-inline'"
INFERENCE_NOTE = (
    "One model, trained with the first seed. Time: the best of several calls after a warm-up. Peak memory: above what "
    "the process held with data, graph and model loaded. File: float32 weights, or the exported model."
)


def write_page(comparison: Mapping[str, Any], path: str | os.PathLike[str]) -> None:
    """Write the comparison as a page; what was at `path` before stays until the new page is whole."""
    text = page(comparison)
    with replacing(path) as temporary:
        Path(temporary).write_text(text, encoding="utf-8")


def page(comparison: Mapping[str, Any]) -> str:
    """The page's HTML."""
    told = read(comparison)
    said = findings(told)
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=POLICY),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("title", f"Gossamer comparison: {told.facts['dataset'].get('name', '')}"),
        tag("style", Markup(Path(__file__).with_name("style.css").read_text(encoding="utf-8"))),
    )
    body = tag(
        "main",
        tag("header", tag("p", subject(told), class_="subject"), tag("h1", unbroken(said[0])), _more(said[1:])),
        tag("section", *_table(headings(told), [(cells(v, told), v) for v in told.variants])),
        _plots("What it costs", "three", cost_bars(told)),
        _plots("What it is worth", "two", [score_against_memory(told), score_against_time(told)]),
        _plots("How training went", "two", training_curves(told)),
        _inference(told),
        _small_print(told),
    )
    return f"<!DOCTYPE html>\n{tag('html', head, tag('body', body), lang='en')}\n"


def _more(said: list[str]) -> Markup:
    return tag("ul", *(tag("li", unbroken(sentence)) for sentence in said), class_="more") if said else Markup("")


def _table(titles: Sequence[str], cells_of: Sequence[tuple[list[str], Variant | Form]]) -> tuple[Markup, Markup]:
    """The table, and what failed and why."""
    heads = tag("tr", *(tag("th", title, scope="col") for title in titles))
    rows = []
    for (first, *rest), what in cells_of:
        name = tag("th", tag("span", class_=f"chip {what.look}"), first, scope="row")
        kind = "failed" if not what.works else "own" if what.ours else None
        rows.append(tag("tr", name, *(tag("td", cell) for cell in rest), class_=kind))
    whole = tag("table", tag("thead", heads), tag("tbody", *rows))
    failures = joined(tag("p", failure(what), class_="failure") for _, what in cells_of if not what.works)
    return tag("div", whole, class_="wide"), failures


def _inference(told: Comparison) -> Markup:
    if told.inference is None:
        return Markup("")
    forms = told.inference.forms
    return tag(
        "section",
        tag("h2", title(told.inference)),
        *_table(form_headings(told), [(form_cells(form, told), form) for form in forms]),
        *(tag("p", f"{name} is left out: {reason}", class_="note") for name, reason in told.inference.left_out.items()),
        tag("p", INFERENCE_NOTE, class_="note"),
        tag("div", *form_bars(forms), class_="plots two"),
    )


def unbroken(sentence: str) -> str:
    """The sentence with spaces that no line ends at between a figure and its unit or spread."""
    return re.sub(r"(?<=\d) (?=±|[kMGT]?B\b|m?s\b|min\b|h\b|%)|(?<=±) (?=\d)", "\u00a0", sentence)


def _unbroken_words(line: str) -> Markup:
    """Browsers end lines after hyphens; the options of a command should stay whole."""
    return joined(tag("span", word) if word.strip() else word for word in re.split("( )", line))


def _plots(title: str, columns: str, plots: list[Markup]) -> Markup:
    if not any(plots):
        return Markup("")
    return tag("section", tag("h2", title), tag("div", *plots, class_=f"plots {columns}"))


def _small_print(told: Comparison) -> Markup:
    pairs = [joined((tag("dt", name), tag("dd", value))) for name, value in facts(told)]
    notes = (
        "± and bands: one standard deviation over the seeds. Test score: at the epoch of the best validation score. "
        "Peak memory: above what the process held with its data loaded, before the model was built. "
        "Saved for backward: what autograd holds after the forward pass. 1 GB is 10⁹ bytes."
    )
    line = command(told)
    again = joined((tag("p", "To repeat it:"), tag("pre", _unbroken_words(line)))) if line else Markup("")
    return tag("footer", tag("h2", "Small print"), tag("dl", *pairs), tag("p", notes), again)
