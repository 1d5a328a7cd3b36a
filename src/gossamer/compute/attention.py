"""GAT's attention and weighted sum, on int8 rows both ways.

    a_src = <h, att_src>, a_dst = <h, att_dst>    p = softmax over row i's edges of leaky(a_src_j + a_dst_i + a_edge_e)
    w = dropout(p)        out_i = sum over the edges e = (j -> i) of  w_e h^_j + b,    per head;  h^ the int8 rows of h

Everything but the sum is float32: logits come from h itself, as an error e of one multiplies a weight by exp(e). With
Q(.) rounding rows stochastically, once for both its readers, and scales as in ops/gat_int8.py,

    G = Q(dout)           dw_e = <G_i, h^_j>          dh_j = sum over the edges out of j of  w_e G_i  + the logits' part

the sum's scales are those of G alone, dw's are those of G and of h^. All gradients are linear in G, hence right on
average. The codes are those of forward, and h passes rounding as if it were not there.

Kept are the rows, N (D + 4) bytes, in place of h, the terms a, and a number per node and head; weights are made again.
Backward goes over the edges once, as softmax's gradient follows from <G_i, out_i>: a chain that is the only reader of
out has both at hand (box.py). Else the sum is made again, for that product alone.

If the rows come from a projection that is read here alone (conv.py), h never exists in float32, nor does dh: it goes
back as rows, in the projection's box, and the gradients of the terms go back to the projection. If not, they end here:
dh gets da att, and datt = sum of da h^, where da h would be exact: off by 0.5 % of its norm at initialisation, by 1 %
when trained (digits, 8 heads of 8).

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
from ..ops.attention import edge_sums_op
from ..state.location import layer_here
from .box import Box, Found, leave_box
from .conv import Projected
from .entry import BEFORE, refuse_nan
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

    `terms` are a_src, a_dst (None without h_dst) and a_edge. `projected`: where the rows are, if h_src only stands for
    them; else the first two come without a gradient, which is computed here as that of rows and atts.
    """
    rows = quantised(h_src, setting.how) if projected is None else projected.rows
    a_src, a_dst = terms[0].contiguous(), None if terms[1] is None else terms[1].contiguous()  # maybe parts of one
    if not torch.is_grad_enabled():
        given = (a_src, a_dst, terms[2], setting.slope, *setting.dropout)
        return ops.gat_sum_int8(graph.rowptr, graph.col, *given, *rows, bias)[0]
    other = None if h_dst is h_src else h_dst
    att_src, att_dst = atts if projected is None else (None, None)
    boxes = (Box(), None if projected is None else projected.box)
    learnt = (h_src, other, att_src, None if h_dst is None else att_dst, a_src, a_dst, terms[2])
    out = _Int8Gat.apply(*learnt, bias, graph, setting, rows, boxes)
    leave_box(out, boxes[0])
    return out


def weighted_sum(graph: Graph, p: Tensor, h: Rows, bias: Tensor | None, setting: Setting) -> Tensor:
    return sum_int8(graph.rowptr, graph.col, setting.dropped(p), h.scale, None, h.codes, None, bias)


def ask_for(ctx: Any, box: Box, rows: Rows, setting: Setting, learnt: int) -> bool:
    """Prepare for `backward`: the first `learnt` inputs of an op get gradients from rows of dout, the next is its bias.

    False if at most the bias needs one.
    """
    ctx.box, ctx.learnt, ctx.weighs = box, learnt, any(ctx.needs_input_grad[:learnt])
    ctx.layer = layer_here() if torch.is_anomaly_enabled() else ""
    if ctx.weighs:
        seeds = Seeds(setting.how, rows.scale)
        box.ask_for([None], seeds, None)
        ctx.noise = seeds.of_gradient()
    return bool(ctx.weighs)


def backward(ctx: Any, dout: Tensor, gradients: Callable[[Any, Sequence[Any], Rows, Tensor | None], Grads]) -> Grads:
    """For all inputs of an op; gradients(ctx, saved, rows of dout, products) gives those that `ask_for` spoke of.

    The products are those that the box was asked for; None if the gradient did not come in it.
    """
    rest, of_bias = len(ctx.needs_input_grad) - ctx.learnt - 1, ctx.needs_input_grad[ctx.learnt]
    with torch.no_grad():
        found = ctx.box.take(dout)
        if found is not None:
            (rows,), sums, dots = found
        else:
            dots = None
            dout = dout.contiguous()
            rows = Rows(*ops.quantize_times(dout, None, ctx.noise)) if ctx.weighs else None
            sums = ops.column_sums(dout) if of_bias else None
        if rows is not None:
            refuse_nan("the gradients", rows.scale, ctx.layer or BEFORE)
        grads = gradients(ctx, ctx.saved_tensors, rows, dots) if ctx.weighs else [None] * ctx.learnt
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
        ctx: Any, h_src: Tensor, h_dst: Tensor | None, att_src: Tensor | None, att_dst: Tensor | None, a_src: Tensor,
        a_dst: Tensor | None, a_edge: Tensor | None, bias: Tensor | None, graph: Graph, setting: Setting, rows: Rows,
        boxes: tuple[Box, Box | None],
    ) -> Tensor:  # fmt: skip
        terms, how = (a_src, a_dst, a_edge), (setting.slope, *setting.dropout)
        out, log_sums = ops.gat_sum_int8(graph.rowptr, graph.col, *terms, *how, *rows, bias)
        ctx.how, ctx.apart, ctx.projection = how, h_dst is not None, boxes[1]
        if ask_for(ctx, boxes[0], rows, setting, 7):
            boxes[0].ask_for_products(a_src.size(1), None if bias is None else bias.detach().clone())
            other = quantised(h_dst, setting.how) if h_dst is not None and ctx.needs_input_grad[3] else ()
            ctx.save_for_backward(*Edges.of(graph), *terms, att_src, att_dst, log_sums, *rows, *other)
        return out

    @staticmethod
    def backward(ctx: Any, dout: Tensor) -> Grads:
        return backward(ctx, dout, _gradients)


def _gradients(ctx: Any, saved: Sequence[Any], g: Rows, dots: Tensor | None) -> Grads:
    needs, edges, terms, (att_src, att_dst, log_sums) = ctx.needs_input_grad, Edges(*saved[:5]), saved[5:8], saved[8:11]
    h, other = Rows(*saved[11:13]), saved[13:]
    if dots is None:
        dots = ops.gat_dots_int8(edges.rowptr, edges.col, *terms, *ctx.how, *h, *g)
    given = (edges.t_rowptr, edges.t_col, edges.t_perm, *terms, *ctx.how, log_sums, dots, *g, *h)
    box = ctx.projection
    to = (True, box.factors[0], box.seeds[0]) if box is not None and box.factors else (False, None, None)
    dh, scale, da_src, ds = ops.gat_backward_int8(*given, *to)
    da_dst = None if terms[1] is None else edge_sums_op(edges.rowptr, None, ds)
    da_edge = ds if needs[6] else None
    if box is not None:
        dh = box.put(Found([Rows(dh, scale)], scale.new_empty(0), None)) if box.factors else dh
        return dh if needs[0] else None, None, None, None, da_src, da_dst, da_edge
    by_head = dh.view(len(dh), da_src.size(1), -1).addcmul_(da_src.unsqueeze(2), att_src)
    if da_dst is not None and not ctx.apart:
        by_head.addcmul_(da_dst.unsqueeze(2), att_dst)
    dh_dst = (da_dst.unsqueeze(2) * att_dst).flatten(1) if needs[1] else None  # type: ignore[union-attr]
    datt_src = _datt(da_src, h) if needs[2] else None
    datt_dst = _datt(da_dst, Rows(*other) if ctx.apart else h) if needs[3] else None  # type: ignore[arg-type]
    return dh if needs[0] else None, dh_dst, datt_src, datt_dst, None, None, da_edge
