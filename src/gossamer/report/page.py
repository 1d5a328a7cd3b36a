"""One HTML file that needs nothing else: no network, no scripts, no fonts; its own small style, light and dark."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..atomic import replacing
from .bars import cost_bars
from .columns import cells, headings
from .curves import training_curves
from .headline import failure, findings
from .markup import Markup, joined, tag
from .read import Comparison, read
from .scatter import score_against_memory, score_against_time
from .small_print import command, facts, subject

# the browser itself keeps the page from loading anything
POLICY = "default-src 'none'; style-src 'unsafe-inline'"


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
        _table(told),
        _plots("What it costs", "three", cost_bars(told)),
        _plots("What it is worth", "two", [score_against_memory(told), score_against_time(told)]),
        _plots("How training went", "two", training_curves(told)),
        _small_print(told),
    )
    return f"<!DOCTYPE html>\n{tag('html', head, tag('body', body), lang='en')}\n"


def _more(said: list[str]) -> Markup:
    return tag("ul", *(tag("li", unbroken(sentence)) for sentence in said), class_="more") if said else Markup("")


def _table(told: Comparison) -> Markup:
    heads = tag("tr", *(tag("th", title, scope="col") for title in headings(told)))
    rows = []
    for variant in told.variants:
        first, *rest = cells(variant, told)
        name = tag("th", tag("span", class_=f"chip {variant.look}"), first, scope="row")
        kind = "failed" if not variant.works else "own" if variant.ours else None
        rows.append(tag("tr", name, *(tag("td", cell) for cell in rest), class_=kind))
    whole = tag("table", tag("thead", heads), tag("tbody", *rows))
    failures = joined(tag("p", failure(v), class_="failure") for v in told.variants if not v.works)
    return tag("section", tag("div", whole, class_="wide"), failures)


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
