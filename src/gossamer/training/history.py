"""The history of a run, epoch by epoch, and its result. Epochs count from 1."""

from __future__ import annotations

import json
import statistics
from dataclasses import asdict, dataclass, field
from typing import NamedTuple

from ..report.units import Metric
from ..state.plain import real


class Epoch(NamedTuple):
    """One epoch. `seconds` is the training pass alone, without evaluation."""

    number: int
    loss: float
    val: float
    test: float
    seconds: float


@dataclass
class History:
    """One list per quantity. The best epoch is the first that has the best validation score."""

    higher_is_better: bool
    loss: list[float] = field(default_factory=list)
    val: list[float] = field(default_factory=list)
    test: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    best_epoch: int = 0

    @classmethod
    def replay(cls, higher_is_better: bool, columns: dict[str, list[float]]) -> History:
        """The history that `columns` wrote; raises for anything else."""
        history = cls(higher_is_better)
        for loss, val, test, seconds in zip(*(columns[n] for n in ("loss", "val", "test", "seconds")), strict=True):
            history.append(real(loss), real(val), real(test), real(seconds, 0))
        return history

    def __len__(self) -> int:
        return len(self.loss)

    def __getitem__(self, number: int) -> Epoch:
        i = number - 1
        return Epoch(number, self.loss[i], self.val[i], self.test[i], self.seconds[i])

    def append(self, loss: float, val: float, test: float, seconds: float) -> bool:
        """Add an epoch; says whether it is the best so far."""
        best = self.val[self.best_epoch - 1] if self.best_epoch else None
        improves = best is None or (val > best if self.higher_is_better else val < best)
        for column, value in ((self.loss, loss), (self.val, val), (self.test, test), (self.seconds, seconds)):
            column.append(value)
        if improves:
            self.best_epoch = len(self)
        return improves

    def out_of_patience(self, patience: int | None) -> bool:
        """Whether the last `patience` epochs brought no better validation score."""
        return patience is not None and len(self) - self.best_epoch >= patience

    def columns(self) -> dict[str, list[float]]:
        return {"loss": self.loss, "val": self.val, "test": self.test, "seconds": self.seconds}


@dataclass(frozen=True)
class TrainResult:
    """`test` is the test score at the epoch of best validation, `seconds_per_epoch` the median over all epochs."""

    metric: str
    test: float
    val: float
    best_epoch: int
    epochs_run: int
    seconds_per_epoch: float
    fastest_seconds: float
    history: dict[str, list[float]]

    @classmethod
    def of(cls, history: History, metric: str) -> TrainResult:
        best = history[history.best_epoch]
        seconds = history.seconds
        return cls(
            metric,
            best.test,
            best.val,
            best.number,
            len(history),
            statistics.median(seconds),
            min(seconds),
            {name: list(values) for name, values in history.columns().items()},
        )

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    def __str__(self) -> str:
        return (
            f"test {Metric(self.metric).title} {self.test:.4f} at best validation ({self.val:.4f}, "
            f"epoch {self.best_epoch} of {self.epochs_run}), {self.seconds_per_epoch:.3g} s per epoch"
        )
