"""A bar on standard error for encodings that take more than a moment."""

from __future__ import annotations

import threading
import time
from types import TracebackType
from typing import TypeVar

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

Self = TypeVar("Self", bound="Bar")
MOMENT_SECONDS = 1.0


class Bar:
    """Rows that are encoded, of how many. Shown only once a moment has passed."""

    def __init__(self, num_rows: int, shown: bool) -> None:
        columns = (
            TextColumn("{task.description}"),
            BarColumn(bar_width=20),
            TaskProgressColumn(),
            TimeRemainingColumn(),
        )
        self.progress = Progress(*columns, console=Console(stderr=True), disable=not shown)
        self.task = self.progress.add_task("", total=num_rows)
        self.num_rows, self.begun, self.started = num_rows, time.monotonic(), False
        self.lock = threading.Lock()
        self.timer = threading.Timer(MOMENT_SECONDS, self._start)  # fitting may take long before the first block
        self.timer.daemon = True

    def say(self, what: str) -> None:
        self.progress.update(self.task, description=what)

    def show(self, rows: int) -> None:
        rows = min(rows, self.num_rows)
        self.progress.update(self.task, completed=rows, description=f"{rows:,} of {self.num_rows:,} rows")
        if time.monotonic() - self.begun > MOMENT_SECONDS:
            self._start()

    def _start(self) -> None:
        with self.lock:
            if not self.started and not self.progress.disable:
                self.progress.start()
                self.started = True

    def __enter__(self: Self) -> Self:
        if not self.progress.disable:
            self.timer.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.timer.cancel()
        with self.lock:
            if self.started:
                self.progress.stop()
            self.started = True  # a timer that has fired already starts nothing any more
