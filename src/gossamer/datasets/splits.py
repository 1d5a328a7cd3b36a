"""Which nodes (or graphs) are for training, validation and testing.

A split is one small integer per item: 0 train, 1 validation, 2 test, -1 in none of them. Items without a label (-1)
are in none. Every random split is a function of the labels and the seed.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

DRAWN = ("random", "few")
TRAIN, VAL, TEST, NONE = 0, 1, 2, -1
MASK_NAMES = ("train_mask", "val_mask", "test_mask")


def masks(part: NDArray[np.int8]) -> dict[str, Tensor]:
    """The three boolean masks of a split, by the names PyG gives them."""
    return {name: torch.from_numpy(part == value) for value, name in enumerate(MASK_NAMES)}


def drawn(y: NDArray[np.int64], kind: str, seed: int) -> NDArray[np.int8]:
    """The two usual random splits: "random", 60/20/20 of every class; "few", 20 nodes per class / 500 / the rest."""
    return by_fraction(y, (0.6, 0.2, 0.2), seed) if kind == "random" else by_count(y, 20, 500, seed)


def by_fraction(
    y: NDArray[np.int64], fractions: tuple[float, float, float], seed: int, among: NDArray[np.bool_] | None = None
) -> NDArray[np.int8]:
    """Cut every class at the same fractions, so that small classes appear in all parts.

    The node of rank r among the n of its class, in seeded order, stands at (r + 1/2) / n in [0, 1) and goes to the
    part whose interval holds that point. `among` limits the split to some items; fractions need not add up to 1.
    """
    part = np.full(len(y), NONE, np.int8)
    ids = np.flatnonzero(y >= 0 if among is None else (y >= 0) & among)
    rank, size = _rank_in_class(y[ids], seed)
    part[ids] = np.searchsorted(np.cumsum(fractions), (rank + 0.5) / size, side="right")
    part[part > TEST] = NONE
    return part


def by_count(y: NDArray[np.int64], per_class: int, num_val: int, seed: int) -> NDArray[np.int8]:
    """`per_class` training nodes of each class, `num_val` validation nodes of the rest, all others for testing."""
    part = np.full(len(y), NONE, np.int8)
    ids = np.flatnonzero(y >= 0)
    rank, _ = _rank_in_class(y[ids], seed)
    part[ids] = np.where(rank < per_class, TRAIN, TEST)
    rest = np.random.default_rng([seed, 1]).permutation(ids[rank >= per_class])
    part[rest[:num_val]] = VAL
    return part


def _rank_in_class(y: NDArray[np.int64], seed: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Rank of each item among those of its class, in seeded random order, and the size of its class."""
    order = np.random.default_rng([seed, 0]).permutation(len(y))
    order = order[np.argsort(y[order], kind="stable")]
    sizes = np.bincount(y)
    rank = np.empty(len(y), np.int64)
    rank[order] = np.arange(len(y)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    return rank, sizes[y]
