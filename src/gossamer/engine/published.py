"""The engine of EXACT and block-wise EXACT as they were published: every op saves its own operand, nothing is shared.

Norms save their input, not x-hat; a convolution with a root saves its rows and their sums; input that needs no gradient
is saved again by every layer that reads it; an activation and a dropout save one bit each.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor

from .. import ops
from ..aggregate import Adjacency
from ..codecs import CodedRows
from ..ops.norm_act import Over
from . import rules
from .attention import Attention, Drop, Gat, Projected
from .engine import Engine
from .epilogue import IDENTITY, Deferred, EpilogueSpec, draw_seed
from .float32 import Float32
from .saved import epilogue as epilogues
from .saved.engine import Saved
from .saved.products import products
from .saved.source import encoded
from .saved.sums import needs_rows, weighted_sum


@final
@dataclass(frozen=True)
class Published(Engine):
    shared: Saved
    """The same codecs; attention saves as it does."""

    saves = True

    @property
    def whole(self) -> Float32:
        return self.shared.whole

    def node_terms(self, rows: Projected, a: Gat) -> tuple[Tensor, Tensor | None]:
        return self.whole.node_terms(rows, a)

    def product(self, x: Tensor, weight: Tensor, bias: Tensor | None, add: Tensor | None = None) -> Tensor:
        if not rules.saves_rows(x):
            return self.whole.product(x, weight, bias, add)
        x = x.contiguous()
        return products(x, [weight], [bias], encoded(x, self.shared.saving.rows), add)[0]

    def aggregate(
        self, adjacency: Adjacency, x: Tensor, bias: Tensor | None = None, add: Tensor | None = None
    ) -> Tensor:
        if not needs_rows(adjacency, x):
            return self.whole.aggregate(adjacency, x, bias, add)
        return weighted_sum(adjacency, x, self.shared.saving.values, bias, add)

    def sums_codes(self, x: CodedRows, out_channels: int, adjacency: Adjacency) -> bool:
        return self.shared.sums_codes(x, out_channels, adjacency)

    def convolve_plain(
        self, x: Tensor, adjacency: Adjacency, lin: Any, bias: Tensor | None, root: Any, x_dst: Tensor | None
    ) -> Tensor:
        rooted = self.rooted(root, x_dst)
        both = root is not None and rules.saves_little(x)
        if both or self.aggregates_first(x, lin.weight.size(0), adjacency):
            return self.product(self.aggregate(adjacency, x), lin.weight, bias, rooted)
        return self.aggregate(adjacency, self.product(x, lin.weight, None), bias, rooted)

    def project(self, x: Tensor, x_dst: Tensor | None, a: Attention, shows_weights: bool) -> Projected:
        return self.whole.project(x, x_dst, a, shows_weights)

    def project_deferred(self, x: Deferred, a: Attention) -> Projected | None:
        return self.whole.project_deferred(x, a)

    def weigh(
        self, adjacency: Adjacency, rows: Projected, a: Attention, drop: Drop, shows_weights: bool
    ) -> tuple[Tensor, Tensor | None]:
        return self.shared.weigh(adjacency, rows, a, drop, shows_weights)

    def takes(self, x: Tensor, alone: bool = False) -> bool:
        return self.shared.takes(x, alone)

    def run(self, x: Tensor, epilogue: EpilogueSpec) -> Tensor:
        if not rules.saves_little(x):
            return self.whole.run(x, epilogue)
        for part in _parts(epilogue):
            x = self._run_one(x, part)
        return x

    def _run_one(self, x: Tensor, part: EpilogueSpec) -> Tensor:
        drawn = part.draw()
        if part.is_relu:
            return epilogues.relu_dropout(x, drawn.p, drawn.seed)
        if part.is_dropout:
            return ops.dropout_saving_mask(x, drawn.p, drawn.seed)[0] if drawn.p > 0 else x
        out, mean, var = epilogues.plain_epilogue(x.contiguous(), drawn, self.shared.saving, raw=True)
        part.follow(mean, var, x.size(0))
        return out

    def defer(self, x: Tensor, epilogue: EpilogueSpec) -> Deferred | None:
        return None

    def dropout(self, x: Tensor, p: float) -> Tensor:
        if not 0 < p <= 1 or not rules.saves_little(x) or x.dtype not in (torch.float32, torch.float64):
            return self.whole.dropout(x, p)
        return ops.dropout_saving_mask(x, p, draw_seed())[0]


def _parts(epilogue: EpilogueSpec) -> list[EpilogueSpec]:
    """Norm, activation and dropout, each by itself; those that do nothing are left out."""
    norm, act, p, running, seed = epilogue
    parts = [EpilogueSpec(norm, running=running)] if norm.over != Over.NOTHING else []
    parts += [EpilogueSpec(act=act)] if act != IDENTITY else []
    return [*parts, EpilogueSpec(p=p, seed=seed)] if p > 0 or not parts else parts
