"""What backward multiplies of an adjacency: the recipe's place `backward`.

A policy is asked for the matrix that takes the place of A^T, given the gradient that is to be multiplied: float rows,
or the scales of int8 rows. The diagonal is not its business: own rows are always exact.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, final

from torch import Tensor

if TYPE_CHECKING:
    from ..ops.csr import Sparse
    from .adjacency import Adjacency


class Policy(Protocol):
    def transposed(self, adjacency: Adjacency, gradient: Tensor) -> Sparse:
        """The matrix that backward multiplies by; `gradient` has one row, or one number, per destination."""


@final
@dataclass(frozen=True)
class Exact:
    """Every sparse product of backward is computed in full."""

    def transposed(self, adjacency: Adjacency, gradient: Tensor) -> Sparse:
        return adjacency.transpose()
