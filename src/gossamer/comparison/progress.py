"""The bars of a running comparison: one line per run, and one for the whole. On standard error, 80 columns wide."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from ..report import units
from ..training.progress import Shown


class Bars(Shown):
    """Lines appear in the order of the runs."""

    def __init__(self, epochs: int, shown: bool) -> None:
        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=8),
            MofNCompleteColumn(),
            TimeRemainingColumn(elapsed_when_finished=True),
            TextColumn("{task.fields[said]}", markup=False),
        )
        self.progress = Progress(*columns, console=Console(stderr=True), disable=not shown)
        self.all = self.progress.add_task("all epochs", total=epochs, said="")

    def begin(self, described: str, steps: int) -> None:
        self.steps = steps
        self.bar = self.progress.add_task(described, total=steps, said="starting")

    def heard(self, message: Any) -> None:
        """What the child says after every epoch."""
        epoch, val, seconds = message
        self.progress.update(self.bar, completed=epoch, said=f"val {val:.4f}  {units.seconds(seconds)}")
        self.progress.advance(self.all)

    def say(self, what: str) -> None:
        self.progress.update(self.bar, said=what)

    def end(self, said: str) -> None:
        self.progress.update(self.bar, completed=self.steps, said=said)

    def fail(self, epochs: int = 0) -> None:
        """The run failed; if it was one of so many epochs, those that are left are not waited for."""
        total = self.progress.tasks[0].total or 0
        self.progress.update(self.all, total=total - max(0, epochs - self.progress.tasks[-1].completed))
        self.say("failed")
