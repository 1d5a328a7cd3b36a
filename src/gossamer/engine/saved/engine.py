"""The engine that saves few bits for backward (EXACT and block-wise EXACT); the forward pass stays exact.

Products behind an epilogue may sum in another order, nothing else differs from float32. Only gradients carry noise, of
mean zero: what is saved is decoded where a gradient is linear in it, signs and masks are one bit and exact. What an
epilogue saved serves the products that read its result; input that needs no gradient is saved by reference.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor

from ...aggregate import Adjacency
from ...codecs import CodedRows
from .. import rules
from ..attention import Attention, Drop, Gat, Projected, weight_of_terms
from ..engine import Engine
from ..epilogue import Deferred, EpilogueSpec, draw_seed
from ..float32 import Float32, stacked_dots
from ..outliers import has_outliers
from . import epilogue as epilogues
from .gat import Setting, gat_sum
from .gatv2 import gatv2_sum
from .policy import Saving
from .products import known_product, of_neighbours, products
from .source import encoded, is_free, source_of
from .sums import needs_rows, weighted_sum


@final
@dataclass(frozen=True)
class Saved(Engine):
    saving: Saving
    whole: Float32
    """For what is too small to gain, and where no backward will come."""

    saves = True
    defers = True

    def product(self, x: Tensor, weight: Tensor, bias: Tensor | None, add: Tensor | None = None) -> Tensor:
        if not rules.saves_rows(x):
            return self.whole.product(x, weight, bias, add)
        return self._products(x, [weight], [bias], add)[0]

    def _products(
        self, x: Tensor, weights: Sequence[Tensor], biases: Sequence[Tensor | None], add: Tensor | None = None
    ) -> tuple[Tensor, ...]:
        x = x.contiguous()
        return products(x, weights, biases, source_of(x, self.saving), add)

    def aggregate(
        self, adjacency: Adjacency, x: Tensor, bias: Tensor | None = None, add: Tensor | None = None
    ) -> Tensor:
        if not needs_rows(adjacency, x):
            return self.whole.aggregate(adjacency, x, bias, add)
        return weighted_sum(adjacency, x, self.saving.values if x.requires_grad else None, bias, add)

    def aggregates_first(self, x: Tensor, out_channels: int, adjacency: Adjacency) -> bool:
        """What is saved decides: x, whose codes serve several ops; of input that needs no gradient, which lives anyway,
        the codes of A x if they are no more than those of the result.
        """
        if not rules.saves_little(x):
            return rules.aggregates_first(x, x.size(1), out_channels, adjacency.graph)
        return not x.requires_grad and x.size(1) <= out_channels

    def sums_codes(self, x: CodedRows, out_channels: int, adjacency: Adjacency) -> bool:
        """Only where nothing is saved: backward recomputes A x from decoded rows, which are saved by reference."""
        return not torch.is_grad_enabled() and self.whole.sums_codes(x, out_channels, adjacency)

    def convolve_plain(
        self, x: Tensor, adjacency: Adjacency, lin: Any, bias: Tensor | None, root: Any, x_dst: Tensor | None
    ) -> Tensor:
        if rules.saves_rows(x) and x.requires_grad and x_dst is x and rules.is_plain(root):  # x is saved once
            h, own = self._products(x, [lin.weight, root.weight], [None, root.bias])
            return self.aggregate(adjacency, h, bias, own)
        rooted = self.rooted(root, x_dst)
        if not self.aggregates_first(x, lin.weight.size(0), adjacency):
            return self.aggregate(adjacency, self.product(x, lin.weight, None), bias, rooted)
        if adjacency.is_fixed and rules.saves_rows(x) and not x.requires_grad:
            if root is not None or has_outliers(x):
                return of_neighbours(adjacency, x, lin.weight, bias, rooted)
            summed = adjacency.product(x).contiguous()
            return products(summed, [lin.weight], [bias], encoded(summed, self.saving.sums))[0]
        return self.product(self.aggregate(adjacency, x), lin.weight, bias, rooted)

    def project(self, x: Tensor, x_dst: Tensor | None, a: Attention, shows_weights: bool) -> Projected:
        together = not isinstance(a, Gat) and len(a.lins) == 2 and x_dst is x and all(map(rules.is_plain, a.lins))
        if together and rules.saves_rows(x):  # x is saved once
            h_src, h_dst = self._products(x, [lin.weight for lin in a.lins], [lin.bias for lin in a.lins])
            rows = self.with_terms(x, x_dst, Projected(h_src, h_dst), a, shows_weights)
        else:
            rows = self.with_terms(x, x_dst, self.whole.project(x, x_dst, a, shows_weights), a, shows_weights)
        return rows.marked(x, x_dst) if rules.saves_little(rows.h_src) else rows

    def with_terms(
        self, x: Tensor, x_dst: Tensor | None, rows: Projected, a: Attention, shows_weights: bool
    ) -> Projected:
        """GAT's terms as products of x, where x costs nothing more: h need then not be saved for them."""
        if not isinstance(a, Gat) or shows_weights or not rules.saves_little(rows.h_src):
            return rows
        if rows.h_dst is rows.h_src:
            terms = self._own_terms(x, a.lins[0], a.atts, rows.h_src)
            return rows if terms is None else rows._replace(terms=terms)
        found: list[Tensor | None] = []
        for own, lin, att, h in zip((x, x_dst), (a.lins[0], a.lins[-1]), a.atts, rows[:2], strict=True):
            made = None if own is None or h is None else self._own_terms(own, lin, (att,), h)
            if made is None and own is not None:
                return rows
            found.append(None if made is None else made[0])
        return rows._replace(terms=tuple(found))

    def node_terms(self, rows: Projected, a: Gat) -> tuple[Tensor, Tensor | None]:
        return self.whole.node_terms(rows, a)

    def _own_terms(self, x: Tensor, lin: Any, atts: tuple[Tensor, ...], h: Tensor) -> tuple[Tensor, ...] | None:
        """head_dots of h = lin(x), to the bit, with the gradients of x v^T, v = att W by head; None if x costs bits."""
        if not rules.is_plain(lin) or lin.bias is not None or not is_free(x):
            return None
        with torch.no_grad():
            value = stacked_dots(h, atts, self.whole.deterministic)
        made = known_product(x, weight_of_terms(lin.weight, *atts), value, source_of(x, self.saving))
        return made.split(atts[0].size(1), dim=1)

    def project_deferred(self, x: Deferred, a: Attention) -> Projected | None:
        return self.whole.project_deferred(x, a)

    def weigh(
        self, adjacency: Adjacency, rows: Projected, a: Attention, drop: Drop, shows_weights: bool
    ) -> tuple[Tensor, Tensor | None]:
        if shows_weights or rows.outliers or not rules.saves_little(rows.h_src):
            return self.whole.weigh(adjacency, rows, a, drop, shows_weights)
        setting = Setting(a.slope, drop, self.saving, a.averages)
        bias, graph, edges = a.early_bias(averaged=a.averages), adjacency.graph, adjacency.edges
        if not isinstance(a, Gat):
            assert rows.h_dst is not None
            return gatv2_sum(graph, edges, rows.h_src, rows.h_dst, a.atts[0], bias, setting), None
        att_src: Tensor | None = None
        att_dst: Tensor | None = None
        terms = rows.terms
        if terms is None:
            att_src, att_dst = a.atts
            with torch.no_grad():
                terms = self.whole.node_terms(rows, a)
        a_src, a_dst = terms
        assert a_src is not None
        given = (rows.h_src, rows.h_dst, (att_src, att_dst), (a_src, a_dst, a.edge_term), bias, setting)
        return gat_sum(graph, edges, *given), None

    def takes(self, x: Tensor, alone: bool = False) -> bool:
        return rules.saves_rows(x) or self.whole.takes(x, alone)

    def run(self, x: Tensor, epilogue: EpilogueSpec) -> Tensor:
        if not rules.saves_little(x):
            return self.whole.run(x, epilogue)
        drawn = epilogue.draw()
        if epilogue.is_relu:
            return epilogues.relu_dropout(x, drawn.p, drawn.seed)
        if epilogue.is_dropout:
            return epilogues.dropout(x, drawn.p, drawn.seed) if drawn.p > 0 else x
        out, mean, var = epilogues.run_epilogue(x.contiguous(), drawn, self.saving)
        epilogue.follow(mean, var, x.size(0))
        return out

    def defer(self, x: Tensor, epilogue: EpilogueSpec) -> Deferred | None:
        """If its result is linear in what is saved, given a bit per element."""
        linear = epilogue.act.name in ("identity", "relu", "leaky_relu")
        fits = rules.saves_little(x) and epilogues.fits(x, epilogue.norm.over, self.saving)
        if linear and fits and not has_outliers(x):
            return Deferred(x, epilogue, self.run, self.saving, None)
        return None

    def dropout(self, x: Tensor, p: float) -> Tensor:
        if not 0 < p <= 1 or not rules.saves_little(x) or x.dtype not in (torch.float32, torch.float64):
            return self.whole.dropout(x, p)
        return epilogues.dropout(x, p, draw_seed())
