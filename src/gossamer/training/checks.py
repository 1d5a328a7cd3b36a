"""Checks of settings that training, a comparison and the models have in common."""

from __future__ import annotations

import math


def check_counts(**counts: int) -> None:
    """Each argument must be a whole number of at least 1."""
    for name, count in counts.items():
        if not isinstance(count, int) or count < 1:
            raise ValueError(f"`{name}` must be a whole number of at least 1 (got {count!r})")


def check_adam(lr: float, weight_decay: float) -> None:
    """The settings of the optimizer must be numbers that it can work with."""
    if not (math.isfinite(lr) and lr > 0):
        raise ValueError(f"`lr` must be a finite number above 0 (got {lr!r}); 0.01 is usual")
    if not (math.isfinite(weight_decay) and weight_decay >= 0):
        raise ValueError(f"`weight_decay` must be a finite number of at least 0 (got {weight_decay!r})")
