"""GAT's attention and weighted sum, on int8 rows both ways.

    a_src = <h, att_src>, a_dst = <h, att_dst>    p = softmax over row i's edges of leaky(a_src_j + a_dst_i + a_edge_e)
    w = dropout(p)        out_i = sum over the edges e = (j -> i) of  w_e h^_j + b,    per head;  h^ the int8 rows of h

Everything but the sum is float32: logits come from h itself, as an error e of one multiplies a weight by exp(e). With
Q(.) rounding rows stochastically, once for both its readers, and scales as in ops/spmm_int8.py and ops/gat_int8.py,

    G = Q(dout)           dw_e = <G_i, h^_j>          dh_j = sum over the edges out of j of  w_e G_i  + the logits' part

the sum's scales are those of G alone, dw's are those of G and of h^. All gradients are linear in G, hence right on
average. The codes are those of forward, and h passes rounding as if it were not there. datt = sum of da h^, where da h
would be exact: off by 0.5 % of its norm at initialisation, by 1 % when trained (digits, 8 heads of 8).

Kept are the rows, N (D + 4) bytes, in place of h; the terms a; and p, one number per edge and head. If the rows come
from a projection that is read here alone (conv.py), h never exists in float32, nor does dh: it goes back as rows, in
the projection's box.

Where the recipe's `activations` has a codec, the layers take the few-bit sums of activations/ instead: their codes are
smaller than these rows, and int8 is for the projections alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .. import ops
from ..activations.attention import SPAN, Edges
from ..activations.noise import refuse_twice
from ..graph import Graph
from .box import Box, leave_box
from .conv import Projected
from .plan import Int8
from .rows import Rows, Seeds, quantised

sum_int8 = ops.OPS["spmm_int8"]
Grads = tuple[Tensor | None, ...]


class Setting(NamedTuple):
    """What is no tensor: leaky's slope, (probability, seed) of the attention's dropout, and how rows are rounded."""

    slope: float
    drop: tuple[float, int] | None
    how: Int8

    @property
    def dropout(self) -> tuple[float, int]:
        return self.drop or (0.0, 0)

    def dropped(self, p: Tensor) -> Tensor:
        """Dropout of what edges have; the gradient of that, too."""
        return p if self.drop is None else ops.dropout(p, *self.drop)


def gat_sum(
    graph: Graph, h_src: Tensor, h_dst: Tensor | None, atts: tuple[Tensor, Tensor],
    terms: tuple[Tensor, Tensor | None, Tensor | None], bias: Tensor | None, setting: Setting,
    projected: Projected | None = None,
) -> Tensor:  # fmt: skip
    """The sums [num_dst, heads * width] from rows of that width and atts [1, heads, width] of sources and destinations.

    `terms` are a_src, a_dst (None without h_dst) and a_edge. The first two come without a gradient, which is computed
    here as that of rows and atts. `projected`: where the rows are, if h_src only stands for them.
    """
    rows = quantised(h_src, setting.how) if projected is None else projected.rows
    if not torch.is_grad_enabled():
        return weighted_sum(graph, ops.gat_attention(graph, *terms, setting.slope), rows, bias, setting)
    a_src, a_dst = terms[0].contiguous(), None if terms[1] is None else terms[1].contiguous()  # maybe parts of one
    other, att_dst = None if h_dst is h_src else h_dst, None if h_dst is None else atts[1]
    boxes = (Box(), None if projected is None else projected.box)
    given = (h_src, other, atts[0], att_dst, terms[2], bias, a_src, a_dst)
    out = _Int8Gat.apply(*given, graph, setting, rows, boxes)
    leave_box(out, boxes[0])
    return out


def weighted_sum(graph: Graph, p: Tensor, h: Rows, bias: Tensor | None, setting: Setting) -> Tensor:
    return sum_int8(graph.rowptr, graph.col, setting.dropped(p), h.scale, None, h.codes, None, bias)


def ask_for(ctx: Any, box: Box, rows: Rows, setting: Setting, learnt: int) -> bool:
    """Prepare for `backward`: the first `learnt` inputs of an op get gradients from rows of dout, the next is its bias.

    False if at most the bias needs one.
    """
    ctx.box, ctx.learnt, ctx.weighs = box, learnt, any(ctx.needs_input_grad[:learnt])
    if ctx.weighs:
        seeds = Seeds(setting.how, rows.scale)
        box.ask_for([None], seeds, None)
        ctx.noise = seeds.of_gradient()
    return bool(ctx.weighs)


def backward(ctx: Any, dout: Tensor, gradients: Callable[[Any, Sequence[Any], Rows], Grads]) -> Grads:
    """For all inputs of an op; gradients(ctx, saved, rows of dout) gives those that `ask_for` spoke of."""
    rest, of_bias = len(ctx.needs_input_grad) - ctx.learnt - 1, ctx.needs_input_grad[ctx.learnt]
    with torch.no_grad():
        found = ctx.box.take(dout)
        if found is not None:
            (rows,), sums = found
        else:
            dout = dout.contiguous()
            rows = Rows(*ops.quantize_times(dout, None, ctx.noise)) if ctx.weighs else None
            sums = ops.column_sums(dout) if of_bias else None
        grads = gradients(ctx, ctx.saved_tensors, rows) if ctx.weighs else [None] * ctx.learnt
    return *refuse_twice(*grads, sums if of_bias else None), *[None] * rest


def _datt(da: Tensor, h: Rows) -> Tensor:
    """The sum over the nodes of da h^, per head: one row for each `SPAN` nodes, whatever the number of threads."""
    nodes = len(h.codes)
    ends = torch.arange(0, nodes + SPAN, SPAN, device=da.device).clamp(max=nodes)
    every = torch.arange(nodes, dtype=torch.int32, device=da.device)
    return sum_int8(ends, every, da, h.scale, None, h.codes).sum(0).view(1, da.size(1), -1)


class _Int8Gat(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, h_src: Tensor, h_dst: Tensor | None, att_src: Tensor, att_dst: Tensor | None, a_edge: Tensor | None,
        bias: Tensor | None, a_src: Tensor, a_dst: Tensor | None, graph: Graph, setting: Setting, rows: Rows,
        boxes: tuple[Box, Box | None],
    ) -> Tensor:  # fmt: skip
        terms = (a_src, a_dst, a_edge)
        p = ops.gat_attention(graph, *terms, setting.slope)
        ctx.setting, ctx.apart, ctx.projection = setting, h_dst is not None, boxes[1]
        if ask_for(ctx, boxes[0], rows, setting, 5):
            other = quantised(h_dst, setting.how) if h_dst is not None and ctx.needs_input_grad[3] else ()
            ctx.save_for_backward(*Edges.of(graph), p, *terms, att_src, att_dst, *rows, *other)
        return weighted_sum(graph, p, rows, bias, setting)

    @staticmethod
    def backward(ctx: Any, dout: Tensor) -> Grads:
        return backward(ctx, dout, _gradients)


def _gradients(ctx: Any, saved: Sequence[Any], g: Rows) -> Grads:
    needs, setting, edges, p, terms = ctx.needs_input_grad, ctx.setting, Edges(*saved[:5]), saved[5], saved[6:9]
    (att_src, att_dst), h, other = saved[9:11], Rows(*saved[11:13]), saved[13:]
    given = (edges.rowptr, edges.col, *terms, setting.slope, p, *setting.dropout)
    pairs, da_dst = ops.gat_backward_int8(*given, *g, *h)
    to_dst = att_dst is not None and not ctx.apart
    atts = (att_src.flatten(), att_dst.flatten() if to_dst else None, da_dst if to_dst else None)
    dh_src, da_src = _to_sources(edges, pairs, g, atts, ctx.projection)
    dh_dst = (da_dst.unsqueeze(2) * att_dst).flatten(1) if needs[1] else None
    datt_src = _datt(da_src, h) if needs[2] else None
    datt_dst = _datt(da_dst, Rows(*other) if ctx.apart else h) if needs[3] else None
    da_edge = pairs[:, p.size(1) :].contiguous() if needs[4] else None
    return dh_src if needs[0] else None, dh_dst, datt_src, datt_dst, da_edge


def _to_sources(
    edges: Edges, pairs: Tensor, g: Rows, atts: tuple[Tensor | None, ...], box: Box | None
) -> tuple[Tensor, Tensor]:
    """dh, which goes into the box if there is one, and da_src."""
    given = (edges.t_rowptr, edges.t_col, edges.t_perm, pairs, *g, *atts)
    if box is None or not box.factors:
        dh, _, da_src = ops.gat_sources_int8(*given, False, None, None)
        return dh, da_src
    *rows, da_src = ops.gat_sources_int8(*given, True, box.factors[0], box.seeds[0])
    return box.put([Rows(*rows)], da_src.new_empty(0)), da_src
