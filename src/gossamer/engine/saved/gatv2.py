"""GATv2's attention and weighted sum, saving few bits.

    p = softmax over row i's edges of  <att, leaky(h_j + g_i)>    w = dropout(p)    out_i = sum of w_e h_j + b, per head

Saved are codes of h and g in eight bits or more; p is recomputed from what they decode to. The gradient is that of
ops/gatv2.py, ops/edge_softmax.py and ops/spmm.py at the decoded rows, and two steps of it are not linear in them.

The softmax: the recomputed p biases the sum of w_e dout_i, exact if p were saved, by 0.005 % of its norm (Cora, 8 heads
of 8). Saving p in eight bits has ten times the noise and costs a byte per edge and head.

The kink of leaky: where |h_j + g_i| is less than a step, backward sees the slope averaged over that step. This biases
dh by 1 % of its norm (random rows: 2 %), datt by 0.03 % (0.1 %), and dg, in which all cancels but differences of slope,
by 21 % (8 %) of its own norm, which is small beside dh's; with the exact p as well. Long after convergence on few
labels, when sums have gathered at the kink, it is 9 % of dh and 86 % of dg: there any slope between the two is right.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ... import ops
from ...aggregate import Edges
from ...codecs import Codes
from ...graph import Graph
from ...ops.edge_softmax import edge_softmax_backward, edge_softmax_op
from ...ops.gatv2 import gatv2_backward, gatv2_logits_op
from ..gradient import whole
from ..noise import draw_seed, refuse_twice
from .gat import Setting


def gatv2_sum(
    graph: Graph, edges: Edges, h_src: Tensor, h_dst: Tensor, att: Tensor, bias: Tensor | None, setting: Setting
) -> Tensor:
    """The sums [num_dst, heads * width], averaged [num_dst, width], of rows h_src and h_dst and att [heads, width]."""
    return _Gatv2Sum.apply(h_src, None if h_dst is h_src else h_dst, att, bias, graph, edges, setting)


class _Gatv2Sum(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, h_src: Tensor, h_dst: Tensor | None, att: Tensor, bias: Tensor | None, graph: Graph, edges: Edges,
        setting: Setting,
    ) -> Tensor:  # fmt: skip
        logits = ops.gatv2_logits(graph, h_src, h_src if h_dst is None else h_dst, att, setting.slope)
        out = setting.summed(graph, h_src, setting.dropped(ops.edge_softmax(graph, logits)), bias)
        ctx.setting, ctx.edges, ctx.codes = setting, edges, []
        needs_src, needs_dst, needs_att, *_ = ctx.needs_input_grad
        if needs_src or needs_dst or needs_att:
            encode = setting.saving.sharp.encode
            codes = [encode(h, draw_seed(h)) for h in (h_src, h_dst) if h is not None]
            ctx.codes = [(len(c.tensors), c.shape, c.dtype) for c in codes]
            ctx.save_for_backward(att, *(tensor for c in codes for tensor in c.tensors))
        return out

    @staticmethod
    def backward(ctx: Any, dout: Tensor) -> tuple[Tensor | None, ...]:
        needs_src, needs_dst, needs_att, needs_bias, *_ = ctx.needs_input_grad
        with torch.no_grad():
            dout = whole(dout)
            dh_src, dh_dst, datt = _gradients(ctx, dout) if ctx.codes else (None, None, None)
            dbias = ops.column_sums(dout) if needs_bias else None
        grads = (dh_src if needs_src else None, dh_dst if needs_dst else None, datt if needs_att else None)
        return *refuse_twice(*grads, dbias), None, None, None


def _gradients(ctx: Any, dout: Tensor) -> tuple[Tensor, Tensor | None, Tensor]:
    setting, edges, (att, *saved) = ctx.setting, ctx.edges, ctx.saved_tensors
    tensors = iter(saved)
    codes = [Codes(tuple(next(tensors) for _ in range(number)), *like) for number, *like in ctx.codes]
    decoded = [setting.saving.sharp.decode(c) for c in codes]
    rows = (edges.rowptr, edges.col, decoded[0], decoded[-1], att.contiguous(), setting.slope)
    p = edge_softmax_op(edges.rowptr, gatv2_logits_op(*rows, None, None, None))
    dw, dh = setting.sum_backward(edges, setting.dropped(p), decoded[0], dout)
    dlogits = edge_softmax_backward(edges.rowptr, p, setting.dropped(dw))
    dh_src, dh_dst, datt = gatv2_backward(*rows, edges.t_rowptr, edges.t_col, edges.t_perm, dlogits)
    dh_src += dh
    return (dh_src.add_(dh_dst), None, datt) if len(decoded) == 1 else (dh_src, dh_dst, datt)
