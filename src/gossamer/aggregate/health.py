"""What the selection of rows keeps, what that may have cost, and what it can gain: `gs.selection(model)`.

With f the share of a step that backward products take where none is left out but rows of zeros, c the share of their
work that is kept, and o what a selection costs beside one such product, spread over the passes that it serves, a step
is at most

    1 / (1 - f (1 - c - o))

times faster. f is measured in the warm-up. c is what the last selections kept, the budget before there are any; o is
left out, so the bound is one from above.
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass
from typing import final

from rich.console import Console
from rich.table import Table
from torch import nn

from ..state import model_state_of
from .budget import Budget


@final
@dataclass(frozen=True)
class Layer:
    """One module: the share of its exact work that is kept and that it may use, and the relative errors of its result.

    `estimated` follows from the scores that were left out, `measured` from the last exact product beside a selected
    one; NaN where there is none yet. `at_floor`: the least number of rows is more than its share.
    """

    columns: int
    edges: int
    kept: float
    share: float
    estimated: float
    measured: float
    draws: int
    at_floor: bool
    bytes: int


@final
@dataclass(frozen=True)
class SelectionReport:
    """What gs.TopRows(...) does in a model; printed, a table."""

    phase: str
    """Of the last pass: "warm-up", "selected" or "exact"."""
    passes: int
    budget: float
    layers: dict[str, Layer]
    product_share: float | None
    """The share of a step that exact backward products took in the warm-up; None before it was measured."""

    @property
    def kept(self) -> float:
        """The share of all multiplications that the last selections kept."""
        work = sum(layer.columns * layer.edges for layer in self.layers.values())
        kept = sum(layer.columns * layer.edges * layer.kept for layer in self.layers.values())
        return kept / work if work else 1.0

    @property
    def bound(self) -> float | None:
        """How many times faster a step can be at most; None before the warm-up was measured."""
        kept = self.budget if self.phase == "warm-up" else min(self.kept, self.budget)
        return None if self.product_share is None else 1 / (1 - self.product_share * (1 - kept))

    @property
    def bytes(self) -> int:
        """Memory of the selections beyond the graphs' own."""
        return sum(layer.bytes for layer in self.layers.values())

    def to_json(self) -> str:
        plain = asdict(self) | {"kept": self.kept, "bound": self.bound, "bytes": self.bytes}
        return json.dumps(_without_nan(plain))

    def __rich__(self) -> Table:
        table = Table(title=self._title(), title_justify="left", caption=self._caption(), caption_justify="left")
        for name in ("module", "columns", "work kept", "allowed", "error, estimated", "error, measured", "draws"):
            table.add_column(name, justify="left" if name == "module" else "right")
        for name, layer in self.layers.items():
            shares = (f"{layer.kept:.1%}", f"{layer.share:.1%}" + (" (floor)" if layer.at_floor else ""))
            errors = ("-" if math.isnan(e) else f"{e:.2f}" for e in (layer.estimated, layer.measured))
            table.add_row(name or "(model)", f"{layer.columns}", *shares, *errors, f"{layer.draws}")
        return table

    def _title(self) -> str:
        kept = f"{self.kept:.1%} of the work kept, budget {self.budget:.0%}"
        return f"backward products, {self.passes} passes: {self.phase}; {kept}"

    def _caption(self) -> str:
        held = f"selections take {self.bytes / 1e6:.1f} MB"
        if self.product_share is None or self.bound is None:
            return f"{held}; what can be gained is measured in the warm-up"
        were = f"exact backward products were {self.product_share:.0%} of a step"
        return f"{held}; {were}, so it can be {self.bound:.2f}x faster at most"

    def __str__(self) -> str:
        if not self.layers:
            return "no backward product has been selected yet; lighten the model by backward=gs.TopRows() and train it"
        console = Console(width=110, file=None, color_system=None)
        with console.capture() as captured:
            console.print(self)
        return captured.get().rstrip()


def _without_nan(plain: object) -> object:
    if isinstance(plain, dict):
        return {key: _without_nan(value) for key, value in plain.items()}
    return None if isinstance(plain, float) and math.isnan(plain) else plain


def selection(model: nn.Module) -> SelectionReport:
    """What gs.TopRows(...) keeps of each layer's backward product, its errors, and the gain that is possible."""
    if not isinstance(model, nn.Module):
        raise TypeError(f"`model` must be a torch.nn.Module (got {type(model).__name__})")
    state = model_state_of(model)
    budget = None if state is None else state.backward
    if not isinstance(budget, Budget):
        raise ValueError(
            "`model` must be lightened by a recipe with backward=gs.TopRows(...), such as 'rsc' "
            f"(got {'a model that is not lightened' if state is None else repr(state.recipe)})"
        )
    layers = {
        name: Layer(
            found.width,
            found.edges,
            found.kept_work,
            1.0 if found.share is None else found.share,
            found.estimated_error,
            found.measured_error,
            found.draws,
            found.at_floor,
            found.extra_bytes,
        )
        for name, found in budget.layers.items()
    }
    return SelectionReport(budget.last_phase, budget.passes, budget.setting.budget, layers, budget.product_share)
