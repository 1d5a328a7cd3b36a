"""GAT's attention and weighted sum, on int8 rows both ways.

    a_src = <h, att_src>, a_dst = <h, att_dst>    p = softmax over row i's edges of leaky(a_src_j + a_dst_i + a_edge_e)
    w = dropout(p)        out_i = sum over the edges e = (j -> i) of  w_e h^_j + b,    per head;  h^ the int8 rows of h

Everything but the sum is float32: logits come from h itself, as an error e of one multiplies a weight by exp(e). With
Q(.) rounding rows stochastically, once for both its readers, and scales as in ops/gat_int8.py,

    G = Q(dout)           dw_e = <G_i, h^_j>          dh_j = sum over the edges out of j of  w_e G_i  + the logits' part

the sum's scales are those of G alone, dw's are those of G and of h^. All gradients are linear in G, hence right on
average. The codes are those of forward, and h passes rounding as if it were not there.

Saved are the rows, N (D + 4) bytes, in place of h, the terms a, and a number per node and head; weights are recomputed.
Backward goes over the edges once, as softmax's gradient follows from <G_i, out_i>: an epilogue that reads out has both
at hand (engine/gradient.py). Else the sum is recomputed, for that product alone.

If the rows come from a projection that is read here alone (products.py), h is a QTensor and never exists in float32,
nor does dh, which goes back as the rows that the projection requests. The gradients of the terms go back to the
projection, too. If not, they end here:
dh gets da att, and datt = sum of da h^, where da h would be exact: off by 0.5 % of its norm at initialisation, by 1 %
when trained (digits, 8 heads of 8).

Where the recipe's `activations` has a codec, the few-bit sums of saved/gat.py are taken instead: their codes are
smaller than these rows, and int8 is for the projections alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ... import ops
from ...aggregate import Edges
from ...graph import Graph
from ...ops.attention import edge_sums
from ...ops.csr import Sparse
from ...ops.gat_int8 import GatAttention
from ...ops.quantize_rows import QRows
from ...ops.spmm_int8 import spmm_int8_op
from ...state.location import layer_here
from ..gradient import QGradient, QTensor, Request, request_of, whole
from ..noise import refuse_twice
from ..saved.gat import spans
from ..settings import Int8
from .entry import BEFORE, refuse_nan
from .products import PLAIN
from .qrows import Seeds, quantised

Grads = Sequence[Tensor | None]


class Setting(NamedTuple):
    """What is no tensor: leaky's slope, (probability, seed) of the attention's dropout, and how rows are rounded."""

    slope: float
    drop: tuple[float, int] | None
    int8: Int8

    def attention(self, a_src: Tensor, a_dst: Tensor | None, a_edge: Tensor | None) -> GatAttention:
        """What the weights of edges are computed from, given the terms of their logits."""
        drop, seed = self.drop or (0.0, 0)
        return GatAttention(a_src, a_dst, a_edge, self.slope, drop, seed)

    def dropped(self, p: Tensor) -> Tensor:
        """Dropout of what edges have; the gradient of that, too."""
        return p if self.drop is None else ops.dropout(p, *self.drop)


def gat_sum(
    graph: Graph, edges: Edges | None, h_src: Tensor, h_dst: Tensor | None, atts: tuple[Tensor, Tensor],
    terms: tuple[Tensor, Tensor | None, Tensor | None], bias: Tensor | None, setting: Setting,
) -> Tensor:  # fmt: skip
    """The sums [num_dst, heads * width] from rows of that width and atts [1, heads, width] of sources and destinations.

    `terms` are a_src, a_dst (None without h_dst) and a_edge. If h_src is a QTensor, a projection's rows, the first two
    come with a gradient; else without one, which is computed here as that of rows and atts.
    """
    projected = isinstance(h_src, QTensor)
    rows = rows_of(h_src, setting)
    a_src, a_dst, a_edge = terms
    a_src, a_dst = a_src.contiguous(), None if a_dst is None else a_dst.contiguous()  # maybe parts of one
    if edges is None:
        return ops.gat_sum_int8(graph.rowptr, graph.col, setting.attention(a_src, a_dst, a_edge), rows, bias).out
    other = None if h_dst is h_src else h_dst
    att_src, att_dst = (None, None) if projected else atts
    asked = request_of(h_src) if projected else None
    inputs = (h_src, other, att_src, None if h_dst is None else att_dst, a_src, a_dst, a_edge, bias)
    return _Int8Gat.apply(*inputs, graph, edges, setting, rows, asked)


def rows_of(h: Tensor, setting: Setting) -> QRows:
    """The int8 rows of h: those it is made of, or its own, quantised."""
    return h.rows[PLAIN] if isinstance(h, QTensor) and h.rows is not None else quantised(h, setting.int8)


def weighted_sum(graph: Graph, p: Tensor, h: QRows, bias: Tensor | None, setting: Setting) -> Tensor:
    return spmm_int8_op(Sparse(graph.rowptr, graph.col, setting.dropped(p)), h, bias)


def prepare(ctx: Any, rows: QRows, setting: Setting, needs: bool) -> Request:
    """What `backward` needs in ctx; the request asks for rows of dout if they are needed for more than the bias."""
    ctx.request, ctx.setting, ctx.needs_rows = Request(), setting, needs
    ctx.layer = layer_here() if torch.is_anomaly_enabled() else ""
    if needs:
        seeds = Seeds(setting.int8, rows.scale)
        ctx.request.ask_for({PLAIN: None}, seeds)
        ctx.noise = seeds.of_gradient()
    return ctx.request


class Received(NamedTuple):
    """The gradient of a sum: int8 rows, sums by column, and its products with the result by head if requested."""

    rows: QRows | None
    sums: Tensor | None
    dots: Tensor | None


def receive(ctx: Any, dout: Tensor, needs_bias: bool) -> Received:
    answer = ctx.request.answer(dout)
    if answer is not None:
        received = Received(answer.rows[PLAIN], answer.sums, answer.dots)
    else:
        dout = whole(dout)
        rows = ops.quantize_times(dout, None, ctx.noise) if ctx.needs_rows else None
        received = Received(rows, ops.column_sums(dout) if needs_bias else None, None)
    if received.rows is not None:
        refuse_nan("the gradients", received.rows.scale, ctx.layer or BEFORE)
    return received


def _datt(da: Tensor, h: QRows) -> Tensor:
    """The sum over the nodes of da h^, per head."""
    ends, every = spans(len(h.codes), da.device)
    return spmm_int8_op(Sparse(ends, every, da), h).sum(0).view(1, da.size(1), -1)


class _Inputs(NamedTuple):
    """The inputs of `_Int8Gat` that may need a gradient, and their gradients."""

    h_src: Any = None
    h_dst: Any = None
    att_src: Any = None
    att_dst: Any = None
    a_src: Any = None
    a_dst: Any = None
    a_edge: Any = None
    bias: Any = None

    @classmethod
    def needs(cls, ctx: Any) -> _Inputs:
        return cls(*ctx.needs_input_grad[: len(cls._fields)])


class _Saved(NamedTuple):
    a_src: Tensor
    a_dst: Tensor | None
    a_edge: Tensor | None
    att_src: Tensor | None
    att_dst: Tensor | None
    log_sums: Tensor
    codes: Tensor
    scale: Tensor
    dst_codes: Tensor | None = None
    dst_scale: Tensor | None = None


class _Int8Gat(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, h_src: Tensor, h_dst: Tensor | None, att_src: Tensor | None, att_dst: Tensor | None, a_src: Tensor,
        a_dst: Tensor | None, a_edge: Tensor | None, bias: Tensor | None, graph: Graph, edges: Edges,
        setting: Setting, rows: QRows, asked: Request | None,
    ) -> Tensor:  # fmt: skip
        attention = setting.attention(a_src, a_dst, a_edge)
        out, log_sums = ops.gat_sum_int8(graph.rowptr, graph.col, attention, rows, bias)
        ctx.edges, ctx.apart, ctx.asked, needs = edges, h_dst is not None, asked, _Inputs.needs(ctx)
        request = prepare(ctx, rows, setting, any(needs._replace(bias=False)))
        if ctx.needs_rows:
            request.ask_for_dots(a_src.size(1), None if bias is None else bias.detach().clone())
            other = quantised(h_dst, setting.int8) if h_dst is not None and needs.att_dst else (None, None)
            ctx.save_for_backward(*_Saved(a_src, a_dst, a_edge, att_src, att_dst, log_sums, *rows, *other))
        return out

    @staticmethod
    def backward(ctx: Any, dout: Tensor) -> Grads:
        needs = _Inputs.needs(ctx)
        with torch.no_grad():
            received = receive(ctx, dout, needs.bias)
            grads = _gradients(ctx, needs, received) if ctx.needs_rows else _Inputs()
        return *refuse_twice(*grads._replace(bias=received.sums if needs.bias else None)), *[None] * 5


def _gradients(ctx: Any, needs: _Inputs, received: Received) -> _Inputs:
    edges, setting, saved, g, dots = ctx.edges, ctx.setting, _Saved(*ctx.saved_tensors), received.rows, received.dots
    assert g is not None
    h, attention = QRows(saved.codes, saved.scale), setting.attention(saved.a_src, saved.a_dst, saved.a_edge)
    if dots is None:
        dots = ops.gat_dots_int8(edges.rowptr, edges.col, attention, h, g)
    given = (edges.t_rowptr, edges.t_col, edges.t_perm, attention, saved.log_sums, dots, g, h)
    name, factor = (None, None) if ctx.asked is None else next(iter(ctx.asked.factors.items()))
    to = (False, None, None) if ctx.asked is None else (True, factor, ctx.asked.seeds[name])
    grad = ops.gat_backward_int8(*given, *to)
    dh, da_src = grad.dh, grad.da_src
    da_dst = None if saved.a_dst is None else edge_sums(edges.rowptr, None, grad.ds)
    da_edge = grad.ds if needs.a_edge else None
    if ctx.asked is not None:
        dh = QGradient({name: grad.rows}, ctx.asked.factors, ctx.asked, grad.scale.new_empty(0), None)
    if saved.att_src is None:  # a projection, which gets the gradients of the terms
        return _Inputs(dh if needs.h_src else None, a_src=da_src, a_dst=da_dst, a_edge=da_edge)
    by_head = dh.view(len(dh), da_src.size(1), -1).addcmul_(da_src.unsqueeze(2), saved.att_src)
    if da_dst is not None and not ctx.apart:
        by_head.addcmul_(da_dst.unsqueeze(2), saved.att_dst)
    dh_dst = (da_dst.unsqueeze(2) * saved.att_dst).flatten(1) if needs.h_dst and da_dst is not None else None
    datt_src = _datt(da_src, h) if needs.att_src else None
    other = QRows(saved.dst_codes, saved.dst_scale) if ctx.apart else h  # type: ignore[arg-type]
    datt_dst = _datt(da_dst, other) if needs.att_dst and da_dst is not None else None
    return _Inputs(dh if needs.h_src else None, dh_dst, datt_src, datt_dst, a_edge=da_edge)
