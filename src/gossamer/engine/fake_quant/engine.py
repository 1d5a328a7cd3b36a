"""Training for integer inference: the float32 engine with quantisers where the integer engine will have codes.

`Quantising` has what every plan of sites needs. `FakeQuant` is the fused plan, and published.py the other one. Here a
site is where a tensor of codes will be written; nothing else is rounded. With X^ the rounded X:

    product      X^ W^ + b
    convolve     multiply first    s_dst A (s_src X^ W^)^ + b + X^ W_r^       message: (s_src h)^, one per node
                 aggregate first   (s_dst A (s_src X)^)^ W^ + b + X^ W_r^     for fewer inputs (see sums_first)
    attend       h = (X^ W^)^, logits from h and rounded attention vectors, weights of edges as inference has them

s are factors of nodes: GCN's 1 / sqrt(d), a mean's 1 / d. As they are not part of the edges, an edge has no value to be
rounded (the separable plan). Weights of edges, where a graph has any, are rounded themselves. Norms and activations run
in float32: inference folds them into the factor by which a sum becomes codes. Weights are symmetric, with a scale per
output. Rows of nodes that are protected (protection.py) pass unrounded.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, NamedTuple, final

import torch
from torch import Tensor, nn

from ... import ops
from ...aggregate import Adjacency
from ...codecs import CodedRows
from ...state import ModelState, facts
from .. import rules
from ..attention import Attention, Drop, Gat, Projected
from ..engine import Engine
from ..epilogue import Deferred, EpilogueSpec
from ..float32 import Float32, head_dots
from .attention import integer_weights
from .protection import BATCH, RANK, degree_rank, protected, rank_of
from .quantiser import Quantiser
from .settings import DegreeQuant, Quantised

SITES = "quantisers"
"""The name of the child that holds a module's quantisers, in it and in its state_dict."""
WIDE = 4.0
"""Times the median factor of a model's columns: beyond it, a column's weights have a scale of their own."""
FIXED_POINT = 256
"""Steps of 1 in which the weight of a node's own row is rounded."""
DROPPED = "dropped"
"""The fact about a tensor: the dropout that it has passed."""


@final
class Sites(nn.Module):
    """The quantisers of one module; and how often it ran in training, by which masks are drawn."""

    forwards: Tensor

    def __init__(self, setting: Quantised, columns: int | None, names: tuple[str, ...]) -> None:
        super().__init__()
        self.passes = False
        """Round no weights."""
        for name in names:
            own = dataclasses.replace(setting, bits=8, observer="extremes") if name == "edges" else setting
            self.add_module(name, Quantiser(own, columns if name == "input" else None))
        self.register_buffer("forwards", torch.zeros((), dtype=torch.int64))

    def __getitem__(self, name: str) -> Quantiser:
        return self._modules[name]  # type: ignore[return-value]


class Masks(NamedTuple):
    """The protected sources and destinations of one forward; None: none is."""

    src: Tensor | None = None
    dst: Tensor | None = None


@dataclass(frozen=True, eq=False)
class Quantising(Engine):
    """An engine with quantisers at sites: what all plans of sites share."""

    leaves_small_to_pyg = False

    setting: Quantised
    sites: Sites
    model: ModelState
    name: str
    """Of the module, by which masks per layer are told apart."""
    whole: Float32 = dataclasses.field(default_factory=Float32)

    # Sites ------------------------------------------------------------------------------------------------------

    def rounded(
        self, site: str, x: Tensor, row: Tensor | None = None, keep: Tensor | None = None, columns: Tensor | None = None
    ) -> Tensor:
        """x, times `row`, at a site; `columns`: what its columns are divided by, if not the site's own."""
        quantiser = self.sites[site]
        if quantiser.columns is not None and quantiser.training and not x.requires_grad:
            quantiser.equalise(x)
        return quantiser(x, row, keep, facts.recall(x, DROPPED) or 0.0, columns)

    def weight(self, weight: Tensor, columns: Tensor | None = None) -> Tensor:
        """A weight rounded, [outputs, inputs]; behind a site whose columns were divided by `columns`.

        Columns that were divided by much are rounded apart, with a scale of their own: the others would else be lost
        in the step of the largest.
        """
        if self.sites.passes:
            return weight
        exact = weight.detach()
        if columns is None:
            return weight + (symmetric(exact, self.setting.bits) - exact)
        folded, wide = exact * columns, wide_columns(columns)
        rounded = torch.where(wide, 0.0, folded), torch.where(wide, folded, 0.0)
        return weight + (sum(symmetric(part, self.setting.bits) for part in rounded) / columns - exact)

    def _columns(self, site: str = "input") -> Tensor | None:
        """The factors of the site's columns, where there is need for them."""
        columns = self.sites[site].columns
        return None if columns is None or bool((columns == 1).all()) else columns

    def masks(self, adjacency: Adjacency) -> Masks:
        """Drawn anew in each training forward."""
        setting = self.setting
        if not self.sites.training or not isinstance(setting, DegreeQuant):
            return Masks()
        forward = int(self.sites.forwards)
        self.sites.forwards += 1
        if setting.high == 0:
            return Masks()
        graph, drawn = adjacency.graph, self.model.drawn
        rank = rank_of(graph, drawn.get(BATCH), drawn.get(RANK))
        seed = self.model.seed if setting.mask == "forward" else self.model.seed ^ hash_of(self.name)
        keep = protected(rank, setting.low, setting.high, seed, forward)
        if graph.block is not None or graph.num_src == graph.num_dst:
            return Masks(keep, keep[: graph.num_dst])
        own = degree_rank(graph.degree)  # destinations of their own
        return Masks(keep, protected(own, setting.low, setting.high, seed ^ 1, forward))

    # Parts of layers --------------------------------------------------------------------------------------------

    def rounded_root(
        self, root: Any, x_dst: Tensor | None, x: Tensor, inner: Tensor, keep_dst: Tensor | None
    ) -> Tensor | None:
        """root(x_dst) from what the input site rounded, or from x_dst rounded there."""
        if root is None or x_dst is None:
            return None
        if not rules.is_plain(root):
            return root(x_dst)
        same = x_dst.data_ptr() == x.data_ptr() and x_dst.shape[1:] == x.shape[1:]
        rows = inner[: len(x_dst)] if same else self.rounded("input", x_dst, None, keep_dst)
        return self.whole.product(rows, self.weight(root.weight, self._columns()), root.bias)

    def projected(
        self, site: str, x: Tensor, x_dst: Tensor | None, attention: Attention, masks: Masks, num_dst: int
    ) -> Projected:
        """The rows that attention weighs, rounded at a site: h = (x^ W^)^."""
        h = self._projected(site, attention.lins[0], x, masks.src)
        if x_dst is x and len(attention.lins) == 1:
            return Projected(h, h).to_first(num_dst)
        h_dst = None if x_dst is None else self._projected(site, attention.lins[-1], x_dst[:num_dst], masks.dst)
        return Projected(h, h_dst)

    def _projected(self, site: str, lin: Any, x: Tensor, keep: Tensor | None) -> Tensor:
        if not rules.is_plain(lin):
            return self.rounded(site, lin(x), None, keep)
        inner = self.rounded("input", x, None, keep)
        h = self.whole.product(inner, self.weight(lin.weight, self._columns()), lin.bias)
        return self.rounded(site, h, None, keep)

    def terms(self, rows: Projected, a: Gat) -> tuple[Tensor, Tensor | None]:
        """<h, att> of sources and destinations with rounded attention vectors."""
        atts = tuple(self.attention_vector(att) for att in a.atts)
        if rows.h_dst is rows.h_src:
            a_src, a_dst = head_dots(rows.h_src, atts)
            return a_src, a_dst
        (a_src,) = head_dots(rows.h_src, atts[:1])
        return a_src, None if rows.h_dst is None else head_dots(rows.h_dst, atts[1:])[0]

    def attention_vector(self, att: Tensor) -> Tensor:
        """[1, heads, width], rounded with a scale per head."""
        flat = att.detach()[0]
        return att if self.sites.passes else att + (symmetric(flat, self.setting.bits) - flat)

    def products_of(self, x: Deferred, weights: Any, biases: Any) -> None:
        return None

    def sums_codes(self, x: CodedRows, out_channels: int, adjacency: Adjacency) -> bool:
        return False

    def project(self, x: Tensor, x_dst: Tensor | None, a: Attention, shows_weights: bool) -> Projected:
        raise AssertionError("`attend` projects by itself")

    def project_deferred(self, x: Deferred, a: Attention) -> None:
        return None

    # Epilogues --------------------------------------------------------------------------------------------------

    def takes(self, x: Tensor, alone: bool = False) -> bool:
        return self.whole.takes(x, alone)

    def run(self, x: Tensor, epilogue: EpilogueSpec) -> Tensor:
        return _noted(self.whole.run(x, epilogue), epilogue.p)

    def defer(self, x: Tensor, epilogue: EpilogueSpec) -> None:
        return None

    def dropout(self, x: Tensor, p: float) -> Tensor:
        return _noted(self.whole.dropout(x, p), p)


@final
class FakeQuant(Quantising):
    """The sites that the integer engine has codes at."""

    # Products ---------------------------------------------------------------------------------------------------

    def product(self, x: Tensor, weight: Tensor, bias: Tensor | None, add: Tensor | None = None) -> Tensor:
        x = self.rounded("input", x)
        return self.whole.product(x, self.weight(weight, self._columns()), bias, add)

    def aggregate(
        self, adjacency: Adjacency, x: Tensor, bias: Tensor | None = None, add: Tensor | None = None
    ) -> Tensor:
        keep, _ = self.masks(adjacency)
        return self.whole.aggregate(adjacency, self.rounded("input", x, None, keep), bias, add)

    def convolve(
        self, x: Any, adjacency: Adjacency, lin: Any, bias: Tensor | None, root: Any = None, x_dst: Any = None,
        inside: bool = False,
    ) -> Tensor:  # fmt: skip
        if not adjacency.is_linear and rules.is_plain(lin) and not inside:  # a maximum of codes is a code
            x, x_dst = tensors_of(x, x_dst)
            return self.convolve_plain(x, adjacency, lin, bias, root, x_dst)
        return super().convolve(x, adjacency, lin, bias, root, x_dst, inside)

    def convolve_plain(
        self, x: Tensor, adjacency: Adjacency, lin: Any, bias: Tensor | None, root: Any, x_dst: Tensor | None
    ) -> Tensor:
        keep, keep_dst = self.masks(adjacency)
        first = not adjacency.is_linear or sums_first(lin.weight, root is not None)
        row, summed = separated(adjacency)
        summed = with_fixed_point(summed)
        inner = self.rounded("input", x, row if first else None, keep)
        rooted = self.rounded_root(root, x_dst, x, inner, keep_dst)
        columns = self._columns()
        summed = self._with_rounded_values(summed)
        if first:
            sums = self.whole.aggregate(summed, inner)
            if adjacency.is_linear:
                sums = self.rounded("aggregate", sums, None, keep_dst, columns)
            return self.whole.product(sums, self.weight(lin.weight, columns), bias, rooted)
        h = self.whole.product(inner, self.weight(lin.weight, columns), None)
        return self.whole.aggregate(summed, self.rounded("message", h, row, keep), bias, rooted)

    def _with_rounded_values(self, adjacency: Adjacency) -> Adjacency:
        """Weights of edges rounded, and with them that of a node's own row; those of a layer's factors in one."""
        value = adjacency.graph.value if adjacency.value is None else adjacency.value
        if value is None:
            return adjacency
        own, count = adjacency.diagonal, value.numel()
        joined = value if own is None or own.numel() == 1 else torch.cat([value, own.to(value.dtype)])
        rounded = self.rounded("edges", joined.unsqueeze(1)).squeeze(1)
        found = dataclasses.replace(adjacency, value=rounded[:count])
        return found if joined is value else found.with_diagonal(rounded[count:])

    # Attention --------------------------------------------------------------------------------------------------

    def attend(
        self, x: Any, x_dst: Any, adjacency: Adjacency, attention: Attention, shows_weights: bool = False
    ) -> tuple[Tensor, Tensor | None]:
        masks, num_dst = self.masks(adjacency), adjacency.graph.num_dst
        x, x_dst = tensors_of(x, x_dst)
        drop = attention.draw_dropout()
        rows = self.projected("message", x, x_dst, attention, masks, num_dst)
        out, weights = self.weigh(adjacency, rows, attention, drop, shows_weights)
        return self._finish(attention, out, None if x_dst is None else x_dst[:num_dst], None), weights

    def weigh(
        self, adjacency: Adjacency, rows: Projected, a: Attention, drop: Drop, shows_weights: bool
    ) -> tuple[Tensor, Tensor | None]:
        graph = adjacency.graph
        if not isinstance(a, Gat):
            return self.whole.weigh(adjacency, rows, a, drop, shows_weights)
        a_src, a_dst = self.terms(rows, a)
        p = ops.gat_attention(graph, a_src, a_dst, a.edge_term, a.slope)
        with torch.no_grad():
            exact = integer_weights(graph, a_src, a_dst, a.edge_term, a.slope)
            off = exact - p
        p = p + off
        return a.summed(graph, rows.h_src, p, drop)


def sums_first(weight: Tensor, with_root: bool) -> bool:
    """(A x) W^T in place of A (x W^T), by widths alone: the same in training, in evaluation and in the integer engine.

    Beside the product of a root, W may be square: both products are one step then, and nothing between is in float32.
    """
    outputs, inputs = weight.shape
    return inputs < outputs or (with_root and inputs == outputs)


def symmetric(weight: Tensor, bits: int) -> Tensor:
    """Each row rounded to 2^b - 1 levels between plus and minus its largest magnitude."""
    scale = symmetric_scale(weight, bits)
    return (weight / scale).round() * scale


def symmetric_scale(weight: Tensor, bits: int) -> Tensor:
    """[rows, 1]."""
    largest = weight.abs().amax(1, keepdim=True)
    return torch.where(largest > 0, largest, 1.0) / (2 ** (bits - 1) - 1)


def wide_columns(columns: Tensor) -> Tensor:
    """Those that were divided by much more than most."""
    return columns > WIDE * columns.median()


def separated(adjacency: Adjacency) -> tuple[Tensor | None, Adjacency]:
    """The factors of sources, and the adjacency without them: A x = A' (factor x)."""
    row, diagonal = adjacency.src_scale, adjacency.diagonal
    weighted = adjacency.value is not None or adjacency.graph.value is not None
    if row is None or weighted:
        return None, adjacency
    if diagonal is not None:
        own = row[: diagonal.numel()] if diagonal.numel() > 1 else row
        diagonal = torch.where(own > 0, diagonal / own, 0.0)
    return row, dataclasses.replace(adjacency, src_scale=None, diagonal=diagonal)


def with_fixed_point(adjacency: Adjacency) -> Adjacency:
    """GIN's 1 + eps in steps of 1 / 256, as the integer engine has it."""
    own = adjacency.diagonal
    if own is None or own.numel() != 1:
        return adjacency
    rounded = (own.detach() * FIXED_POINT).round() / FIXED_POINT
    return adjacency.with_diagonal(own + (rounded - own.detach()))


def hash_of(name: str) -> int:
    """A number of 62 bits for a name, the same in every process."""
    value = 0
    for byte in name.encode():
        value = (value * 1099511628211 ^ byte) % 2**62
    return value


def _noted(out: Tensor, p: float) -> Tensor:
    if p > 0:
        facts.note(out, DROPPED, p)
    return out


def tensors_of(x: Any, x_dst: Any) -> tuple[Any, Any]:
    """Both as tensors; one if they are the same codes."""
    made = x.decode() if isinstance(x, CodedRows) else x
    return made, made if x_dst is x else x_dst.decode() if isinstance(x_dst, CodedRows) else x_dst
