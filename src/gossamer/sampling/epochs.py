"""What every loader is: epochs of batches, each a function of (seed, epoch, number of the batch) alone."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from . import checks
from .prefetch import Prefetched
from .seeds import derive, permutation

_ORDER, _DRAWS = 0, 1  # what a seed is derived for


class Batching(NamedTuple):
    """How examples become batches, and how many of those are computed ahead."""

    batch_size: int
    shuffle: bool
    drop_last: bool
    seed: int
    prefetch: int | None
    ranks: tuple[int, int] | None = None
    """(rank, number of ranks) among the processes that share the examples; None: those of torch.distributed."""


def ranks_of(told: tuple[int, int] | None) -> tuple[int, int]:
    """(rank, number of ranks): as told, or of the process group that this process has joined."""
    if told is None:
        joined = dist.is_available() and dist.is_initialized()
        return (dist.get_rank(), dist.get_world_size()) if joined else (0, 1)
    listed = isinstance(told, (tuple, list)) and len(told) == 2 and all(isinstance(number, int) for number in told)
    if not listed or not 0 <= told[0] < told[1]:
        raise ValueError(f"`ranks` must be (rank, number of ranks), as (0, 1) for all batches here (got {told!r})")
    return told[0], told[1]


PREFETCHED = 2


def prefetched(asked: int | None, x: Any) -> int:
    """How many batches to compute ahead, if that is not told: none where the model has all cores to itself, as a second
    thread would only take them from it, unless rows of `x` come from a file, which a thread can wait for.
    """
    if asked is not None:
        return checks.whole("prefetch", asked, 0)
    parts = list(x.values()) if isinstance(x, Mapping) else [x]
    from_file = any(isinstance(part, np.memmap) or getattr(part, "path", None) is not None for part in parts)
    return PREFETCHED if from_file or (os.cpu_count() or 1) > torch.get_num_threads() else 0


class Epochs(ABC):
    """Iterating goes over one epoch, and the next time over the next one, in another order if `shuffle`.

    `state()` and `restore()` carry the position to another process: there, the next iteration yields the batches that
    are left of the epoch, the same as here. An iteration that is left early ends its epoch.

    Where several processes train together, each yields its share of the examples, in the same number of batches.
    """

    def __init__(self, count: int, x: Any, how: Batching) -> None:
        how = how._replace(
            batch_size=checks.whole("batch_size", how.batch_size, 1),
            prefetch=prefetched(how.prefetch, x),
            seed=checks.whole("seed", how.seed, -(2**63)),
            ranks=ranks_of(how.ranks),
        )
        self._count, self._how = count, how
        self._epoch, self._yielded, self._begun = 0, 0, False
        if len(self) == 0:
            raise ValueError(
                f"`batch_size` must be at most {count}, the number of examples, with `drop_last` (got {how.batch_size})"
            )

    @abstractmethod
    def _batch(self, input_id: Tensor, seed: int) -> Any:
        """The batch of the examples at these positions."""

    def __len__(self) -> int:
        """Batches of an epoch, the same number on every rank."""
        size = self._how.batch_size * self._ranks[1]
        return self._count // size if self._how.drop_last else -(-self._count // size)

    @property
    def _ranks(self) -> tuple[int, int]:
        return self._how.ranks or (0, 1)

    def _chosen(self, order: Tensor, number: int) -> Tensor:
        """This rank's share of the examples of so many batches at once; where the last ones are fewer than ranks, the
        epoch's first ones come again, so that no rank is without.
        """
        rank, ranks = self._ranks
        size = self._how.batch_size * ranks
        found = order[number * size : (number + 1) * size]
        if len(found) < ranks:
            found = torch.cat([found, order.repeat(ranks)])[:ranks]
        return found[len(found) * rank // ranks : len(found) * (rank + 1) // ranks]

    @property
    def epoch(self) -> int:
        """The epoch that is being iterated, or that comes next; setting it starts that epoch from its beginning."""
        return self._epoch

    @epoch.setter
    def epoch(self, epoch: int) -> None:
        self.restore({"epoch": epoch, "batch": 0})

    def state(self) -> dict[str, int]:
        """The epoch, and how many of its batches have been yielded."""
        return {"epoch": self._epoch, "batch": self._yielded}

    def restore(self, state: dict[str, int]) -> None:
        """Go on where the loader that gave `state` was; it must have been made with the same arguments."""
        epoch, batch = (checks.whole(f"state[{name!r}]", state.get(name), 0) for name in ("epoch", "batch"))
        if batch > len(self):
            raise ValueError(
                f"`state['batch']` must be at most {len(self)}, the batches of an epoch (got {batch}); restore into a "
                "loader with the same seeds and batch size"
            )
        self._epoch, self._yielded, self._begun = epoch, batch, False

    def __iter__(self) -> Iterator[Any]:
        if self._begun:  # left early
            self._epoch, self._yielded = self._epoch + 1, 0
        self._begun = True
        return self._iterate(self._epoch, self._yielded)

    def _iterate(self, epoch: int, first: int) -> Iterator[Any]:
        how = self._how
        order = permutation(self._count, derive(how.seed, epoch, _ORDER)) if how.shuffle else torch.arange(self._count)

        def make(number: int) -> Any:
            with torch.no_grad():
                apart = (self._ranks[0],) if self._ranks[1] > 1 else ()
                return self._batch(self._chosen(order, number), derive(how.seed, epoch, _DRAWS, number, *apart))

        batches = Prefetched(make, range(first, len(self)), how.prefetch or 0)
        try:
            for number, batch in enumerate(batches, first):
                if epoch == self._epoch:
                    self._yielded = number + 1
                yield batch
        finally:
            batches.close()
        if epoch == self._epoch:
            self._epoch, self._yielded, self._begun = epoch + 1, 0, False
