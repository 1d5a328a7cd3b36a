"""Seconds of one step, repeated."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Seconds:
    """Times of one step; `all` is in the order they were taken, without the warm-up."""

    best: float
    median: float
    all: tuple[float, ...]


def epoch_seconds(step: Callable[[], Any], warmup: int = 2, repeats: int = 5) -> Seconds:
    """Call `step` `warmup` times, then time it `repeats` times."""
    if warmup < 0:
        raise ValueError(f"`warmup` must not be negative; 0 times the first call too (got {warmup})")
    if repeats < 1:
        raise ValueError(f"`repeats` must be at least 1 (got {repeats})")
    for _ in range(warmup):
        step()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        step()
        times.append(time.perf_counter() - start)
    return Seconds(min(times), statistics.median(times), tuple(times))
