"""The bars of a running comparison: one line per run, and one for the whole. On standard error, 80 columns wide."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from ..report import units
from ..training.progress import Shown
from .settings import Settings
from .variants import Variant


class Bars(Shown):
    """Lines appear in the order of the runs."""

    def __init__(self, settings: Settings, num_runs: int, shown: bool) -> None:
        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=8),
            MofNCompleteColumn(),
            TimeRemainingColumn(elapsed_when_finished=True),
            TextColumn("{task.fields[said]}", markup=False),
        )
        self.progress = Progress(*columns, console=Console(stderr=True), disable=not shown)
        self.epochs = settings.epochs
        self.all = self.progress.add_task("all epochs", total=num_runs * settings.epochs, said="")

    def begin(self, variant: Variant, seed: int) -> None:
        self.bar = self.progress.add_task(f"{variant.label}, seed {seed}", total=self.epochs, said="starting")

    def heard(self, message: Any) -> None:
        """What the child says after every epoch."""
        epoch, val, seconds = message
        self.progress.update(self.bar, completed=epoch, said=f"val {val:.4f}  {units.seconds(seconds)}")
        self.progress.advance(self.all)

    def end(self, run: dict[str, Any]) -> None:
        if run["error"] is None:
            costs = f"{units.seconds(run['seconds_per_epoch'])}  {units.size(run['peak_bytes'])}"
            said = f"test {run['test']:.4f}  {costs}"
        else:
            said = "failed"
            total = self.progress.tasks[0].total or 0
            self.progress.update(self.all, total=total - (self.epochs - self.progress.tasks[-1].completed))
        self.progress.update(self.bar, said=said)
