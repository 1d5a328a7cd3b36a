"""GAT's and GATv2's attention and weighted sum, on int8 rows both ways.

    p = softmax over row i's edges of  leaky(a_src_j + a_dst_i + a_edge_e)        a = <h, att>                     (GAT)
    p = softmax over row i's edges of  <att, leaky(h_j + g_i)>                                                   (GATv2)
    w = dropout(p)        out_i = sum over the edges e = (j -> i) of  w_e h^_j + b,    per head;  h^ the int8 rows of h

Everything but the sum is float32: logits come from h itself, as an error e of one multiplies a weight by exp(e). With
Q(.) rounding rows stochastically, once for both its readers, and scales as in ops/spmm_int8.py and ops/sddmm_int8.py,

    G = Q(dout)           dw_e = <G_i, h^_j>          dh_j = sum over the edges out of j of  w_e G_i  + the logits' part

the sum's scales are those of G alone, dw's are those of G and of h^. All gradients are linear in G, hence right on
average. The codes are those of forward, and h passes rounding as if it were not there.

Kept are the rows, N (D + 4) bytes, in place of h, and p: one number per edge and head, whose softmax costs more time
than the sum.

    GAT     And the terms a. datt = sum of da h^, where da h would be exact: off by 0.5 % of its norm at initialisation,
            by 1 % when trained (digits, 8 heads of 8).
    GATv2   The slopes of leaky are those at h^_j + g^_i. Where |h_j + g_i| is less than a step this may be the other
            slope; activations/gatv2.py says what that does to dg.

Where the recipe's `activations` has a codec, the layers take the few-bit sums of activations/ instead: their codes are
smaller than these rows, and int8 is for the projections alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .. import ops
from ..activations.attention import SPAN, Edges
from ..activations.noise import refuse_twice
from ..graph import Graph
from ..ops.attention import edge_sums_op, gat_attention_backward_op
from ..ops.edge_softmax import edge_softmax_backward_op
from ..ops.gatv2 import gatv2_backward_op
from .plan import Int8
from .rows import Rows, Seeds, quantised

_sum = ops.OPS["spmm_int8"]
Grads = tuple[Tensor | None, ...]


class Setting(NamedTuple):
    """What is no tensor: leaky's slope, (probability, seed) of the attention's dropout, and how rows are rounded."""

    slope: float
    drop: tuple[float, int] | None
    how: Int8

    def dropped(self, p: Tensor) -> Tensor:
        """Dropout of what edges have; the gradient of that, too."""
        return p if self.drop is None else ops.dropout(p, *self.drop)


def gat_sum(
    graph: Graph, h_src: Tensor, h_dst: Tensor | None, atts: tuple[Tensor, Tensor],
    terms: tuple[Tensor, Tensor | None, Tensor | None], bias: Tensor | None, setting: Setting,
) -> Tensor:  # fmt: skip
    """The sums [num_dst, heads * width] from rows of that width and atts [1, heads, width] of sources and destinations.

    `terms` are a_src, a_dst (None without h_dst) and a_edge. The first two come without a gradient, which is computed
    here as that of rows and atts.
    """
    if not torch.is_grad_enabled():
        p = ops.gat_attention(graph, *terms, setting.slope)
        return _summed(graph, p, quantised(h_src, setting.how), bias, setting)
    a_src, a_dst = terms[0].contiguous(), None if terms[1] is None else terms[1].contiguous()  # maybe parts of one
    other, att_dst = None if h_dst is h_src else h_dst, None if h_dst is None else atts[1]
    return _Int8Gat.apply(h_src, other, atts[0], att_dst, terms[2], bias, a_src, a_dst, graph, setting)


def gatv2_sum(graph: Graph, h_src: Tensor, h_dst: Tensor, att: Tensor, bias: Tensor | None, setting: Setting) -> Tensor:
    """The sums [num_dst, heads * width] from rows h_src and h_dst of that width and att [heads, width]."""
    if not torch.is_grad_enabled():
        p = _gatv2_weights(graph, h_src, h_dst, att, setting.slope)
        return _summed(graph, p, quantised(h_src, setting.how), bias, setting)
    return _Int8Gatv2.apply(h_src, None if h_dst is h_src else h_dst, att, bias, graph, setting)


def _gatv2_weights(graph: Graph, h_src: Tensor, h_dst: Tensor, att: Tensor, slope: float) -> Tensor:
    return ops.edge_softmax(graph, ops.gatv2_logits(graph, h_src, h_dst, att, slope))


def _summed(graph: Graph, p: Tensor, h: Rows, bias: Tensor | None, setting: Setting) -> Tensor:
    return _sum(graph.rowptr, graph.col, setting.dropped(p), h.scale, None, h.codes, None, bias)


def _dp(edges: Edges, g: Rows, h: Rows, heads: int, setting: Setting) -> Tensor:
    return setting.dropped(ops.sddmm_int8(edges.rowptr, edges.col, *g, *h, heads))


def _dh(edges: Edges, p: Tensor, g: Rows, setting: Setting, rows: Tensor | None = None) -> Tensor:
    """The sum of w_e G_i over the edges out of each node, plus `rows`."""
    w = ops.gather_rows(setting.dropped(p), edges.t_perm)
    return _sum(edges.t_rowptr, edges.t_col, w, g.scale, None, g.codes, None, None, 0.0, rows)


def _of_terms(das: Sequence[Tensor], atts: Sequence[Tensor]) -> Tensor:
    """The sum of da att over sources and destinations, per head: one narrow product, which `_dh` adds in its pass."""
    spread = torch.cat([torch.block_diag(*att[0]) for att in atts])  # [heads * len(atts), columns]
    return ops.linear(torch.cat(list(das), 1), spread.t(), None)


def _datt(da: Tensor, h: Rows) -> Tensor:
    """The sum over the nodes of da h^, per head: one row for each `SPAN` nodes, whatever the number of threads."""
    nodes = len(h.codes)
    ends = torch.arange(0, nodes + SPAN, SPAN, device=da.device).clamp(max=nodes)
    every = torch.arange(nodes, dtype=torch.int32, device=da.device)
    return _sum(ends, every, da, h.scale, None, h.codes).sum(0).view(1, da.size(1), -1)


class _Int8Gat(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, h_src: Tensor, h_dst: Tensor | None, att_src: Tensor, att_dst: Tensor | None, a_edge: Tensor | None,
        bias: Tensor | None, a_src: Tensor, a_dst: Tensor | None, graph: Graph, setting: Setting,
    ) -> Tensor:  # fmt: skip
        terms, rows = (a_src, a_dst, a_edge), quantised(h_src, setting.how)
        p = ops.gat_attention(graph, *terms, setting.slope)
        ctx.setting, ctx.apart, ctx.weighs = setting, h_dst is not None, any(ctx.needs_input_grad[:5])
        if ctx.weighs:
            ctx.noise = Seeds(setting.how, h_src).of_gradient()
            other = quantised(h_dst, setting.how) if h_dst is not None and ctx.needs_input_grad[3] else ()
            ctx.save_for_backward(*Edges.of(graph), p, *terms, att_src, att_dst, *rows, *other)
        return _summed(graph, p, rows, bias, setting)

    @staticmethod
    def backward(ctx: Any, dout: Tensor) -> Grads:
        with torch.no_grad():
            dout = dout.contiguous()
            grads = _gat_gradients(ctx, ctx.saved_tensors, dout) if ctx.weighs else (None,) * 5
            dbias = ops.column_sums(dout) if ctx.needs_input_grad[5] else None
        return *refuse_twice(*grads, dbias), None, None, None, None


def _gat_gradients(ctx: Any, saved: Sequence[Any], dout: Tensor) -> Grads:
    needs, setting, edges, p, terms = ctx.needs_input_grad, ctx.setting, Edges(*saved[:5]), saved[5], saved[6:9]
    (att_src, att_dst), h, other = saved[9:11], Rows(*saved[11:13]), saved[13:]
    g = Rows(*ops.quantize_times(dout, None, ctx.noise))
    dp = _dp(edges, g, h, p.size(1), setting)
    da_edge, da_dst = gat_attention_backward_op(edges.rowptr, edges.col, *terms, setting.slope, p, dp)
    da_src = edge_sums_op(edges.t_rowptr, edges.t_perm, da_edge)
    dh_src = None
    if needs[0]:
        both = att_dst is not None and not ctx.apart
        das, atts = ([da_src, da_dst], [att_src, att_dst]) if both else ([da_src], [att_src])
        dh_src = _dh(edges, p, g, setting, _of_terms(das, atts))
    dh_dst = (da_dst.unsqueeze(2) * att_dst).flatten(1) if needs[1] else None
    datt_src = _datt(da_src, h) if needs[2] else None
    datt_dst = _datt(da_dst, Rows(*other) if ctx.apart else h) if needs[3] else None
    return dh_src, dh_dst, datt_src, datt_dst, da_edge if needs[4] else None


class _Int8Gatv2(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, h_src: Tensor, h_dst: Tensor | None, att: Tensor, bias: Tensor | None, graph: Graph, setting: Setting
    ) -> Tensor:
        p = _gatv2_weights(graph, h_src, h_src if h_dst is None else h_dst, att, setting.slope)
        rows = quantised(h_src, setting.how)
        ctx.setting, ctx.weighs = setting, any(ctx.needs_input_grad[:3])
        if ctx.weighs:
            ctx.noise = Seeds(setting.how, h_src).of_gradient()
            other = () if h_dst is None else quantised(h_dst, setting.how)
            ctx.save_for_backward(*Edges.of(graph), p, att, *rows, *other)
        return _summed(graph, p, rows, bias, setting)

    @staticmethod
    def backward(ctx: Any, dout: Tensor) -> Grads:
        with torch.no_grad():
            dout = dout.contiguous()
            grads = _gatv2_gradients(ctx, ctx.saved_tensors, dout) if ctx.weighs else (None,) * 3
            dbias = ops.column_sums(dout) if ctx.needs_input_grad[3] else None
        return *refuse_twice(*grads, dbias), None, None


def _gatv2_gradients(ctx: Any, saved: Sequence[Any], dout: Tensor) -> Grads:
    setting, edges, p, att, rows = ctx.setting, Edges(*saved[:5]), saved[5], saved[6].contiguous(), saved[7:]
    decoded = [ops.dequantize_rows(*rows[k : k + 2]) for k in range(0, len(rows), 2)]
    given = (edges.rowptr, edges.col, decoded[0], decoded[-1], att, setting.slope)
    g = Rows(*ops.quantize_times(dout, None, ctx.noise))
    dlogits = edge_softmax_backward_op(edges.rowptr, p, _dp(edges, g, Rows(*rows[:2]), p.size(1), setting))
    dh_src, dh_dst, datt = gatv2_backward_op(*given, edges.t_rowptr, edges.t_col, edges.t_perm, dlogits)
    if len(decoded) == 1:
        dh_src, dh_dst = dh_src.add_(dh_dst), None
    needs = ctx.needs_input_grad
    dh_src = _dh(edges, p, g, setting, dh_src) if needs[0] else None
    return dh_src, dh_dst if needs[1] else None, datt if needs[2] else None
