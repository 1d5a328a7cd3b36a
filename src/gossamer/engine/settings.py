"""The settings of a recipe's places `compute` and `activations` that are no codecs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal, final

from ..codecs import Codec, Projected, Uniform


@dataclass(frozen=True)
class Float32:
    """Products in float32."""


@final
@dataclass(frozen=True)
class Int8:
    """Products and neighbour sums in int8, forward and backward; weights and optimizer stay float32.

    rounding    of activations: "nearest", the same in every step, or "stochastic"
    gradients   "stochastic", which is unbiased, or "nearest"
    auto        measure the error of each module's operands in its first steps; those above `tolerance` continue in
                float32 (engine/int8/precision.py; `gs.precision(model)` reports; bfloat16 is not offered, as it is
                slower than float32 on most CPUs)
    tolerance   noise energy over signal energy that a product may have; gradients, being unbiased, ten times that
    float32     names of modules that compute in float32 besides the one that feeds the loss
    """

    rounding: Literal["nearest", "stochastic"] = "nearest"
    gradients: Literal["nearest", "stochastic"] = "stochastic"
    auto: bool = False
    tolerance: float = 1e-3
    float32: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in ("rounding", "gradients"):
            if getattr(self, name) not in ("nearest", "stochastic"):
                raise ValueError(f"`{name}` must be 'nearest' or 'stochastic' (got {getattr(self, name)!r})")
        if not isinstance(self.auto, bool):
            raise ValueError(f"`auto` must be True or False (got {self.auto!r})")
        if not isinstance(self.tolerance, (int, float)) or not 0 < self.tolerance < 1:
            raise ValueError(f"`tolerance` must be between 0 and 1, as 1e-3 (got {self.tolerance!r})")
        listed = isinstance(self.float32, Iterable) and not isinstance(self.float32, str)
        names = tuple(self.float32) if listed else ()
        if not listed or not all(isinstance(name, str) and name for name in names):
            raise ValueError(f"`float32` must be names of modules, as ('convs.0',) (got {self.float32!r})")
        object.__setattr__(self, "float32", names)


@dataclass(frozen=True)
class Keep:
    """What backward needs is saved as it is."""


@final
@dataclass(frozen=True)
class Published:
    """Every op saves its own operand by `codec`, as EXACT and block-wise EXACT have it: nothing is shared.

    Norms save their input, not x-hat; SAGE saves its rows and their sums; input that needs no gradient is saved again
    by every layer that reads it; an activation and a dropout save one bit each.
    """

    codec: Codec = field(default_factory=lambda: Projected(ratio=8, then=Uniform(bits=2, meta="bfloat16")))

    def __post_init__(self) -> None:
        if not isinstance(self.codec, Codec):
            raise ValueError(f"`codec` must be a codec such as gs.Blockwise() (got {self.codec!r})")
