"""The command line: `gossamer <command>`. Each command is a page in this package."""

from __future__ import annotations

import typer

from .compare import compare
from .datasets import datasets
from .doctor import doctor
from .train import train

app = typer.Typer(
    help="Graph neural networks that weigh next to nothing.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command()(doctor)
app.command()(datasets)
app.command()(train)
app.command()(compare)
