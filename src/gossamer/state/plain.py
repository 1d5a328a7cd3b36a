"""Plain values of a checkpoint, which may be anyone's: of the right kind and within limits, or a ValueError."""

from __future__ import annotations

import math
from typing import Any

LARGEST = 2**63 - 1


def whole(found: Any, low: int = 0, high: int = LARGEST) -> int:
    if type(found) is not int or not low <= found <= high:
        raise ValueError(f"a whole number from {low} to {high} must stand where {str(found)[:40]!r} does")
    return found


def real(found: Any, low: float = -math.inf, high: float = math.inf) -> float:
    """A finite number."""
    if type(found) not in (int, float) or not math.isfinite(found) or not low <= found <= high:
        raise ValueError(f"a number from {low} to {high} must stand where {str(found)[:40]!r} does")
    return float(found)
