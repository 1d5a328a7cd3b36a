"""What attention layers tell an engine, and what engines share for them.

Gat      p_ij = softmax over j of  leaky(a_src . h_j + a_dst . h_i + edge term)
Gatv2    p_ij = softmax over j of  a . leaky(h_j + g_i)
out_i = sum over j of dropout(p_ij) h_j + b,    per head; heads are concatenated or averaged
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from .. import ops
from ..graph import Graph
from .epilogue import draw_seed
from .outliers import has_outliers

Drop = tuple[float, int] | None
"""Probability and seed of the attention's dropout; a traced program draws its masks as torch does."""


@dataclass(frozen=True)
class Attention:
    """The parameters of one attention layer."""

    lins: tuple[Any, ...]
    """Projections of sources and destinations; one module if they share it."""
    atts: tuple[Tensor, ...]
    heads: int
    width: int
    slope: float
    dropout: float
    concat: bool
    bias: Tensor | None
    res: Any

    def draw_dropout(self) -> Drop:
        if self.dropout == 0:
            return None
        return self.dropout, 0 if torch.compiler.is_compiling() else draw_seed()

    @property
    def averages(self) -> bool:
        """Whether float sums of this layer's rows average the heads as they go."""
        return not self.concat and self.heads > 1

    def early_bias(self, averaged: bool = False) -> Tensor | None:
        """The bias, if it can be added together with the neighbours: where the sum is as wide as the result."""
        return self.bias if (self.concat or averaged) and self.res is None else None

    def summed(self, graph: Graph, h: Tensor, p: Tensor, drop: Drop) -> tuple[Tensor, Tensor]:
        """The weighted sum of float rows, averaged over the heads if it can be, and the weights after dropout."""
        if drop is not None:
            p = functional.dropout(p, drop[0]) if torch.compiler.is_compiling() else ops.dropout(p, *drop)
        if self.averages:
            return ops.head_mean_spmm(graph, h, p, bias=self.early_bias(averaged=True)), p
        return ops.spmm(graph, h, value=p, bias=self.early_bias()), p


@dataclass(frozen=True)
class Gat(Attention):
    """atts: those of sources and destinations, [1, heads, width]."""

    edge_term: Tensor | None = None

    @property
    def weight_of_terms(self) -> Tensor:
        """v with head_dots(x W^T, *atts) = x v^T: [heads * len(atts), columns of x]."""
        weight = self.lins[0].weight
        return weight_of_terms(weight, *self.atts)


@dataclass(frozen=True)
class Gatv2(Attention):
    """atts: one, [heads, width]."""


class Projected(NamedTuple):
    """Rows that attention weighs: of sources and destinations, and what came along with them."""

    h_src: Tensor
    h_dst: Tensor | None
    terms: tuple[Tensor | None, ...] | None = None
    """GAT's <h, att> of sources and destinations, with a gradient of their own."""
    residual: Tensor | None = None
    outliers: bool = False
    """Whether they come from input with outlier columns, which are then a large part of all columns here: the rows are
    summed and saved in float32."""

    def marked(self, *inputs: Tensor | None) -> Projected:
        """With `outliers` by what the rows were made from."""
        return self._replace(outliers=any(x is not None and has_outliers(x) for x in inputs))

    def to_first(self, count: int) -> Projected:
        """With so many destinations, where one projection of more rows served both ends."""
        if self.h_dst is None or self.h_dst.size(0) == count:
            return self
        residual = None if self.residual is None else self.residual[:count]
        if self.terms is None:
            return self._replace(h_dst=self.h_dst[:count], residual=residual)
        a_src, a_dst = self.terms  # all that is read of a destination's row
        return self._replace(terms=(a_src, None if a_dst is None else a_dst[:count]), residual=residual)


def weight_of_terms(weight: Tensor, *atts: Tensor) -> Tensor:
    by_head = weight.view(atts[0].size(1), -1, weight.size(1))  # [heads, width, columns]
    return torch.cat([(att.transpose(0, 1) @ by_head).flatten(0, 1) for att in atts])
