"""GAT's attention and weighted sum, keeping few bits.

    a_src = <h, att_src>, a_dst = <h, att_dst>    p = softmax over row i's edges of leaky(a_src_j + a_dst_i + a_edge_e)
    w = dropout(p)                                out_i = sum over the edges e = (j -> i) of  w_e h_j + b,    per head

    dw_e = <dout_i, h_j>     dp = dropout(dw)     dh_j = sum over the edges out of j of  w_e dout_i  + da_src_j att_src
    db = column sums of dout                      datt_src = sum over the nodes of  da_src h,    datt_dst likewise

Kept are codes of h, and the terms a exactly; p and w are made again, bit for bit, from the terms and dropout's seed.
dw, hence da and dh, are linear in the decoded h: noise of mean zero. datt is not: da contains h, and no single rounding
of h gives its square without bias. On Cora (8 heads of 8) codes of h for both would bias datt by 20 % of its norm at 2
bits, by 0.9 % at 4 and by less than 0.02 % at 8. So datt gets **rows of its own**, rounded apart from the others:

    eight bits or more      the same codes
    else                    a second draw of h
    h = x W^T with x that is there anyway (data, or kept by a chain): a = x v^T, v = att W by head, is a product of its
    own, which gets da; nothing more is kept, and att has no gradient here

after which 400 trials, which can show 2 %, show no bias; one trial's noise is 40 % at 2 bits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .. import ops
from ..codecs import Codec, Codes
from ..graph import Graph
from ..ops.attention import edge_sums_op, gat_attention_backward_op, gat_attention_op
from ..ops.head_mean import head_mean_backward_op
from ..ops.sddmm import sddmm_op
from ..ops.spmm import spmm_op
from .noise import draw_seed, refuse_twice
from .plan import Plan

SPAN = 4096
"""Nodes whose weighted rows are summed by one thread."""


class Setting(NamedTuple):
    """What is no tensor: leaky's slope, (probability, seed) of the attention's dropout, what keeps rows, and whether
    the sum averages its heads."""

    slope: float
    drop: tuple[float, int] | None
    plan: Plan
    averages: bool = False

    def summed(self, graph: Graph, h: Tensor, w: Tensor, bias: Tensor | None) -> Tensor:
        """The weighted sum of rows, the same op as without a codec: the same bits."""
        return ops.head_mean_spmm(graph, h, w, bias) if self.averages else ops.spmm(graph, h, value=w, bias=bias)


class Edges(NamedTuple):
    """A graph's structure and that of its transpose."""

    rowptr: Tensor
    col: Tensor
    t_rowptr: Tensor
    t_col: Tensor
    t_perm: Tensor

    @classmethod
    def of(cls, graph: Graph) -> Edges:
        t = graph.t()
        return cls(graph.rowptr, graph.col, t.rowptr, t.col, graph.t_perm)

    def dots(self, a: Tensor, b: Tensor, heads: int) -> Tensor:
        """<a_i, b_j> of each edge and head."""
        return sddmm_op(self.rowptr, self.col, a, b, heads, None, None, None)

    def back(self, w: Tensor, dout: Tensor) -> Tensor:
        """The sum of w_e dout_i over the edges out of each node."""
        return _sums(self.t_rowptr, self.t_col, ops.gather_rows(w, self.t_perm), dout)

    def of_sum(self, w: Tensor, h: Tensor, dout: Tensor, averages: bool, needs_dh: bool) -> tuple[Tensor, Tensor]:
        """dw and dh of `Setting.summed`; dh holds nothing where it is not needed."""
        if averages:
            dh, dw = head_mean_backward_op(self.t_rowptr, self.t_col, self.t_perm, w, h, dout, needs_dh)
            return dw, dh
        return self.dots(dout, h, w.size(1)), self.back(w, dout) if needs_dh else dout.new_empty(0)


def dropped(p: Tensor, setting: Setting) -> Tensor:
    """Dropout of what edges have; the gradient of that, too."""
    return p if setting.drop is None else ops.dropout(p, *setting.drop)


class Rows(NamedTuple):
    """Rows h for datt: the tensors to save, and how the sums over the nodes of da h, per head, are made from them.

    One for each da: the rows are decoded once for all.
    """

    tensors: tuple[Tensor | None, ...]
    sums: Callable[[Sequence[Any], Sequence[Tensor]], list[Tensor]]


def gat_sum(
    graph: Graph, h_src: Tensor, h_dst: Tensor | None, atts: tuple[Tensor | None, Tensor | None],
    terms: tuple[Tensor, Tensor | None, Tensor | None], bias: Tensor | None, setting: Setting,
) -> Tensor:  # fmt: skip
    """The sums [num_dst, heads * width] from rows of that width and atts [1, heads, width] of sources and destinations.

    [num_dst, width] where the setting averages heads. `terms` are a_src, a_dst (None without h_dst) and a_edge. The
    first two come without a gradient, which is computed here as that of rows and atts; or with one, and no atts.
    """
    other = None if h_dst is h_src else h_dst
    att_dst = None if h_dst is None else atts[1]
    return _GatSum.apply(h_src, other, atts[0], att_dst, terms[2], bias, *terms[:2], graph, setting)


WEIGH = (0, 1, 2, 3, 4, 6, 7)
"""The inputs of `_GatSum` whose gradients ask for the weights of edges: all but the bias."""


class _GatSum(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, h_src: Tensor, h_dst: Tensor | None, att_src: Tensor | None, att_dst: Tensor | None,
        a_edge: Tensor | None, bias: Tensor | None, a_src: Tensor, a_dst: Tensor | None, graph: Graph, setting: Setting,
    ) -> Tensor:  # fmt: skip
        a_src, a_dst = a_src.contiguous(), None if a_dst is None else a_dst.contiguous()  # they may be parts of one
        p = ops.gat_attention(graph, a_src, a_dst, a_edge, setting.slope)
        out = setting.summed(graph, h_src, dropped(p, setting), bias)
        ctx.setting, ctx.apart, ctx.weighs = setting, h_dst is not None, any(ctx.needs_input_grad[k] for k in WEIGH)
        if ctx.weighs:
            codes = setting.plan.values.encode(h_src, draw_seed(h_src))
            rows = _rows_for_atts(h_src, h_dst, ctx.needs_input_grad[2:4], codes, setting.plan.values)
            terms, atts = (a_src, a_dst, a_edge), (att_src, att_dst)
            groups = (Edges.of(graph), terms, atts, codes.tensors, *(r.tensors for r in rows.values()))
            ctx.sizes, ctx.like = [len(g) for g in groups], codes[1:]
            ctx.sums = {which: r.sums for which, r in rows.items()}
            ctx.save_for_backward(*(tensor for group in groups for tensor in group))
        return out

    @staticmethod
    def backward(ctx: Any, dout: Tensor) -> tuple[Tensor | None, ...]:
        with torch.no_grad():
            dout = dout.contiguous()
            grads = _gradients(ctx, dout) if ctx.weighs else (None,) * 7
            dbias = ops.column_sums(dout) if ctx.needs_input_grad[5] else None
        return *refuse_twice(*grads[:5], dbias, *grads[5:]), None, None


def _gradients(ctx: Any, dout: Tensor) -> tuple[Tensor | None, ...]:
    needs, setting, saved = ctx.needs_input_grad, ctx.setting, iter(ctx.saved_tensors)
    structure, terms, (att_src, att_dst), codes, *rows = (tuple(next(saved) for _ in range(n)) for n in ctx.sizes)
    edges = Edges(*structure)
    p = gat_attention_op(edges.rowptr, edges.col, *terms, setting.slope, None, None)
    decoded = setting.plan.values.decode(Codes(codes, *ctx.like))
    dw, dh = edges.of_sum(dropped(p, setting), decoded, dout, setting.averages, needs[0])
    dh_src = dh if needs[0] else None
    weights = (setting.slope, p, dropped(dw, setting))
    da_edge, da_dst = gat_attention_backward_op(edges.rowptr, edges.col, *terms, *weights)
    da_src = edge_sums_op(edges.t_rowptr, edges.t_perm, da_edge)
    if dh_src is not None and att_src is not None:
        by_head = dh_src.view(dh_src.size(0), p.size(1), -1).addcmul_(da_src.unsqueeze(2), att_src)
        if att_dst is not None and not ctx.apart:
            by_head.addcmul_(da_dst.unsqueeze(2), att_dst)
    dh_dst = (da_dst.unsqueeze(2) * att_dst).flatten(1) if needs[1] and att_dst is not None else None
    das, datts = (da_src, da_dst), [None, None]
    for (which, sums), group in zip(ctx.sums.items(), rows, strict=True):
        for k, datt in zip(which, sums(group, [das[k] for k in which]), strict=True):
            datts[k] = datt
    of_terms = (da_src if needs[6] else None, da_dst if needs[7] else None)
    return dh_src, dh_dst, *datts, da_edge if needs[4] else None, *of_terms


def _rows_for_atts(
    h_src: Tensor, h_dst: Tensor | None, wanted: tuple[bool, bool], codes: Codes, codec: Codec
) -> dict[tuple[int, ...], Rows]:
    """What datt_src, 0, and datt_dst, 1, are made from, as far as they are wanted; `codes` are those of dw."""
    found = {}
    own = tuple(k for k in (0, 1) if wanted[k] and (k == 0 or h_dst is None))
    if own:
        apart = getattr(codec, "bits", 8) < 8
        found[own] = _of_codes(codec, h_src, None if apart else codes)
    if h_dst is not None and wanted[1]:
        found[1,] = _of_codes(codec, h_dst)
    return found


def _of_codes(codec: Codec, h: Tensor, codes: Codes | None = None) -> Rows:
    codes = codes or codec.encode(h, draw_seed(h))
    return Rows(codes.tensors, partial(_sums_of_codes, codec, codes.shape, codes.dtype))


def _sums_of_codes(
    codec: Codec, shape: torch.Size, dtype: torch.dtype, saved: Sequence[Any], das: Sequence[Tensor]
) -> list[Tensor]:
    """Neighbour sums into one row for each `SPAN` nodes: a product by BLAS would depend on the number of threads."""
    h = codec.decode(Codes(tuple(saved), shape, dtype))
    ends = torch.arange(0, len(h) + SPAN, SPAN, device=h.device).clamp(max=len(h))
    every = torch.arange(len(h), dtype=torch.int32, device=h.device)
    return [_sums(ends, every, da, h).sum(0).view(1, da.size(1), -1) for da in das]


def _sums(rowptr: Tensor, col: Tensor, w: Tensor, x: Tensor) -> Tensor:
    return spmm_op(rowptr, col, w, None, None, x, None, None, None, None, None, None, None)
