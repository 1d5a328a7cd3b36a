"""The comparison in a terminal of 100 columns: one row per variant, what failed and why below."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich import box
from rich.table import Table
from rich.text import Text

from .columns import cells, headings
from .headline import failure
from .markup import printable
from .read import read


def table(comparison: Mapping[str, Any]) -> Table:
    """One row per variant: score, time and memory, and how many times less than each baseline."""
    told = read(comparison)
    failures = [printable(failure(variant)) for variant in told.variants if not variant.works]
    shown = Table(box=box.SIMPLE_HEAD, padding=0, pad_edge=False)
    shown.caption = Text("\n".join(failures), style="red") if failures else None
    shown.caption_justify = "left"
    variant_title, score_title, *titles = headings(told)
    shown.add_column(variant_title, overflow="fold", vertical="bottom")
    # one word per line: the figures decide how wide a column is; names of baselines are broken, "micro-F1" is not
    for title in (score_title, *(title.replace("-", "-\n") for title in titles)):
        shown.add_column(Text(title.replace(" ", "\n")), justify="right", no_wrap=True, vertical="bottom")
    for variant in told.variants:
        style = "red" if not variant.works else "bold" if variant.ours else ""
        shown.add_row(*(Text(printable(cell)) for cell in cells(variant, told)), style=style)
    return shown
