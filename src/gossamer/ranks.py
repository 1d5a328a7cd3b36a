"""The processes that compute together, one rank each: rows that travel between them, and sums over all of them.

    posted = ranks.post(outgoing, incoming)      irecv of everything first, then isend in the order of ranks
    posted.wait()                                until the rows are there; an error names the rank that failed

On torch.distributed alone. Rows travel in a process group of their own, so that the order of other collectives (those
of DistributedDataParallel, say) cannot cross theirs. Sums are added in float64 and in the order of ranks: they have the
same bits on every rank and in every run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NoReturn, TypeVar, final

import torch
import torch.distributed as dist
from torch import Tensor

from .ops.random import splitmix64

Result = TypeVar("Result")


class RankFailed(RuntimeError):
    """Another process died, hangs, or is in another place of the program."""


@final
class Ranks:
    """`blame(peer, error)` finds out which rank failed, given the one that was waited for (None: all)."""

    def __init__(
        self, rank: int, size: int, group: Any = None, blame: Callable[[int | None, Exception], str] | None = None
    ) -> None:
        self.rank, self.size, self.group = rank, size, group
        self.blame = blame
        self.exchanges = 0
        """How many times rows have travelled; a rank that hangs is behind the others."""
        self.bytes_sent = 0

    def __deepcopy__(self, memo: Any) -> Ranks:
        return self

    def __reduce__(self) -> NoReturn:
        raise TypeError("a part of a graph belongs to running processes and cannot be pickled; load it in each of them")

    # Rows -------------------------------------------------------------------------------------------------------

    def post(self, outgoing: Sequence[Tensor | None], incoming: Sequence[Tensor | None]) -> Posted:
        """Start sending a tensor to each rank and receiving one from each; None where there is nothing.

        Both sides know the sizes. All are contiguous, and alive until `wait` has returned.
        """
        self.exchanges += 1
        tag, waiting = self.exchanges % 2**15, []
        try:
            for peer, tensor in enumerate(incoming):
                if tensor is not None and tensor.numel():
                    waiting.append((peer, self._device_op(dist.irecv, tensor, peer, tag)))
            for peer, tensor in enumerate(outgoing):
                if tensor is not None and tensor.numel():
                    waiting.append((peer, self._device_op(dist.isend, tensor, peer, tag)))
                    self.bytes_sent += tensor.nbytes
        except RuntimeError as error:
            self.fail(None, error)
        return Posted(self, waiting, (outgoing, incoming))

    def _device_op(self, op: Any, tensor: Tensor, peer: int, tag: int) -> Any:
        return op(tensor.view(-1).view(torch.uint8), peer, group=self.group, tag=tag)

    # Sums -------------------------------------------------------------------------------------------------------

    def gather(self, mine: Tensor) -> Tensor:
        """The vectors of all ranks, one below the other."""
        found = [torch.empty_like(mine) for _ in range(self.size)]
        if self.size == 1:
            return mine.unsqueeze(0)
        self.exchanges += 1
        try:
            dist.all_gather(found, mine.contiguous(), group=self.group)
        except RuntimeError as error:
            self.fail(None, error)
        return torch.stack(found)

    def sum(self, mine: Tensor) -> Tensor:
        """The sum over all ranks in float64, added in their order."""
        total = torch.zeros(mine.shape, dtype=torch.float64)
        for each in self.gather(mine.double()):
            total += each
        return total

    def texts(self, mine: str) -> list[str]:
        """What each rank has to say."""
        encoded = (
            torch.frombuffer(bytearray(mine.encode()), dtype=torch.uint8) if mine else torch.empty(0, dtype=torch.uint8)
        )
        lengths = self.gather(torch.tensor([len(encoded)])).view(-1)
        padded = torch.zeros(int(lengths.max()), dtype=torch.uint8)
        padded[: len(encoded)] = encoded
        rows = self.gather(padded)
        return [bytes(row[:length].numpy()).decode() for row, length in zip(rows, lengths.tolist(), strict=True)]

    def from_first(self, mine: bytes | None) -> bytes | None:
        """What rank 0 has; None if that is None."""
        if self.size == 1:
            return mine
        size = torch.tensor([-1 if mine is None else len(mine)])
        try:
            dist.broadcast(size, 0, group=self.group)
            if int(size) < 0:
                return None
            data = torch.empty(int(size), dtype=torch.uint8)
            if self.rank == 0 and mine is not None:
                data = torch.frombuffer(bytearray(mine), dtype=torch.uint8) if mine else data
            dist.broadcast(data, 0, group=self.group)
        except RuntimeError as error:
            self.fail(None, error)
        return bytes(data.numpy())

    def together(self, action: Callable[[], Result], what: str) -> Result:
        """action(), which may raise an error on some ranks: then all raise, those others one that names them."""
        error, made = None, None
        try:
            made = action()
        except Exception as caught:
            error = caught
        failed = self.gather(torch.tensor([0 if error is None else 1])).view(-1).nonzero().view(-1).tolist()
        if error is not None:
            raise error
        if failed:
            named = f"rank {failed[0]}" if len(failed) == 1 else f"ranks {', '.join(map(str, failed))}"
            raise RankFailed(f"{named} could not {what}; the message there says why")
        return made  # type: ignore[return-value]

    def agree(self, what: str, mine: str) -> None:
        """Raise on every rank, naming those that differ, unless all have the same text."""
        if self.size == 1:
            return
        told = self.texts(mine)
        usual = max(told, key=told.count)
        others = [rank for rank, text in enumerate(told) if text != usual]
        if others:
            rest = f"the other {'ranks have' if self.size - len(others) > 1 else 'rank has'}"
            named = "; ".join(f"rank {rank} has {told[rank]}" for rank in others[:4])
            raise ValueError(
                f"`{what}` must be the same on all {self.size} ranks ({named}; {rest} {usual}); start every "
                "rank with the same settings"
            )

    def fail(self, peer: int | None, error: Exception) -> NoReturn:
        """Raise an error that names the rank that failed."""
        if isinstance(error, RankFailed):
            raise error
        told = self.blame(peer, error) if self.blame is not None else f"rank {peer}" if peer is not None else "a rank"
        raise RankFailed(f"rank {self.rank}: {told} ({error})") from error


@final
class Posted:
    """Rows under way."""

    def __init__(self, ranks: Ranks, waiting: list[tuple[int, Any]], held: Any) -> None:
        self._ranks, self._waiting, self._held = ranks, waiting, held

    def wait(self) -> None:
        for peer, work in self._waiting:
            try:
                work.wait()
            except RuntimeError as error:
                self._ranks.fail(peer, error)
        self._waiting, self._held = [], None


# Seeds ------------------------------------------------------------------------------------------------------------

_salt = 0


def draw_apart(rank: int) -> None:
    """From now on masks of this process are those of its rank: with generators that are seeded alike, rows of the same
    number on different ranks would share them. Rank 0 draws as a process alone does.
    """
    global _salt
    _salt = rank


def own_seed(seed: int) -> int:
    """The seed of this rank, given one that all ranks have drawn."""
    if _salt == 0:
        return seed
    return splitmix64(seed ^ splitmix64(_salt)) >> 1
