"""The settings of a recipe's place `training`: quantisation-aware training for integer inference.

    gs.QAT(bits=8)            activations and weights rounded to 8 or 4 bits in every forward, ranges learned on the way
    gs.DegreeQuant(bits=8)    the same, but nodes of high in-degree escape it at random in training (Degree-Quant)

Both have a `published` preset with the rule, the observer and the sites of the released code.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, final, get_args

from ...ops.fake_quantize import Rule

Gradient = Literal["straight-through", "clipped", "inclusive"]
Observer = Literal["histogram", "percentile", "momentum", "extremes"]
Plan = Literal["fused", "published"]
RULES: dict[str, Rule] = {
    "straight-through": Rule.STRAIGHT_THROUGH, "clipped": Rule.CLIPPED, "inclusive": Rule.INCLUSIVE,
}  # fmt: skip
TAILS = {8: 0.001, 4: 0.01}
"""The share of the values that a range leaves out at each end, by bits."""


@dataclass(frozen=True)
class Quantised:
    """What both settings have.

    bits        of activations and weights: 8 or 4
    gradient    of a rounded value: "straight-through", "clipped" (zero where it was out of range) or "inclusive" (zero
                on the end codes, too)
    observer    how ranges are learned: "histogram" (percentiles of a histogram, every ten steps), "percentile" (exact
                ones, merged by running extremes), "momentum" (running means of extremes), "extremes"
    tail        the share of the values that a range leaves out at each end, zeros not counted ("percentile" does count
                them, as released); None: 0.001 at 8 bits, 0.01 at 4
    plan        which sites there are: "fused", those that the integer engine needs, or "published", those of the paper,
                a rounding of every message among them
    skip        names of modules that stay in float32
    """

    bits: int = 8
    gradient: Gradient = "clipped"
    observer: Observer = "histogram"
    tail: float | None = None
    plan: Plan = "fused"
    skip: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.bits not in TAILS:
            raise ValueError(f"`bits` must be 8 or 4, which the integer engine has kernels for (got {self.bits!r})")
        for name, allowed in (("gradient", Gradient), ("observer", Observer), ("plan", Plan)):
            _one_of(name, getattr(self, name), get_args(allowed))
        if self.tail is not None and not (isinstance(self.tail, (int, float)) and 0 <= self.tail < 0.5):
            raise ValueError(f"`tail` must be a share below 0.5, as 0.001, or None (got {self.tail!r})")
        listed = isinstance(self.skip, Iterable) and not isinstance(self.skip, str)
        names = tuple(self.skip) if listed else ()
        if not listed or not all(isinstance(name, str) and name for name in names):
            raise ValueError(f"`skip` must be names of modules, as ('convs.0',) (got {self.skip!r})")
        object.__setattr__(self, "skip", names)

    @property
    def rule(self) -> Rule:
        return RULES[self.gradient]

    @property
    def share_left_out(self) -> float:
        return TAILS[self.bits] if self.tail is None else self.tail


@final
@dataclass(frozen=True)
class QAT(Quantised):
    """Quantisation-aware training without protection: the baseline of Degree-Quant."""

    @classmethod
    def published(cls, bits: int = 8) -> QAT:
        """As the released code of Degree-Quant has its baseline."""
        return cls(bits, "straight-through", "momentum", plan="published")


@final
@dataclass(frozen=True)
class DegreeQuant(Quantised):
    """Tailor, Fernandez-Marques, Lane, Degree-Quant: Quantization-Aware Training for Graph Neural Networks, ICLR 2021.

        p(v) = low + (high - low) F(d(v))        F: the share of nodes whose in-degree is at most that of v
        m(v) ~ Bernoulli(p(v))                   drawn in each training forward

    Rows of protected nodes pass the quantisers of activations unchanged, and ranges are learned from the others. A sum
    over many neighbours is large and far from typical: hubs would stretch the ranges of all, and their rounded sums
    give the worst gradients. Evaluation rounds everything.

    low, high   the probability of the lowest and the highest degree
    mask        "forward": one mask for all layers of a forward; "layer": one for each
    """

    low: float = 0.0
    high: float = 0.1
    mask: Literal["forward", "layer"] = "forward"

    def __post_init__(self) -> None:
        Quantised.__post_init__(self)
        numbers = all(isinstance(p, (int, float)) for p in (self.low, self.high))
        if not numbers or not 0 <= self.low <= self.high <= 1:
            raise ValueError(
                f"`low` and `high` must be probabilities, 0 <= low <= high <= 1 (got {self.low!r} and {self.high!r})"
            )
        _one_of("mask", self.mask, ("forward", "layer"))

    @classmethod
    def published(cls, bits: int = 8) -> DegreeQuant:
        """As the released code has it, with its probabilities for REDDIT-BINARY."""
        low, high = (0.0, 0.1) if bits == 8 else (0.1, 0.2)
        return cls(bits, "inclusive", "percentile", plan="published", low=low, high=high)


def _one_of(name: str, value: object, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        choices = ", ".join(map(repr, allowed[:-1])) + f" or {allowed[-1]!r}"
        raise ValueError(f"`{name}` must be {choices} (got {value!r})")
