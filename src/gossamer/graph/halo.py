"""What stands at the other end of the edges of a part: rows of other ranks, and which rows of mine they need.

    rows 0 .. n-1     own nodes: what a layer computes
    rows n .. n+h-1   the halo: rows of other ranks, those of one rank together, in the order of ranks

A Graph with a halo is the CSR of the edges into own nodes, [n, n + h]. What a layer hands to its adjacency has n rows;
the others are fetched by `Adjacency` (aggregate/halo.py). Its transpose is not made from it, as the other halves of the
rows are elsewhere: `reverse` holds the edges out of own nodes, with a halo of its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, final

import torch
from torch import Tensor

from ..ops.gather_rows import gather_rows

if TYPE_CHECKING:
    from ..ranks import Ranks
    from .graph import Graph


class Plan(NamedTuple):
    """Which rows travel."""

    rows: Tensor
    """int64: own rows that some other rank needs, ascending; each is encoded once."""
    send: tuple[Tensor | None, ...]
    """For each rank: which of `rows` it gets, in the order of its halo."""
    first: tuple[int, ...]
    """halo rows first[q] .. first[q + 1] - 1 come from rank q."""

    @classmethod
    def of(cls, send_ptr: Tensor, send_row: Tensor, halo_part: Tensor) -> Plan:
        """From lists of own rows for each rank, and the owner of each halo row, ascending."""
        rows, place = send_row.unique(return_inverse=True)
        pieces = place.split(send_ptr.diff().tolist())
        counts = torch.bincount(halo_part.long(), minlength=len(pieces))
        first = [0, *counts.cumsum(0).tolist()]
        return cls(rows, tuple(piece if len(piece) else None for piece in pieces), tuple(first))

    @property
    def num_halo(self) -> int:
        return self.first[-1]

    def pieces_of(self, halo: Tensor) -> list[Tensor | None]:
        """The halo's rows by owner, without a copy."""
        ends = zip(self.first, self.first[1:], strict=False)
        return [halo[a:b] if b > a else None for a, b in ends]


@final
class Halo:
    """`reverse`: the edges out of own nodes, a Graph with a halo of its own; None where it is this very graph."""

    __slots__ = ("plan", "ranks", "reverse")

    def __init__(self, ranks: Ranks, plan: Plan, reverse: Graph | None = None) -> None:
        self.ranks, self.plan, self.reverse = ranks, plan, reverse

    def with_reverse(self, reverse: Graph | None) -> Halo:
        return Halo(self.ranks, self.plan, reverse)

    def spread(self, own: Tensor) -> Tensor:
        """A number (or a row) of each own node -> the same of each row of [own | halo]. Called by all ranks at once."""
        n = len(own)
        both = own.new_empty(n + self.plan.num_halo, *own.shape[1:])
        both[:n] = own
        chosen = gather_rows(own.contiguous(), self.plan.rows)
        outgoing = [None if piece is None else gather_rows(chosen, piece) for piece in self.plan.send]
        self.ranks.post(outgoing, self.plan.pieces_of(both[n:])).wait()
        return both

    def __deepcopy__(self, memo: Any) -> Halo:
        return self
