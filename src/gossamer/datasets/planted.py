"""Drawing from a block model, a chunk at a time.

The unit interval is cut into the classes by their shares, and each class into its nodes by their propensities, so one
uniform number is one node: with n nodes, b = 1 - a and v the number's place within its class,

    rank = floor((1 + v * ((n + 1)^b - 1))^(1/b)) - 1

which inverts the cumulative propensity in closed form: no table, no search. Every chunk has a random generator of its
own, seeded by (seed, purpose, number of the chunk), and can be drawn again at any time.
"""

from __future__ import annotations

from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from . import splits
from .block_model import LABEL_IF_TYPICAL, LABEL_OTHERWISE, BlockModel

NODE_CHUNK = 2**18  # part of what a seed means: another size draws other features
_SHUFFLE, _MEANS, _NODES, _EDGES, _TYPICAL, _LABELS = range(6)


class NodeChunk(NamedTuple):
    """Features, labels and split of consecutive nodes. `y` is a class id per node, or a float row of binary labels."""

    x: NDArray[np.float32]
    y: NDArray[np.int64] | NDArray[np.float32]
    part: NDArray[np.int8]


class Planted:
    """A block model with a seed: node ids shuffled, class means drawn. Keeps six bytes per node."""

    def __init__(self, model: BlockModel, seed: int) -> None:
        if seed < 0:
            raise ValueError(f"`seed` must not be negative (got {seed})")
        self.model, self.seed = model, seed
        self.bounds = model.class_bounds
        self.sizes = np.diff(self.bounds)  # [C]
        self.cuts = self.bounds / model.num_nodes  # [C + 1], the unit interval
        self.node_at = self.rng(_SHUFFLE).permutation(np.arange(model.num_nodes, dtype=np.int32))  # position -> id
        self.class_of = np.empty(model.num_nodes, np.int16 if model.num_classes < 2**15 else np.int32)  # id -> class
        for c in range(model.num_classes):
            self.class_of[self.node_at[self.bounds[c] : self.bounds[c + 1]]] = c
        self.means = self.rng(_MEANS).standard_normal((model.num_classes, model.num_features), dtype=np.float32)

    def rng(self, purpose: int, chunk: int = 0) -> np.random.Generator:
        """The generator of one chunk."""
        return np.random.default_rng([self.seed, purpose, chunk])

    def edge_rng(self, chunk: int) -> np.random.Generator:
        """The generator of one chunk of edges."""
        return self.rng(_EDGES, chunk)

    def nodes(self, chunk: int) -> NodeChunk:
        """The nodes `chunk * NODE_CHUNK` and following, at most NODE_CHUNK of them."""
        model, rng = self.model, self.rng(_NODES, chunk)
        planted = self.class_of[chunk * NODE_CHUNK : (chunk + 1) * NODE_CHUNK].astype(np.int64)
        drawn = np.searchsorted(self.cuts[1:-1], rng.random(len(planted)), side="right")
        y = np.where(rng.random(len(planted)) < model.confusion, drawn, planted)
        part = np.searchsorted(np.cumsum(model.split), rng.random(len(planted)), side="right").astype(np.int8)
        part[part > splits.TEST] = splits.NONE
        x = rng.standard_normal((len(planted), model.num_features), dtype=np.float32)
        x *= np.float32(model.noise)
        x += self.means[planted]
        x /= np.float32(np.sqrt(1 + model.noise**2))
        return NodeChunk(x, y if model.labels is None else self._binary_labels(y, chunk), part)

    def _binary_labels(self, y: NDArray[np.int64], chunk: int) -> NDArray[np.float32]:
        """[nodes, labels] of 0 and 1, drawn from generators of their own: all else is as without them."""
        drawn = self.rng(_LABELS, chunk).random((len(y), self._label_rate.shape[1]), dtype=np.float32)
        return (drawn < self._label_rate[y]).astype(np.float32)

    @cached_property
    def _label_rate(self) -> NDArray[np.float32]:
        """[classes, labels]: the probability of each binary label."""
        model, rng = self.model, self.rng(_TYPICAL)
        rate = np.full((model.num_classes, model.labels or 0), LABEL_OTHERWISE, np.float32)
        for column in rate.T:
            column[rng.choice(model.num_classes, model.classes_per_label, replace=False)] = LABEL_IF_TYPICAL
        return rate

    def pairs(
        self, rng: np.random.Generator, same: NDArray[np.bool_], flat: bool = False
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Two nodes per element of `same`, never one node twice: of one class where it is true, of two elsewhere.

        With `flat`, all nodes of a class are equally probable. Ids are positions in block order.
        """
        i, c = self._place(rng.random(len(same)), flat)
        low, share = self.cuts[c], self.sizes[c] / self.model.num_nodes
        u = rng.random(len(same))
        apart = u * (1 - share)
        apart += np.where(apart >= low, share, 0)  # skips the interval of class c
        j, d = self._place(np.where(same, low + u * share, apart), flat)
        # Rounding at the edge of an interval can land one class away, so the class is set, not trusted.
        j = np.where(same, np.clip(j, self.bounds[c], self.bounds[c + 1] - 1), j)
        again = i == j
        j[again] = self.bounds[c[again]] + (j[again] - self.bounds[c[again]] + 1) % self.sizes[c[again]]
        stray = ~same & (d == c)
        j[stray] = self.bounds[(c[stray] + 1) % self.model.num_classes]
        return i, j

    def _place(self, u: NDArray[np.float64], flat: bool) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Position in block order, and class, of the node whose interval holds u."""
        c = np.searchsorted(self.cuts[1:-1], u, side="right")
        n = self.sizes[c]
        v = (u - self.cuts[c]) * self.model.num_nodes / n
        if flat:
            rank = v * n
        else:
            b = 1 - 1 / (self.model.exponent - 1)
            top = (self.sizes + 1.0) ** b - 1
            rank = (1 + v * top[c]) ** (1 / b) - 1
        return self.bounds[c] + np.clip(rank.astype(np.int64), 0, n - 1), c
