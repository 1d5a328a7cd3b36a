"""The degree-corrected block model with planted classes: its numbers, and what follows from them.

    share of class c            s_c ~ (c + 1)^-1/2
    propensity of a node        (r + 1)^-a,  a = 1 / (exponent - 1),  r = its rank within its class
    label of a node of class c  c with probability 1 - confusion, else drawn from s
    edge                        both ends in one class with probability h, else in two classes
    features                    x = (mean_c + noise * e) / sqrt(1 + noise^2),  mean_c and e standard normal

With `labels`, a node has that many binary labels in place of its class label. Each binary label is typical of a fifth
of the classes (at least one), drawn by the seed:

    binary label of a node whose class label is c   1 with probability 0.9 if typical of c, else 0.05

Ranked propensities of that form give degrees with P(degree >= k) ~ k^(1 - exponent), and the hub of a class of n nodes
has about n^a times the degree of its least node: the natural cut-off. Nothing tells the confused nodes from the
others, so no model can be right on more than about 1 - confusion of the nodes. `homophily` is that of the final
class labels; h is derived from it.

Karrer, Newman, "Stochastic blockmodels and community structure in networks", Phys. Rev. E 83, 2011.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

CLASS_SKEW = 0.5
TYPICAL_SHARE = 0.2  # of the classes, for every binary label
LABEL_IF_TYPICAL, LABEL_OTHERWISE = 0.9, 0.05
LEAST_NODES_PER_CLASS = 8  # on average; the smallest class then still has two nodes
LARGEST_NODE_COUNT = 2**31 - 1  # column indices are int32


@dataclass(frozen=True)
class BlockModel:
    """The parameters of a generated graph. Together with a seed they determine it."""

    num_nodes: int
    num_edges: int  # undirected edges, or directed ones if `directed`
    num_features: int
    num_classes: int
    homophily: float = 0.35
    exponent: float = 2.4
    noise: float = 6.0
    confusion: float = 0.15
    directed: bool = False
    split: tuple[float, float, float] = (0.54, 0.18, 0.28)
    labels: int | None = None  # binary labels per node; None: one class label per node

    def __post_init__(self) -> None:
        self._check_sizes()
        if not self.exponent > 2:
            raise ValueError(f"`exponent` must be above 2, where the mean degree exists (got {self.exponent})")
        if not 0 <= self.noise < float("inf"):
            raise ValueError(f"`noise` must be finite and not negative (got {self.noise})")
        if not 0 <= self.confusion < 1:
            raise ValueError(f"`confusion` is a share of the nodes, at least 0 and below 1 (got {self.confusion})")
        if len(self.split) != 3 or min(self.split) < 0 or sum(self.split) > 1 + 1e-9:
            raise ValueError(
                f"`split` must be three shares, none negative, that add up to at most 1 (got {self.split})"
            )
        if not 0 <= self.planted_homophily <= 1:
            low, high = self._homophily_range
            raise ValueError(
                f"`homophily` must lie between {low:.3f} and {high:.3f} for {self.num_classes} classes with "
                f"`confusion` {self.confusion} (got {self.homophily}); a smaller `confusion` widens the range"
            )

    def _check_sizes(self) -> None:
        for name, least in (("num_nodes", 1), ("num_edges", 1), ("num_features", 1), ("num_classes", 2)):
            value = getattr(self, name)
            if not isinstance(value, int) or value < least:
                raise ValueError(f"`{name}` must be an integer of at least {least} (got {value!r})")
        if self.labels is not None and (not isinstance(self.labels, int) or self.labels < 1):
            raise ValueError(
                f"`labels` must be an integer of at least 1, or None for one class per node (got {self.labels!r})"
            )
        if self.num_nodes < LEAST_NODES_PER_CLASS * self.num_classes:
            raise ValueError(
                f"`num_nodes` must be at least {LEAST_NODES_PER_CLASS} per class, here "
                f"{LEAST_NODES_PER_CLASS * self.num_classes} (got {self.num_nodes})"
            )
        if self.num_nodes > LARGEST_NODE_COUNT:
            raise ValueError(
                f"`num_nodes` must be at most {LARGEST_NODE_COUNT}, as column indices are int32 (got {self.num_nodes})"
            )

    def scaled(self, scale: float) -> BlockModel:
        """The same model with `scale` times the nodes and edges, 0 < scale <= 1."""
        least = min(1.0, LEAST_NODES_PER_CLASS * self.num_classes / self.num_nodes)
        if not least <= scale <= 1:
            raise ValueError(
                f"`scale` must lie between {least:.2g} (a graph with {LEAST_NODES_PER_CLASS} nodes per class) and 1 "
                f"(got {scale})"
            )
        # rounded up, so that the least scale still gives enough nodes
        nodes, edges = (int(np.ceil(count * scale)) for count in (self.num_nodes, self.num_edges))
        return replace(self, num_nodes=nodes, num_edges=edges)

    @property
    def classes_per_label(self) -> int:
        """Classes that a binary label is typical of: never all of them, or the label would say nothing of a node."""
        return max(1, round(TYPICAL_SHARE * self.num_classes))

    @property
    def stored_edges(self) -> int:
        """Directed edges: both directions of an undirected edge are stored."""
        return self.num_edges if self.directed else 2 * self.num_edges

    @cached_property
    def class_bounds(self) -> NDArray[np.int64]:
        """[C + 1]: in block order, class c owns the positions bounds[c] .. bounds[c + 1] - 1."""
        weight = (np.arange(self.num_classes) + 1.0) ** -CLASS_SKEW
        return np.round(np.append(0, np.cumsum(weight) / weight.sum()) * self.num_nodes).astype(np.int64)

    @cached_property
    def _homophily_range(self) -> tuple[float, float]:
        """Homophily of the labels if no edge, or every edge, joins two nodes of one planted class."""
        s = np.diff(self.class_bounds) / self.num_nodes
        label = (1 - self.confusion) * np.eye(self.num_classes) + self.confusion * s  # [class, label]
        agree = label @ label.T  # probability that nodes of classes c and d carry one label
        apart = s[:, None] * s / (1 - s)[:, None]  # second class drawn from the others
        np.fill_diagonal(apart, 0)
        return float((apart * agree).sum()), float(s @ agree.diagonal())

    @property
    def planted_homophily(self) -> float:
        """h, the share of edges within a planted class that gives the labels the homophily asked for."""
        low, high = self._homophily_range
        return (self.homophily - low) / (high - low)
