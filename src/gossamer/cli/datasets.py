"""`gossamer datasets`: what can be loaded here, and from where."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from ..datasets import DatasetInfo, available


def show(infos: list[DatasetInfo], console: Console) -> None:
    roomy = console.width >= 110  # a narrow terminal gets names and sizes, on one line each
    table = Table("name", "from", "nodes", "edges", "features", "classes", *(["task", "note"] if roomy else []))
    for column in table.columns[:6]:
        column.no_wrap = True
    for column in table.columns[2:6]:
        column.justify = "right"
    for info in infos:
        sizes = (info.nodes, info.edges, info.features, info.classes)
        cells = [info.name, info.source, *("" if size is None else f"{size:,}" for size in sizes)]
        table.add_row(*cells, *([info.task, info.note] if roomy else []), style=None if info.ready else "dim")
    console.print(table)
    waiting = sum(not info.ready and info.source != "local" for info in infos)
    if waiting:
        console.print(f"{waiting} dim rows are downloaded when first loaded, which needs a network.", style="dim")
    for info in infos:
        if not info.ready and info.source == "local":
            console.print(f"{info.name} is {info.note}", style="red", markup=False, highlight=False, soft_wrap=True)


def datasets(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
    ready: Annotated[bool, typer.Option("--ready", help="Only what can be loaded here without a network.")] = False,
) -> None:
    """List what `gossamer.datasets.load(name)` can load."""
    infos = [info for info in available() if info.ready or not ready]
    if as_json:
        print(json.dumps([asdict(info) for info in infos], indent=1))
    else:
        show(infos, Console())
