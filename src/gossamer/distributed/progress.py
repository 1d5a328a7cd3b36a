"""The steps of a partition on standard error, so that standard output stays free for results."""

from __future__ import annotations

from types import TracebackType
from typing import TypeVar

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

Self = TypeVar("Self", bound="Steps")


class Steps:
    def __init__(self, shown: bool) -> None:
        columns = (TextColumn("{task.description}"), BarColumn(bar_width=20), TimeElapsedColumn())
        self.progress = Progress(*columns, console=Console(stderr=True), disable=not shown)

    def begin(self, what: str, total: float | None) -> None:
        """A new step; without `total` it does not say how far it is."""
        for task in self.progress.tasks:
            self.progress.update(task.id, total=task.total or 1, completed=task.total or 1)
        self.current = self.progress.add_task(what, total=total)

    def show(self, done: float) -> None:
        self.progress.update(self.current, completed=done)

    def __enter__(self: Self) -> Self:
        self.progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.progress.stop()
