"""The float32 engine: what PyTorch computes, on our kernels where they pay; everything is saved as it is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor, nn

from .. import ops
from ..aggregate import Adjacency
from . import rules
from .attention import Attention, Drop, Gat, Projected
from .engine import Engine
from .epilogue import Deferred, EpilogueSpec, draw_seed, run_fused


@final
@dataclass(frozen=True)
class Float32(Engine):
    deterministic: bool = False
    """Results must not depend on the number of threads, as beside int8 products: ours are used where those are."""

    def product(self, x: Tensor, weight: Tensor, bias: Tensor | None, add: Tensor | None = None) -> Tensor:
        if not torch.compiler.is_compiling():  # sizes would become part of the traced program
            large = x.size(0) * weight.size(0) >= rules.least.activation
            large = large or (self.deterministic and x.numel() >= rules.least.int8)
            if large and rules.is_dense(x, 1):
                return ops.linear(x, weight, bias, add)
        out = nn.functional.linear(x, weight, bias)
        return out if add is None else out + add

    def aggregate(
        self, adjacency: Adjacency, x: Tensor, bias: Tensor | None = None, add: Tensor | None = None
    ) -> Tensor:
        return adjacency.product(x, bias, add)

    def convolve_plain(
        self, x: Tensor, adjacency: Adjacency, lin: Any, bias: Tensor | None, root: Any, x_dst: Tensor | None
    ) -> Tensor:
        rooted = self.rooted(root, x_dst)
        if self.aggregates_first(x, lin.weight.size(0), adjacency):
            return self.product(self.aggregate(adjacency, x), lin.weight, bias, rooted)
        return self.aggregate(adjacency, self.product(x, lin.weight, None), bias, rooted)

    def project(self, x: Tensor, x_dst: Tensor | None, a: Attention, shows_weights: bool) -> Projected:
        h = self.multiply(a.lins[0], x)
        if x_dst is None:
            return Projected(h, None)
        if x_dst is x and len(a.lins) == 1:
            return Projected(h, h)
        return Projected(h, self.multiply(a.lins[-1], x_dst))

    def project_deferred(self, x: Deferred, a: Attention) -> Projected | None:
        """GAT's rows h = x W^T, its terms as products of x, and its residual, all in one pass."""
        lin, small = a.lins[0], x.size(0) * a.heads * a.width < rules.least.saved
        residual = [] if a.res is None else [a.res]
        plain = len(a.lins) == 1 and all(map(rules.is_plain, [lin, *residual])) and lin.bias is None
        if not isinstance(a, Gat) or not plain or small or not x.multiplies:
            return None
        weights = [lin.weight, a.weight_of_terms, *(res.weight for res in residual)]
        made = self.products_of(x, weights, [None, None, *(res.bias for res in residual)])
        assert made is not None
        h, terms, *rest = made
        return Projected(h, h, terms.split(a.heads, dim=1), rest[0] if rest else None)

    def weigh(
        self, adjacency: Adjacency, rows: Projected, a: Attention, drop: Drop, shows_weights: bool
    ) -> tuple[Tensor, Tensor | None]:
        graph = adjacency.graph
        if isinstance(a, Gat):
            terms = self.node_terms(rows, a) if rows.terms is None else rows.terms
            a_src, a_dst = terms
            assert a_src is not None
            p = ops.gat_attention(graph, a_src, a_dst, a.edge_term, a.slope)
        else:
            assert rows.h_dst is not None
            p = ops.edge_softmax(graph, ops.gatv2_logits(graph, rows.h_src, rows.h_dst, a.atts[0], a.slope))
        return a.summed(graph, rows.h_src, p, drop)

    def node_terms(self, rows: Projected, a: Gat) -> tuple[Tensor, Tensor | None]:
        """<h, att> of sources and destinations."""
        h_src, h_dst, *_ = rows
        if h_dst is h_src:
            a_src, a_dst = head_dots(h_src, a.atts, self.deterministic)
            return a_src, a_dst
        (a_src,) = head_dots(h_src, a.atts[:1], self.deterministic)
        return a_src, None if h_dst is None else head_dots(h_dst, a.atts[1:], self.deterministic)[0]

    def takes(self, x: Tensor, alone: bool = False) -> bool:
        return rules.is_dense(x, rules.least.activation if alone else None)

    def run(self, x: Tensor, epilogue: EpilogueSpec) -> Tensor:
        return run_fused(x, epilogue)

    def defer(self, x: Tensor, epilogue: EpilogueSpec) -> Deferred | None:
        return None

    def dropout(self, x: Tensor, p: float) -> Tensor:
        if 0 < p <= 1 and rules.is_dense(x, rules.least.dropout, any_shape=True):
            return ops.dropout(x, p, draw_seed())
        return nn.functional.dropout(x, p) if p > 0 else x


FLOAT32 = Float32()


def head_dots(h: Tensor, atts: tuple[Tensor, ...], deterministic: bool = False) -> tuple[Tensor, ...]:
    """<h_n, att> per head and att: [nodes, heads * width] with [1, heads, width] to [nodes, heads] each."""
    return stacked_dots(h, atts, deterministic).split(atts[0].size(1), dim=1)


def stacked_dots(h: Tensor, atts: tuple[Tensor, ...], deterministic: bool) -> Tensor:
    """All as one narrow product with rows that hold each head's att at its own columns: h is read once, and backward
    has one gradient to add to it.
    """
    spread = torch.cat([torch.block_diag(*att[0]) for att in atts])  # [heads * len(atts), heads * width]
    return Float32(deterministic).product(h, spread, None)
