"""The comparison in a terminal of 100 columns: one row per variant, what failed and why below."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich import box
from rich.table import Table
from rich.text import Text

from .columns import cells, headings
from .headline import failure
from .markup import printable
from .read import Form, Variant, read


def table(comparison: Mapping[str, Any]) -> Table:
    """One row per variant: score, time and memory, and how many times less than each baseline."""
    told = read(comparison)
    return shown(headings(told), [(cells(variant, told), variant) for variant in told.variants])


def shown(titles: Sequence[str], rows: Sequence[tuple[list[str], Variant | Form]]) -> Table:
    """Cells under their titles, the first column being names; failures in words below."""
    failures = [printable(failure(what)) for _, what in rows if not what.works]
    found = Table(box=box.SIMPLE_HEAD, padding=0, pad_edge=False)
    found.caption = Text("\n".join(failures), style="red") if failures else None
    found.caption_justify = "left"
    name_title, score_title, *others = titles
    found.add_column(name_title, overflow="fold", vertical="bottom")
    # one word per line: the figures decide how wide a column is; names of baselines are broken, "micro-F1" is not
    for title in (score_title, *(title.replace("-", "-\n") for title in others)):
        found.add_column(Text(title.replace(" ", "\n")), justify="right", no_wrap=True, vertical="bottom")
    for row, what in rows:
        style = "red" if not what.works else "bold" if what.ours else ""
        found.add_row(*(Text(printable(cell)) for cell in row), style=style)
    return found
