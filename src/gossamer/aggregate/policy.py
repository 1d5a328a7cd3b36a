"""What backward multiplies of an adjacency: the recipe's place `backward`.

    Exact()         all of A^T
    NonzeroRows()   what belongs to rows of the gradient that are not zero: the same result
    TopRows()       what belongs to some rows, those that matter more likely: RSC (selection.py, budget.py)

A policy is given the gradient, float rows or int8 rows, and a function that multiplies by what takes the place of A^T.
The diagonal is not its business: own rows are always exact. So are maxima, attention, gradients of gradients, and what
`torch.compile` traces.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol, TypeVar, final

from torch import Tensor

from ..ops.csr import Sparse
from ..ops.quantize_rows import QRows
from ..ops.row_selection import rows_that_count

if TYPE_CHECKING:
    from ..state import ModelState
    from .adjacency import Adjacency


class Transposed(NamedTuple):
    """A^T, of which only the columns in `keep` count; None: all of them."""

    matrix: Sparse
    keep: Tensor | None = None


Result = TypeVar("Result")
Product = Callable[[Transposed], Result]


class Policy(Protocol):
    """What one module's adjacencies ask in backward."""

    def multiply(
        self, adjacency: Adjacency, gradient: Tensor | QRows, product: Product[Result], factor: Tensor | None = None
    ) -> Result:
        """`product` of what takes the place of A^T; of `gradient` it has one row per destination.

        A result that is int8 rows has been multiplied by `factor`, column by column.
        """

    def edge_rows(self) -> Tensor | None:
        """Of the product just made: a factor for each destination, by which the gradients of its edges' weights are
        multiplied, zero for those that have none; None: 1 for all.
        """


class _Stateless:
    """A setting that is its own policy."""

    def edge_rows(self) -> Tensor | None:
        return None

    def bound_to(self, name: str, model: ModelState) -> Policy:
        return self  # type: ignore[return-value]


@final
@dataclass(frozen=True)
class Exact(_Stateless):
    """Every sparse product of backward is computed in full."""

    def multiply(
        self, adjacency: Adjacency, gradient: Tensor | QRows, product: Product[Result], factor: Tensor | None = None
    ) -> Result:
        return product(Transposed(adjacency.transpose()))


@final
@dataclass(frozen=True)
class NonzeroRows(_Stateless):
    """Rows of the gradient that are zero are skipped, with the same result.

    In the layer that feeds the loss those are the nodes without a label. Below a batch norm no row is zero.
    """

    def multiply(
        self, adjacency: Adjacency, gradient: Tensor | QRows, product: Product[Result], factor: Tensor | None = None
    ) -> Result:
        columns = (gradient.codes if isinstance(gradient, QRows) else gradient).size(1)
        keep = rows_that_count(gradient, adjacency.graph.num_edges * columns)
        return product(Transposed(adjacency.transpose(), keep))


@final
@dataclass(frozen=True)
class TopRows:
    """Backward multiplies only some rows of the gradient, those that matter more likely: RSC (Liu et al., ICML 2023).

    budget       share of the multiplications of all backward products together, in (0, 1]
    refresh      backward passes that a selection of rows serves
    exact_after  from when on backward is exact: a share of the epochs (in `gs.train`), as 0.8, a number of backward
                 passes, as 500, or None for never
    warmup       backward passes at the beginning that are exact, and measured
    reallocate   epochs after which the budget is shared out anew among the layers; in a loop of your own, backward
                 passes
    rank         of the best rows: largest "score" ||A_i|| ||dZ_i||, as published, or largest "density", score /
                 sqrt(degree), which keeps more of the gradient for the same work
    allocation   how the layers share the budget: "greedy" as published, or by one "threshold" for all
    sample       draw rows at random, with probabilities in proportion to their density, and weigh them so that the
                 gradient is right on average; `budget` then holds on average. False takes the best rows, as published,
                 which has no noise but a bias, and costs accuracy on many graphs (docs/rsc.md)
    edge_grad    the gradient of edge weights: "exact", or "sliced" to the selected rows, zero elsewhere
    """

    budget: float = 0.3
    refresh: int = 5
    exact_after: float | int | None = 0.8
    warmup: int = 5
    reallocate: int = 10
    rank: Literal["score", "density"] = "density"
    allocation: Literal["greedy", "threshold"] = "threshold"
    sample: bool = True
    edge_grad: Literal["exact", "sliced"] = "exact"

    def __post_init__(self) -> None:
        if not _is_number(self.budget) or not 0 < self.budget <= 1:
            raise ValueError(f"`budget` must be a share of the work, above 0 and at most 1 (got {self.budget!r})")
        for name, least in (("refresh", 1), ("warmup", 1), ("reallocate", 1)):
            count = getattr(self, name)
            if not isinstance(count, int) or isinstance(count, bool) or count < least:
                raise ValueError(f"`{name}` must be a whole number, at least {least} (got {count!r})")
        after = self.exact_after
        is_count = isinstance(after, int) and not isinstance(after, bool) and after >= 0
        if after is not None and not is_count and not (isinstance(after, float) and 0 < after < 1):
            raise ValueError(
                "`exact_after` must be a share of the epochs below 1, as 0.8, a number of backward passes, as 500, or "
                f"None for never (got {after!r})"
            )
        for name, offered in (
            ("rank", ("score", "density")),
            ("allocation", ("greedy", "threshold")),
            ("edge_grad", ("exact", "sliced")),
        ):
            if getattr(self, name) not in offered:
                raise ValueError(f"`{name}` must be {offered[0]!r} or {offered[1]!r} (got {getattr(self, name)!r})")
        if not isinstance(self.sample, bool):
            raise ValueError(f"`sample` must be True or False (got {self.sample!r})")

    def bound_to(self, name: str, model: ModelState) -> Policy:
        from .budget import Budget
        from .selection import ModuleRows

        if model.backward is None:
            model.backward = Budget(self, model)
        return ModuleRows(name, model.backward)


def _is_number(x: object) -> bool:
    return isinstance(x, (int, float)) and not isinstance(x, bool) and math.isfinite(x)
