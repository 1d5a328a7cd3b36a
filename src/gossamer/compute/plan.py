"""The setting of the `compute` place, and what a lightened module was told of it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, final

import torch
from torch import Tensor, nn

from ..activations.plan import MARK
from ..ops.int8_linear import MAX_COLUMNS
from .watch import WATCH, Watch

LEAST = 1024
"""Elements from which rows are worth rounding."""


@dataclass(frozen=True)
class Float32:
    """Products in float32."""


@final
@dataclass(frozen=True)
class Int8:
    """Products and neighbour sums in int8, forward and backward; weights and optimizer stay float32.

    rounding    of activations: "nearest", the same in every step, or "stochastic"
    gradients   "stochastic", which is unbiased, or "nearest"
    auto        measure the error of each module's operands in its first steps; those above `tolerance` go on in float32
                (watch.py; `gs.precision(model)` tells; not in bfloat16, which is slower than float32 on most CPUs)
    tolerance   noise energy over signal energy that a product may have; gradients, being unbiased, ten times that
    float32     names of modules that compute in float32 besides the one that feeds the loss
    """

    rounding: Literal["nearest", "stochastic"] = "nearest"
    gradients: Literal["nearest", "stochastic"] = "stochastic"
    auto: bool = False
    tolerance: float = 1e-3
    float32: tuple[str, ...] = ()

    watch: ClassVar[Watch | None] = None
    """No part of the setting: a module that is watched gets a copy with its own (`of`)."""

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


STEADY = "_gossamer_steady"
"""Where `lighten_` writes that a module belongs to a model with int8 products."""


def is_steady(module: Any) -> bool:
    """Whether results are not to depend on the number of threads: in float32 too, ours are used for any size."""
    return isinstance(module, nn.Module) and STEADY in module.__dict__


def of(module: Any) -> Int8 | None:
    """How a lightened module multiplies, with its watch as long as that measures; None: in float32."""
    recipe = module.__dict__.get(MARK) if isinstance(module, nn.Module) else None
    if recipe is None or not isinstance(recipe.compute, Int8) or torch.compiler.is_compiling():
        return None
    watch = module.__dict__.get(WATCH)
    if watch is None:
        return recipe.compute
    if watch.in_float32:
        return None
    return recipe.compute if watch.decided or not torch.is_grad_enabled() else _watched(recipe.compute, watch)


def _watched(setting: Int8, watch: Watch) -> Int8:
    own = dataclasses.replace(setting)
    object.__setattr__(own, "watch", watch)
    return own


def worth(x: Tensor) -> bool:
    """Whether rows of x can be rounded, and are worth it."""
    return (
        x.dim() == 2
        and x.dtype in (torch.float32, torch.bfloat16)
        and x.layout == torch.strided
        and x.numel() >= LEAST
        and x.size(1) <= MAX_COLUMNS
        and not torch._C._are_functorch_transforms_active()
    )
