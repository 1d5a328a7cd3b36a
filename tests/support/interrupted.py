"""Features whose reading stops half-way, as by Ctrl-C."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from gossamer.features.source import Source, source_of


class Stop(BaseException):
    """As KeyboardInterrupt, without pytest's own handling of it."""


def stopping(x: Any, after: int) -> Source:
    """Features whose reading is interrupted after so many rows."""
    source = source_of(x)
    pieces = source.pieces

    def stopped(start: int, block: int) -> Iterator[np.ndarray]:
        at = start
        for piece in pieces(start, block):
            if at >= after:
                raise Stop
            at += len(piece)
            yield piece

    source.pieces = stopped
    return source
