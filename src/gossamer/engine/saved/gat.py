"""GAT's attention and weighted sum, saving few bits.

    a_src = <h, att_src>, a_dst = <h, att_dst>    p = softmax over row i's edges of leaky(a_src_j + a_dst_i + a_edge_e)
    w = dropout(p)                                out_i = sum over the edges e = (j -> i) of  w_e h_j + b,    per head

    dw_e = <dout_i, h_j>     dp = dropout(dw)     dh_j = sum over the edges out of j of  w_e dout_i  + da_src_j att_src
    db = column sums of dout                      datt_src = sum over the nodes of  da_src h,    datt_dst likewise

Saved are codes of h, and the terms a exactly; p and w are recomputed, bit for bit, from the terms and dropout's seed.
dw, hence da and dh, are linear in the decoded h: noise of mean zero. datt is not: da contains h, and no single rounding
of h gives its square without bias. On Cora (8 heads of 8) codes of h for both would bias datt by 20 % of its norm at 2
bits, by 0.9 % at 4 and by less than 0.02 % at 8. So datt gets **rows of its own**, rounded apart from the others:

    eight bits or more      the same codes
    else                    a second draw of h
    h = x W^T with x that is there anyway (input without gradient, or saved by an epilogue): a = x v^T, v = att W by
    head, is a product of its own, which gets da; nothing more is saved, and att has no gradient here

after which 400 trials, which can show 2 %, show no bias; one trial's noise is 40 % at 2 bits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ... import ops
from ...aggregate import Edges
from ...codecs import Codec, Codes
from ...graph import Graph
from ...ops.attention import edge_sums, gat_attention_backward, gat_attention_op
from ...ops.csr import Sparse
from ...ops.head_mean import head_mean_backward
from ...ops.spmm import row_sums
from ..gradient import whole
from ..noise import draw_seed, refuse_twice
from .policy import Saving

SPAN = 4096
"""Nodes whose weighted rows are summed by one thread."""


class Setting(NamedTuple):
    """What is no tensor: leaky's slope, (probability, seed) of the attention's dropout, what saves rows, and whether
    the sum averages its heads."""

    slope: float
    drop: tuple[float, int] | None
    saving: Saving
    averages: bool = False

    def dropped(self, p: Tensor) -> Tensor:
        """Dropout of what edges have; the gradient of that, too."""
        return p if self.drop is None else ops.dropout(p, *self.drop)

    def summed(self, graph: Graph, h: Tensor, w: Tensor, bias: Tensor | None) -> Tensor:
        """The weighted sum of rows, the same op as without a codec: the same bits."""
        return ops.head_mean_spmm(graph, h, w, bias) if self.averages else ops.spmm(graph, h, value=w, bias=bias)

    def sum_backward(
        self, edges: Edges, w: Tensor, h: Tensor, dout: Tensor, needs_dh: bool = True
    ) -> tuple[Tensor, Tensor | None]:
        """dw and dh of `summed`."""
        if self.averages:
            dh, dw = head_mean_backward(edges.t_rowptr, edges.t_col, edges.t_perm, w, h, dout, needs_dh)
            return dw, dh if needs_dh else None
        return edges.dots(dout, h, w.size(1)), edges.back(w, dout) if needs_dh else None


class DattRows(NamedTuple):
    """Rows h for datt: the tensors to save, and how the sums over the nodes of da h, per head, are made from them.

    One for each da: the rows are decoded once for all.
    """

    tensors: tuple[Tensor | None, ...]
    sums: Callable[[Sequence[Any], Sequence[Tensor]], list[Tensor]]


def gat_sum(
    graph: Graph, edges: Edges, h_src: Tensor, h_dst: Tensor | None, atts: tuple[Tensor | None, Tensor | None],
    terms: tuple[Tensor, Tensor | None, Tensor | None], bias: Tensor | None, setting: Setting,
) -> Tensor:  # fmt: skip
    """The sums [num_dst, heads * width] from rows of that width and atts [1, heads, width] of sources and destinations.

    [num_dst, width] where the setting averages heads. `terms` are a_src, a_dst (None without h_dst) and a_edge. The
    first two come without a gradient, which is computed here as that of rows and atts; or with one, and no atts.
    """
    other = None if h_dst is h_src else h_dst
    att_dst = None if h_dst is None else atts[1]
    a_src, a_dst, a_edge = terms
    return _GatSum.apply(h_src, other, atts[0], att_dst, a_edge, bias, a_src, a_dst, graph, edges, setting)


class _Needs(NamedTuple):
    """Which inputs of `_GatSum` need a gradient."""

    h_src: bool
    h_dst: bool
    att_src: bool
    att_dst: bool
    a_edge: bool
    bias: bool
    a_src: bool
    a_dst: bool
    graph: bool = False
    edges: bool = False
    setting: bool = False

    @property
    def weights(self) -> bool:
        """Whether backward needs the weights of edges: for all but the bias."""
        return any(self._replace(bias=False))


class _GatSum(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, h_src: Tensor, h_dst: Tensor | None, att_src: Tensor | None, att_dst: Tensor | None,
        a_edge: Tensor | None, bias: Tensor | None, a_src: Tensor, a_dst: Tensor | None, graph: Graph, edges: Edges,
        setting: Setting,
    ) -> Tensor:  # fmt: skip
        a_src, a_dst = a_src.contiguous(), None if a_dst is None else a_dst.contiguous()  # they may be parts of one
        p = ops.gat_attention(graph, a_src, a_dst, a_edge, setting.slope)
        out = setting.summed(graph, h_src, setting.dropped(p), bias)
        ctx.setting, ctx.apart, needs = setting, h_dst is not None, _Needs(*ctx.needs_input_grad)
        if needs.weights:
            codec = setting.saving.values
            codes = codec.encode(h_src, draw_seed(h_src))
            rows = _rows_for_atts(h_src, h_dst, (needs.att_src, needs.att_dst), codes, codec)
            groups = ((a_src, a_dst, a_edge), (att_src, att_dst), codes.tensors, *(r.tensors for r in rows.values()))
            ctx.edges, ctx.sizes, ctx.like = edges, [len(g) for g in groups], codes[1:]
            ctx.sums = {which: r.sums for which, r in rows.items()}
            ctx.save_for_backward(*(tensor for group in groups for tensor in group))
        return out

    @staticmethod
    def backward(ctx: Any, dout: Tensor) -> tuple[Tensor | None, ...]:
        needs = _Needs(*ctx.needs_input_grad)
        with torch.no_grad():
            dout = whole(dout)
            grads = _gradients(ctx, needs, dout) if needs.weights else _Gradients()
            dbias = ops.column_sums(dout) if needs.bias else None
        return refuse_twice(*grads._replace(bias=dbias), None, None, None)


class _Gradients(NamedTuple):
    h_src: Tensor | None = None
    h_dst: Tensor | None = None
    att_src: Tensor | None = None
    att_dst: Tensor | None = None
    a_edge: Tensor | None = None
    bias: Tensor | None = None
    a_src: Tensor | None = None
    a_dst: Tensor | None = None


def _gradients(ctx: Any, needs: _Needs, dout: Tensor) -> _Gradients:
    setting, edges, saved = ctx.setting, ctx.edges, iter(ctx.saved_tensors)
    terms, (att_src, att_dst), codes, *rows = (tuple(next(saved) for _ in range(n)) for n in ctx.sizes)
    p = gat_attention_op(edges.rowptr, edges.col, *terms, setting.slope, None, None)
    decoded = setting.saving.values.decode(Codes(codes, *ctx.like))
    dw, dh_src = setting.sum_backward(edges, setting.dropped(p), decoded, dout, needs.h_src)
    weights = (setting.slope, p, setting.dropped(dw))
    da_edge, da_dst = gat_attention_backward(edges.rowptr, edges.col, *terms, *weights)
    da_src = edge_sums(edges.t_rowptr, edges.t_perm, da_edge)
    if dh_src is not None and att_src is not None:
        by_head = dh_src.view(dh_src.size(0), p.size(1), -1).addcmul_(da_src.unsqueeze(2), att_src)
        if att_dst is not None and not ctx.apart:
            by_head.addcmul_(da_dst.unsqueeze(2), att_dst)
    dh_dst = (da_dst.unsqueeze(2) * att_dst).flatten(1) if needs.h_dst and att_dst is not None else None
    das: tuple[Tensor, Tensor] = (da_src, da_dst)
    datts: list[Tensor | None] = [None, None]
    for (which, sums), group in zip(ctx.sums.items(), rows, strict=True):
        for k, datt in zip(which, sums(group, [das[k] for k in which]), strict=True):
            datts[k] = datt
    da_edge = da_edge if needs.a_edge else None
    da_src, da_dst = da_src if needs.a_src else None, da_dst if needs.a_dst else None
    datt_src, datt_dst = datts
    return _Gradients(dh_src, dh_dst, datt_src, datt_dst, da_edge, None, da_src, da_dst)


def _rows_for_atts(
    h_src: Tensor, h_dst: Tensor | None, wanted: tuple[bool, bool], codes: Codes, codec: Codec
) -> dict[tuple[int, ...], DattRows]:
    """What datt_src, 0, and datt_dst, 1, are made from, as far as they are wanted; `codes` are those of dw."""
    found = {}
    own = tuple(k for k in (0, 1) if wanted[k] and (k == 0 or h_dst is None))
    if own:
        apart = getattr(codec, "bits", 8) < 8
        found[own] = _of_codes(codec, h_src, None if apart else codes)
    if h_dst is not None and wanted[1]:
        found[1,] = _of_codes(codec, h_dst)
    return found


def _of_codes(codec: Codec, h: Tensor, codes: Codes | None = None) -> DattRows:
    codes = codes or codec.encode(h, draw_seed(h))
    return DattRows(codes.tensors, partial(_sums_of_codes, codec, codes.shape, codes.dtype))


def _sums_of_codes(
    codec: Codec, shape: torch.Size, dtype: torch.dtype, saved: Sequence[Any], das: Sequence[Tensor]
) -> list[Tensor]:
    """Neighbour sums into one row for each `SPAN` nodes: a product by BLAS would depend on the number of threads."""
    h = codec.decode(Codes(tuple(saved), shape, dtype))
    return [row_sums(Sparse(*spans(len(h), h.device), da), h).sum(0).view(1, da.size(1), -1) for da in das]


def spans(nodes: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """CSR of a matrix that sums `SPAN` consecutive rows each."""
    ends = torch.arange(0, nodes + SPAN, SPAN, device=device).clamp(max=nodes)
    return ends, torch.arange(nodes, dtype=torch.int32, device=device)
