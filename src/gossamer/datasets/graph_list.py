"""Many small graphs: a list that PyG's `DataLoader` takes, and knows its splits."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from . import splits

if TYPE_CHECKING:
    from torch_geometric.data import Data

RANDOM_FRACTIONS = (0.8, 0.1, 0.1)


@final
class GraphList(list["Data"]):
    """Graphs of one dataset. `num_classes` is None for regression; `parts` is int8 [S, G], one row per fixed split."""

    def __init__(
        self, graphs: Iterable[Data], name: str, task: str, num_classes: int | None, parts: NDArray[np.int8]
    ) -> None:
        super().__init__(graphs)
        self.name, self.task, self.num_classes, self.parts = name, task, num_classes, parts

    @property
    def num_features(self) -> int:
        """Node features."""
        return int(self[0].num_features) if self else 0

    @property
    def num_splits(self) -> int:
        """Fixed splits the dataset comes with; 0 = none, `split(k)` then draws them."""
        return len(self.parts)

    def split(self, k: int = 0) -> tuple[Tensor, Tensor, Tensor]:
        """Indices of the training, validation and test graphs of the k-th fixed split.

        Without fixed splits, k is the seed of a random one: 80/10/10 of every class.
        """
        if k < 0 or (self.num_splits and k >= self.num_splits):
            limit = f"in 0 .. {self.num_splits - 1}" if self.num_splits else "not negative"
            raise ValueError(f"`k` must be {limit} for {self.name} (got {k})")
        part = self.parts[k] if self.num_splits else splits.by_fraction(self._strata(), RANDOM_FRACTIONS, seed=k)
        train, val, test = (torch.from_numpy(np.flatnonzero(part == v)) for v in range(3))
        return train, val, test

    def _strata(self) -> NDArray[np.int64]:
        if self.num_classes is None:
            return np.zeros(len(self), np.int64)
        return np.array([int(graph.y) for graph in self], np.int64)

    def __repr__(self) -> str:
        return f"GraphList({self.name!r}, {len(self)} graphs, {self.num_features} features, {self.num_classes} classes)"
