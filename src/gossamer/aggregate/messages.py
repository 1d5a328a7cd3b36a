"""The recipe's place `messages`: how rows travel between machines.

    row in b bits     z = min x, r = max x - z, rounded outward to bfloat16     q = floor((x - z) (2^b - 1) / r + u)
                      x^ = z + r q / (2^b - 1)                                  u ~ U[0, 1)

Both sides use the same rounded z and r, so a row is right on average: E[x^] = x. The owner computes with its own exact
row. Gradients of rows travel the same way. In evaluation rows are float32.

Bytes of a row of d columns: 4 d, or d b / 8 + 4.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

BITS = (32, 8, 4, 2)


@final
@dataclass(frozen=True)
class Messages:
    """Rows between machines in so many bits, rounded stochastically; 32 is float32."""

    bits: int = 32

    def __post_init__(self) -> None:
        if self.bits not in BITS or isinstance(self.bits, bool):
            raise ValueError(f"`bits` must be 32 (float32), 8, 4 or 2 (got {self.bits!r})")

    def row_bytes(self, columns: int) -> int:
        """What a row of so many columns takes on its way."""
        return 4 * columns if self.bits == 32 else -(-columns * self.bits // 8) + 4


FLOATS = Messages()
