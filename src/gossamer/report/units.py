"""Numbers as people read them: three digits and a unit, `–` where nothing was measured."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

UNKNOWN = "–"
NAN = math.nan
TITLES = {
    "acc": "accuracy",
    "auc": "ROC AUC",
    "roc_auc": "ROC AUC",
    "rocauc": "ROC AUC",
    "f1": "F1",
    "micro_f1": "micro-F1",
    "mae": "MAE",
}
"""Names of metrics as they are written; others are shown as they are, with spaces."""


class Unit(NamedTuple):
    size: float
    name: str


def number(value: Any) -> float:
    """A finite float, or NaN for everything else: None, text, infinity."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return NAN
    return float(value) if math.isfinite(value) else NAN


def digits(value: float, significant: int = 3) -> str:
    """`significant` digits without an exponent; a whole number keeps all of its own."""
    if math.isnan(value):
        return UNKNOWN
    rounded = float(f"{value:.{significant}g}")
    if rounded == 0:
        return "0"
    decimals = significant - 1 - math.floor(math.log10(abs(rounded)))
    return f"{rounded:.{decimals}f}" if decimals > 0 else f"{value:,.0f}"


def time_unit(most: float) -> Unit:
    """The unit for times up to `most` seconds."""
    if most < 0.1:
        return Unit(1e-3, "ms")
    if most < 600:
        return Unit(1, "s")
    return Unit(60, "min") if most < 7200 else Unit(3600, "h")


def byte_unit(most: float) -> Unit:
    """The decimal unit for sizes up to `most` bytes: 1 GB is 10^9 bytes."""
    names = ("B", "kB", "MB", "GB", "TB")
    power = 0 if not most >= 1 else min(len(names) - 1, math.floor(math.log10(most) / 3))
    return Unit(1000.0**power, names[power])


def _with(unit_of: Callable[[float], Unit], value: float) -> str:
    if math.isnan(value):
        return UNKNOWN
    unit = unit_of(value)
    return f"{digits(value / unit.size)} {unit.name}"


def seconds(value: float) -> str:
    return _with(time_unit, value)


def size(value: float) -> str:
    return _with(byte_unit, value)


def rate(value: float) -> str:
    """So many in a second: 1.23 M."""
    names = ("", "k", "M", "G")
    power = 0 if not value >= 1 else min(len(names) - 1, math.floor(math.log10(value) / 3))
    return f"{digits(value / 1000.0**power)} {names[power]}".rstrip()


def times(ratio: float) -> str:
    """3.4×, 13×, 0.29×."""
    return UNKNOWN if math.isnan(ratio) else f"{digits(ratio, 2)}×"


@dataclass(frozen=True)
class Metric:
    """What a score is called, which direction is better, and how it is written: a share in percent, else as it is."""

    name: str
    higher_is_better: bool = True

    @property
    def percent(self) -> bool:
        return any(part in self.name.lower() for part in ("acc", "auc", "f1"))

    @property
    def title(self) -> str:
        return TITLES.get(self.name.lower(), self.name.replace("_", " "))

    def shown(self, value: float) -> float:
        """The value in the unit in which it is written."""
        return 100 * value if self.percent else value

    def format(self, mean: float, std: float = NAN) -> str:
        """72.9 ± 0.2 for a share, 0.2312 ± 0.0041 for an error; the spread only where there is one."""
        if math.isnan(mean):
            return UNKNOWN
        magnitude = math.floor(math.log10(abs(mean))) if mean else 0
        decimals = 1 if self.percent else min(8, max(0, 3 - magnitude))
        spread = f" ± {self.shown(std):.{decimals}f}" if std > 0 else ""
        return f"{self.shown(mean):.{decimals}f}{spread}"
