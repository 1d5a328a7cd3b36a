"""Automatic precision: the first training steps measure what rounding does, and decide.

    nsr(x) = ||x^ - x||^2 / ||x||^2        on at most 65,536 entries of x, those of evenly spaced rows

is noise energy over signal energy of a column, and of all columns the median: few columns of large numbers may have
most of the energy while the others round to zero. Of activations ||x - mean||^2 takes the place of ||x||^2 for the same
reason: what all nodes share tells none from another. By the formula of rounding it is (phi / 12) (crest / 127)^2 to
nearest, twice that stochastically, crest = max|x| / rms(x) of a row and phi its share of non-zeros: 3e-5 or so of
ordinary rows, and far more of rows with few large numbers among small ones. The formula fails there, so the numbers are
measured. A product's noise is about the sum of its operands', hence with the `tolerance` of gs.Int8

    nsr(rows) + nsr(weight) <= tolerance          rows: x, those that come in; z = A x, summed before the product
    nsr(h) <= tolerance                           h = x W^T, summed after it
    nsr(dout), nsr(dh or dz) <= 10 tolerance      gradients, which stochastic rounding leaves right on average

A role's number is the largest of its steps. After `STEPS` calls with their backward the module is decided: int8, or
float32 from then on, with all that it holds, and nothing is measured any more. Measuring changes no result: it is done
beside the products, and costs some time and one float tensor for a moment.

bfloat16 is not offered in between: without an instruction for it, which few processors have, torch's bfloat16 products
are slower than its float32 ones.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, final

import numpy as np
from torch import Tensor, nn

from ...ops.quantize_rows import QRows
from ...state import LayerState, state_of
from ...state.plain import real, whole

STEPS = 3
SAMPLE = 2**16
"""Entries that are measured of a tensor, at most."""
SMALLEST = 1e-12
"""Of a column's energy: variation below that is rounding."""
LIMITS = ((("x", "weight"), 1), (("z", "weight"), 1), (("h",), 1), (("dout",), 10), (("dh",), 10), (("dz",), 10))
"""Roles whose sum has a limit, in multiples of the tolerance."""
CENTRED = ("x", "z", "h")
"""Roles of which a part that is the same in all nodes tells nothing: a large one would hide the noise."""


def sampled(rows: int, columns: int) -> tuple[slice, slice]:
    """Evenly spaced rows with at most `SAMPLE` entries; of a row that is longer than that, its beginning."""
    count = max(1, SAMPLE // max(1, columns))
    return slice(None, None, max(1, -(-rows // count))), slice(SAMPLE)


def nsr(x: Tensor, rows: QRows, factor: Tensor | None = None, centred: bool = False) -> float:
    """||x^ - x||^2 / ||x||^2 by column of a sample of x * factor and its int8 rows, the median of columns that are not
    zero; 0 of zeros, NaN if it holds NaN. Centred: ||x - mean||^2, of columns that are not constant.
    """
    picked = sampled(*x.shape)
    value = x.detach()[picked] if factor is None else (x.detach() * factor)[picked]
    # numpy's sums, as torch's depend on the number of threads
    true = value.double().cpu().numpy()
    error = (rows.codes[picked].double() * rows.scale[picked[0]].double().unsqueeze(1)).cpu().numpy() - true
    if not np.isfinite(error).all():
        return math.nan
    noise, energy = (np.square(each).sum(0) for each in (error, true - true.mean(0) if centred else true))
    told = energy > SMALLEST * np.square(true).sum(0)
    return float(np.median(noise[told] / energy[told])) if told.any() else 0.0


@final
@dataclass
class Watch:
    """What is known of one module: steps that were measured, and the noise of each role."""

    tolerance: float
    steps: int = 0
    nsr: dict[str, float] = field(default_factory=dict)
    _layers: list[tuple[LayerState, Any]] = field(default_factory=list, repr=False)

    def decides_for(self, layer: LayerState) -> None:
        """Let `layer` compute as is decided here; until then by the engine that it has now."""
        self._layers.append((layer, layer.engine))
        self._settle()

    def _settle(self) -> None:
        for layer, engine in self._layers:
            layer.engine = engine.settled(self.in_float32) if self.decided else engine

    @property
    def decided(self) -> bool:
        return self.steps >= STEPS

    def see(self, role: str, x: Tensor, rows: QRows, factor: Tensor | None = None) -> None:
        """Measure x * factor that became `rows`. What is not finite says nothing about precision."""
        found = nsr(x, rows, factor, role in CENTRED)
        if not self.decided and math.isfinite(found):
            self.nsr[role] = max(self.nsr.get(role, 0.0), found)

    def end_step(self) -> None:
        """To be called after the backward of what was seen."""
        self.steps = min(self.steps + 1, STEPS)
        self._settle()

    def state(self) -> dict[str, Any]:
        """All that was measured so far, as plain values."""
        return {"steps": self.steps, "nsr": dict(self.nsr)}

    def restore(self, found: Mapping[str, Any]) -> None:
        self.steps = whole(found.get("steps", 0), high=STEPS)
        self.nsr = {str(role): real(noise, 0) for role, noise in found.get("nsr", {}).items()}
        self._settle()

    @property
    def excess(self) -> str:
        """The first limit that is exceeded, in words; empty if none is."""
        for roles, times in LIMITS:
            noise, limit = sum(self.nsr.get(role, 0.0) for role in roles), times * self.tolerance
            if roles[0] in self.nsr and noise > limit:
                return f"noise of {' and '.join(roles)} {noise:.1e}, above {limit:.1e}"
        return ""

    @property
    def in_float32(self) -> bool:
        return self.decided and self.excess != ""


@final
@dataclass(frozen=True)
class Decision:
    """How a module computes, since when (`decided`: for good), why not in int8, and the noise of each role."""

    compute: str
    decided: bool
    reason: str
    nsr: Mapping[str, float]

    def __str__(self) -> str:
        why = f": {self.reason}" if self.reason else "" if self.decided else ", not decided yet"
        return f"{self.compute}{why}" + "".join(f", {role} {noise:.1e}" for role, noise in self.nsr.items())


@final
class Precision(Mapping[str, Decision]):
    """Names of modules to decisions; printed, one line each."""

    def __init__(self, decisions: Mapping[str, Decision]) -> None:
        self._decisions = dict(decisions)

    @property
    def settled(self) -> bool:
        """Whether no module is half measured."""
        return all(decision.decided or not decision.nsr for decision in self.values())

    def __getitem__(self, name: str) -> Decision:
        return self._decisions[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._decisions)

    def __len__(self) -> int:
        return len(self._decisions)

    def __repr__(self) -> str:
        lines = [f"{name or '(model)'}: {decision}" for name, decision in self.items()]
        return "\n".join(lines) or "no module is watched; lighten the model by compute=gs.Int8(auto=True)"


def precision(model: nn.Module) -> Precision:
    """What gs.Int8(auto=True) decided for each module of `model`, a convolution with all it holds being one.

    Modules that the recipe itself leaves in float32 (the one that feeds the loss, those it names) are not watched, and
    bfloat16 is not offered: torch's products in it are slower than in float32 where the processor has no instruction
    for them.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"`model` must be a torch.nn.Module (got {type(model).__name__})")
    return Precision(
        {
            name: Decision("float32" if w.in_float32 else "int8", w.decided, w.excess if w.decided else "", dict(w.nsr))
            for name, w in _watches(model).items()
        }
    )


def _watches(model: nn.Module) -> dict[str, Watch]:
    found: dict[str, Watch] = {}
    for name, module in model.named_modules():
        state = state_of(module)
        watch = None if state is None else state.precision
        if watch is not None and not any(watch is known for known in found.values()):
            found[name] = watch
    return found
