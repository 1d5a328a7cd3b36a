"""The command line: `gossamer <command>`. Each command is a page in this package."""

from __future__ import annotations

import typer

from . import compare, compress, datasets, doctor, export, partition, predict, serve, train

app = typer.Typer(
    help="Graph neural networks that weigh next to nothing.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command()(doctor.doctor)
app.command()(datasets.datasets)
app.command()(train.train)
app.command()(compare.compare)
app.command()(compress.compress)
app.command()(partition.partition)
app.command()(export.export)
app.command()(predict.predict)
app.command()(serve.serve)
