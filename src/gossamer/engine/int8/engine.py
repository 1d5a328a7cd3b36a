"""The engine that multiplies in int8, forward and backward (Tango), on top of one for everything else.

Rows are codes with one scale per node, made by whoever has the float row in a register: products, sums and epilogues
write codes. Beneath it stands the float32 engine, or one that saves few bits: then the codes of forward are not saved,
and what the bits decode to is quantised again for dW.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, final

import torch
from torch import Tensor

from ...aggregate import Adjacency, wire
from ...aggregate.messages import Messages
from ...codecs import CodedRows
from ...graph.halo import Halo
from ...ops.int8_linear import MAX_COLUMNS
from ...ops.norm_act import Epilogue
from .. import rules
from ..attention import Attention, Drop, Gat, Projected
from ..engine import Engine
from ..epilogue import Deferred, EpilogueSpec
from ..float32 import Float32
from ..gradient import QTensor, answers, request_of, whole
from ..outliers import Split, has_outliers, split_of
from ..published import Published
from ..saved.engine import Saved
from ..saved.policy import packing_of
from ..settings import Int8
from .entry import Entry
from .gat import Setting, gat_sum
from .gatv2 import gatv2_sum
from .precision import Watch
from .products import PLAIN, convolve, products, project


class _FetchedRows(torch.autograd.Function):
    """Int8 rows of [own | halo]; gradients of the halo's rows go back to their owners."""

    @staticmethod
    def forward(ctx: Any, h: QTensor, halo: Halo, messages: Messages) -> Tensor:
        ctx.halo, ctx.messages = halo, messages
        assert h.rows is not None
        return QTensor({PLAIN: wire.codes(halo, h.rows[PLAIN], messages)()}, {PLAIN: None})

    @staticmethod
    def backward(ctx: Any, dboth: Tensor) -> tuple[Tensor, None, None]:
        return wire.back(ctx.halo, whole(dboth), ctx.messages), None, None


@final
@dataclass(frozen=True)
class Int8Engine(Engine):
    setting: Int8
    beneath: Float32 | Saved | Published
    watch: Watch | None = None
    """Measures rounding in the first steps, where the recipe leaves the precision to be found."""

    @property
    def floats(self) -> Engine:
        return self.beneath

    @property
    def saves(self) -> bool:  # type: ignore[override]
        return self.beneath.saves

    @property
    def defers(self) -> bool:  # type: ignore[override]
        return not isinstance(self.beneath, Published)

    def settled(self, in_float32: bool) -> Engine:
        """The engine after the precision has been found."""
        return self.beneath if in_float32 else replace(self, watch=None)

    def _watching(self) -> Watch | None:
        return self.watch if torch.is_grad_enabled() else None

    def _entry(self, x: Tensor) -> Entry:
        """How rows of x come in: saved in few bits if the engine beneath has bits for them."""
        saving = self.beneath.saving if isinstance(self.beneath, Saved) and rules.saves_little(x) else None
        if saving is not None and packing_of(saving.rows, x.size(1), x.device) is None:
            saving = None
        return Entry(self.setting, None, saving, None, self._watching())

    def _entry_of(self, x: Deferred, epilogue: Epilogue) -> Entry:
        return Entry(self.setting, epilogue, x.saving, x.asked, self._watching())

    def _in_int8(self, *lins: Any) -> bool:
        return all(rules.is_plain(lin) and isinstance(self.of(lin), Int8Engine) for lin in lins)

    # Products ---------------------------------------------------------------------------------------------------

    def product(self, x: Tensor, weight: Tensor, bias: Tensor | None, add: Tensor | None = None) -> Tensor:
        if not rules.fits_int8(x) or weight.dtype != torch.float32:
            return self.beneath.product(x, weight, bias, add)
        return self._products(x, [weight], [bias], add)[0]

    def _products(
        self, x: Tensor, weights: Sequence[Tensor], biases: Sequence[Tensor | None], add: Tensor | None = None
    ) -> list[Tensor]:
        """x W_k^T + b_k for each k, the first plus `add`; outlier columns of x in float32."""
        split = split_of(x)
        if split is None:
            return list(products(x, weights, biases, self._entry(x), add=add)[: len(weights)])
        rests = [split.ordinary_of(weight) for weight in weights]
        made = products(split.ordinary, rests, biases, self._entry(split.ordinary), add=add)
        return [self._plus(out, split.outliers, split, weight) for out, weight in zip(made, weights, strict=False)]

    def _plus(self, out: Tensor, outliers: Tensor, split: Split, weight: Tensor) -> Tensor:
        """out + outliers W_o^T."""
        return self.beneath.product(outliers, split.outliers_of(weight), None, out)

    def products_of(
        self, x: Deferred, weights: Sequence[Tensor], biases: Sequence[Tensor | None]
    ) -> tuple[Tensor, ...] | None:
        return x.quantise(lambda given, epilogue: products(given, weights, biases, self._entry_of(x, epilogue)))

    def aggregate(
        self, adjacency: Adjacency, x: Tensor, bias: Tensor | None = None, add: Tensor | None = None
    ) -> Tensor:
        return self.beneath.aggregate(adjacency, x, bias, add)

    def aggregates_first(self, x: Tensor, out_channels: int, adjacency: Adjacency) -> bool:
        return self.beneath.aggregates_first(x, out_channels, adjacency)

    def sums_codes(self, x: CodedRows, out_channels: int, adjacency: Adjacency) -> bool:
        """The sum is float32, and is quantised once as the input of the product."""
        return self.beneath.sums_codes(x, out_channels, adjacency)

    def convolve_plain(
        self, x: Tensor, adjacency: Adjacency, lin: Any, bias: Tensor | None, root: Any, x_dst: Tensor | None
    ) -> Tensor:
        if not rules.fits_int8(x) or not self._in_int8(lin):
            return self.beneath.convolve_plain(x, adjacency, lin, bias, root, x_dst)
        together = root is not None and x_dst is x and self._in_int8(root)
        lins, rooted = ([lin, root], None) if together else ([lin], self.rooted(root, x_dst))
        weights = [each.weight for each in lins]
        aggregate_first = self.aggregates_first(x, lin.weight.size(0), adjacency)
        if adjacency.is_fixed:
            first: Literal["aggregate", "multiply"] = "aggregate" if aggregate_first else "multiply"
            biases = [bias, *(each.bias for each in lins[1:])]
            return self._convolved(x, adjacency, weights, biases, first, rooted)
        if aggregate_first:
            rooted = self.rooted(root, x_dst) if together else rooted
            return self.product(self.aggregate(adjacency, x), lin.weight, bias, rooted)
        biases = [None, *(each.bias for each in lins[1:])]
        h, *own = self._products(x, weights, biases)
        return self.aggregate(adjacency, h, bias, own[0] if own else rooted)

    def _convolved(
        self, x: Tensor, adjacency: Adjacency, weights: Sequence[Tensor], biases: Sequence[Tensor | None],
        first: Literal["aggregate", "multiply"], rooted: Tensor | None,
    ) -> Tensor:  # fmt: skip
        """The whole layer; of outlier columns of x the neighbour sum, which is thin, and the product are float32."""
        split = split_of(x)
        if split is None:
            return convolve(x, adjacency, weights, biases, first, self._entry(x), add=rooted)[0]
        rests = [split.ordinary_of(weight) for weight in weights]
        out, *_ = convolve(split.ordinary, adjacency, rests, biases, first, self._entry(split.ordinary), add=rooted)
        out = self._plus(out, adjacency.product(split.outliers), split, weights[0])
        return self._plus(out, split.outliers, split, weights[1]) if len(weights) > 1 else out

    def convolve_deferred(
        self, x: Deferred, adjacency: Adjacency, lin: Any, bias: Tensor | None, root: Any
    ) -> Tensor | None:
        lins = [lin] if root is None else [lin, root]
        if not adjacency.is_fixed or not self._in_int8(*lins):
            return self.beneath.convolve_deferred(x, adjacency, lin, bias, root)
        weights, biases = [each.weight for each in lins], [bias, *(each.bias for each in lins[1:])]
        waits = None if adjacency.graph.halo is not None else x.waits

        def consume(given: list[Tensor], epilogue: Epilogue) -> tuple[Tensor, ...]:
            entry = self._entry_of(x, epilogue)
            return convolve(given, adjacency, weights, biases, "multiply", entry, waits=waits is not None)

        out = x.quantise(consume)[0]
        return out if waits is None else waits(out)

    # Attention --------------------------------------------------------------------------------------------------

    def _sums(self, h: Tensor, shows_weights: bool = False) -> bool:
        """Whether rows are summed in int8; not where they are saved in fewer bits."""
        return not shows_weights and not self.beneath.saves and rules.fits_int8(h)

    def _projects(self, x: Tensor, a: Attention, shows_weights: bool = False) -> bool:
        """Whether GAT's one projection of x is made as int8 rows that only its attention reads."""
        lin, columns = a.lins[0], a.heads * a.width
        if not isinstance(a, Gat) or len(a.lins) > 1 or a.res is not None or self._watching() is not None:
            return False
        plain = self._in_int8(lin) and lin.bias is None and lin.weight.dtype == torch.float32
        return (
            plain
            and x.size(0) * columns >= rules.least.int8
            and columns <= MAX_COLUMNS
            and self._sums(x, shows_weights)
        )

    def _projected(self, x: Tensor | list[Tensor], a: Attention, entry: Entry) -> tuple[Tensor, ...]:
        att = torch.cat(list(a.atts)).flatten(1)
        return project(x, a.lins[0].weight, att, a.heads, entry)

    def project(self, x: Tensor, x_dst: Tensor | None, a: Attention, shows_weights: bool) -> Projected:
        if x_dst is x and self._projects(x, a, shows_weights) and not has_outliers(x):
            h, terms, *_ = self._projected(x, a, Entry(self.setting))
            return Projected(h, h, tuple(terms))
        if len(a.lins) == 2 and x_dst is x and not isinstance(a, Gat) and self._in_int8(*a.lins) and rules.fits_int8(x):
            given = ([lin.weight for lin in a.lins], [lin.bias for lin in a.lins])
            h_src, h_dst = self._products(x, *given)
            return Projected(h_src, h_dst, outliers=has_outliers(x))
        rows = self.beneath.project(x, x_dst, a, shows_weights)
        return rows.marked(x, x_dst) if rules.fits_int8(rows.h_src) else rows

    def project_deferred(self, x: Deferred, a: Attention) -> Projected | None:
        if self._projects(x.x, a):
            h, terms = x.quantise(lambda given, drawn: self._projected(given, a, self._entry_of(x, drawn)))
            return Projected(h, h, tuple(terms))
        lins = [*a.lins, *([] if a.res is None else [a.res])]
        if self._in_int8(*lins) and rules.fits_int8(x.x):
            made = self.products_of(x, [lin.weight for lin in lins], [lin.bias for lin in lins])
            assert made is not None
            return Projected(made[0], made[len(a.lins) - 1], None, None if a.res is None else made[-1])
        return None if self._sums(x.x) else self.beneath.project_deferred(x, a)

    def _fetched(
        self, adjacency: Adjacency, rows: Projected, a: Attention, shows_weights: bool
    ) -> tuple[Adjacency, Projected]:
        adjacency, found = super()._fetched(adjacency, rows, a, shows_weights)
        if isinstance(rows.h_src, QTensor):
            return adjacency, found._replace(h_dst=found.h_src)  # whose terms have a gradient of their own
        if found.terms is not None and self._sums(found.h_src) and isinstance(self.beneath, Float32):
            a_src, a_dst = found.terms  # their gradient is computed there, as that of rows and atts
            assert a_src is not None
            found = found._replace(terms=(a_src.detach(), None if a_dst is None else a_dst.detach()))
        return adjacency, found

    def fetched_rows(self, halo: Halo, h: Tensor, messages: Messages) -> Tensor:
        return (
            _FetchedRows.apply(h, halo, messages) if isinstance(h, QTensor) else super().fetched_rows(halo, h, messages)
        )

    def weigh(
        self, adjacency: Adjacency, rows: Projected, a: Attention, drop: Drop, shows_weights: bool
    ) -> tuple[Tensor, Tensor | None]:
        if rows.outliers or not self._sums(rows.h_src, shows_weights) or not isinstance(self.beneath, Float32):
            return self.beneath.weigh(adjacency, rows, a, drop, shows_weights)
        graph, edges = adjacency.graph, adjacency.edges if torch.is_grad_enabled() else None
        setting, bias = Setting(a.slope, drop, self.setting), a.early_bias()
        if not isinstance(a, Gat):
            assert rows.h_dst is not None
            return gatv2_sum(graph, edges, rows.h_src, rows.h_dst, a.atts[0], bias, setting), None
        terms = rows.terms
        if terms is None:
            with torch.no_grad():
                terms = self.beneath.node_terms(rows, a)
        a_src, a_dst = terms
        assert a_src is not None
        att_src, att_dst = a.atts
        given = (rows.h_src, rows.h_dst, (att_src, att_dst), (a_src, a_dst, a.edge_term), bias, setting)
        return gat_sum(graph, edges, *given), None

    # Epilogues --------------------------------------------------------------------------------------------------

    def takes(self, x: Tensor, alone: bool = False) -> bool:
        """From where rows are quantised: torch's norms depend on the number of threads."""
        return (not alone and rules.is_dense(x, rules.least.int8)) or self.beneath.takes(x, alone)

    def run(self, x: Tensor, epilogue: EpilogueSpec) -> Tensor:
        return self.beneath.run(x, epilogue)

    def defer(self, x: Tensor, epilogue: EpilogueSpec) -> Deferred | None:
        deferred = self.beneath.defer(x, epilogue)
        if deferred is not None:
            deferred.asked = request_of(x)
            return deferred
        fits = rules.fits_int8(x) and x.dtype == torch.float32 and not (self.saves and rules.saves_little(x))
        if not fits or has_outliers(x):
            return None
        asked = request_of(x) if answers(epilogue.norm.over) else None
        return Deferred(x, epilogue, self.beneath.run, None, asked)

    def dropout(self, x: Tensor, p: float) -> Tensor:
        return self.beneath.dropout(x, p)
