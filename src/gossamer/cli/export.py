"""`gossamer export`: the model of a finished run as one file of integers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from ..conversion import calibrate
from ..conversion import export as write_model
from ..datasets import GraphList
from ..training.data import graph_split
from ..training.rebuild import rebuild
from .errors import told_plainly

CALIBRATION_GRAPHS = 256
"""Graphs of a list that ranges are taken from."""


def export(
    run: Annotated[Path, typer.Argument(help="Folder of `gossamer train --out`.")],
    out: Annotated[Path, typer.Argument(help="File to write, such as model.safetensors.")],
    bits: Annotated[
        int, typer.Option(help="8 or 4, for a run that was not trained for integers: its ranges are calibrated.")
    ] = 8,
    skip: Annotated[str, typer.Option(help="Modules that stay in float32, as convs.0,convs.2.")] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")] = False,
) -> None:
    """Write a trained model in integers, for `gossamer predict`, `gossamer serve` and gs.load."""
    with told_plainly():
        found = rebuild(run)
        graphs = isinstance(found.data, GraphList)
        example = example_of(found.data, graph_split(found.settings.get("split")) if graphs else 0)
        report = None
        if found.recipe is None or found.recipe.training is None:
            names = tuple(name.strip() for name in skip.split(",") if name.strip())
            report = calibrate(found.model, example, bits, skip=names)
        elif skip:
            raise ValueError("`--skip` is for runs that are calibrated: this one was trained for integers")
        exported = write_model(found.model, out, example)
        if as_json:
            facts = {"path": str(exported.path), "nbytes": exported.nbytes, "ratio": exported.ratio}
            print(json.dumps(facts | {"calibration": None if report is None else json.loads(report.to_json())}))
            return
        if report is not None:
            print(report)
        print(exported)


def example_of(data: Any, split: int = 0) -> tuple[Any, ...]:
    """What a model of this dataset is called with: the graph, or some training graphs of a list as one batch."""
    if not isinstance(data, GraphList):
        return data.x, data.edge_index
    from torch_geometric.data import Batch

    train, _, _ = data.split(split)
    some = train[:: max(1, len(train) // CALIBRATION_GRAPHS)][:CALIBRATION_GRAPHS]
    joined = Batch.from_data_list([data[int(i)] for i in some])
    return joined.x, joined.edge_index, joined.batch
