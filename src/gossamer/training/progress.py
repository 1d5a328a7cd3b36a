"""The bar of a running training: loss, scores, seconds per epoch, and the memory the process holds."""

from __future__ import annotations

import os
from pathlib import Path
from types import TracebackType
from typing import TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, TextColumn, TimeRemainingColumn

from ..engine.int8.precision import Precision
from .history import History

Self = TypeVar("Self", bound="Shown")


def resident_bytes() -> int | None:
    """Memory of this process that lies in RAM now, or None where the system does not report it."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except (OSError, IndexError, ValueError):
        return None
    return pages * os.sysconf("SC_PAGE_SIZE")


class Shown:
    """Shows `progress`, which a subclass creates, while a `with` block runs."""

    progress: Progress

    def __enter__(self: Self) -> Self:
        self.progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.progress.stop()


class EpochBar(Shown):
    """A bar on standard error, so that standard output stays free for results."""

    def __init__(self, epochs: int, shown: bool) -> None:
        console = Console(stderr=True)
        columns: list[ProgressColumn] = [MofNCompleteColumn(), TextColumn("{task.description}")]
        if console.width >= 100:  # a narrow terminal gets the numbers alone, on one line
            columns = [columns[0], BarColumn(bar_width=20), columns[1], TimeRemainingColumn()]
        self.progress = Progress(*columns, console=console, disable=not shown)
        self.bar = self.progress.add_task("", total=epochs)
        self.told: set[str] = set()

    def show(self, history: History) -> None:
        if not self.progress.disable and len(history):
            self.progress.update(self.bar, completed=len(history), description=describe(history))

    def tell(self, precision: Precision) -> None:
        """One line for each new decision of automatic precision, once no module is half measured."""
        if self.progress.disable or not precision.settled:
            return
        for name, decision in precision.items():
            if decision.decided and name not in self.told:
                line = f"{name or '(model)'}: {decision}"
                self.progress.console.print(line, markup=False, highlight=False, soft_wrap=True)
                self.told.add(name)


def describe(history: History) -> str:
    """The line beside the bar."""
    now, best = history[len(history)], history[history.best_epoch]
    memory = resident_bytes()
    parts = [
        f"loss {now.loss:.4f}",
        f"val {now.val:.4f}",
        f"best {best.val:.4f}",
        f"{now.seconds:.3g} s/epoch",
        *([f"{memory / 1e6:,.0f} MB"] if memory is not None else []),
    ]
    return "  ".join(parts)
