"""GATv2's attention and weighted sum, keeping few bits.

    p = softmax over row i's edges of  <att, leaky(h_j + g_i)>    w = dropout(p)    out_i = sum of w_e h_j + b, per head

Kept are codes of h and g in eight bits or more; p is made again from what they decode to. The gradient is that of
ops/gatv2.py, ops/edge_softmax.py and ops/spmm.py at the decoded rows, and two steps of it are not linear in them.

The softmax: p made again biases the sum of w_e dout_i, exact if p were kept, by 0.005 % of its norm (Cora, 8 heads of
8). Keeping p in eight bits has ten times the noise and costs a byte per edge and head.

The kink of leaky: where |h_j + g_i| is less than a step, backward sees the slope averaged over that step. This biases
dh by 1 % of its norm (random rows: 2 %), datt by 0.03 % (0.1 %), and dg, in which all cancels but differences of slope,
by 21 % (8 %) of its own norm, which is small beside dh's; with the exact p as well. Long after convergence on few
labels, when sums have gathered at the kink, it is 9 % of dh and 86 % of dg: there any slope between the two is right.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .. import ops
from ..codecs import Codes
from ..graph import Graph
from ..ops.edge_softmax import edge_softmax_backward_op, edge_softmax_op
from ..ops.gatv2 import gatv2_backward_op, gatv2_logits_op
from .attention import Edges, Setting, dropped
from .noise import draw_seed, refuse_twice


def gatv2_sum(graph: Graph, h_src: Tensor, h_dst: Tensor, att: Tensor, bias: Tensor | None, setting: Setting) -> Tensor:
    """The sums [num_dst, heads * width], averaged [num_dst, width], of rows h_src and h_dst and att [heads, width]."""
    return _Gatv2Sum.apply(h_src, None if h_dst is h_src else h_dst, att, bias, graph, setting)


class _Gatv2Sum(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, h_src: Tensor, h_dst: Tensor | None, att: Tensor, bias: Tensor | None, graph: Graph, setting: Setting
    ) -> Tensor:
        logits = ops.gatv2_logits(graph, h_src, h_src if h_dst is None else h_dst, att, setting.slope)
        out = setting.summed(graph, h_src, dropped(ops.edge_softmax(graph, logits), setting), bias)
        ctx.setting, ctx.codes = setting, []
        if any(ctx.needs_input_grad[:3]):
            encode = setting.plan.sharp.encode
            codes = [encode(h, draw_seed(h)) for h in (h_src, h_dst) if h is not None]
            ctx.codes = [(len(c.tensors), c.shape, c.dtype) for c in codes]
            ctx.save_for_backward(*Edges.of(graph), att, *(tensor for c in codes for tensor in c.tensors))
        return out

    @staticmethod
    def backward(ctx: Any, dout: Tensor) -> tuple[Tensor | None, ...]:
        with torch.no_grad():
            dout = dout.contiguous()
            grads = _gradients(ctx, dout) if ctx.codes else (None,) * 3
            dbias = ops.column_sums(dout) if ctx.needs_input_grad[3] else None
        return *refuse_twice(*grads, dbias), None, None


def _gradients(ctx: Any, dout: Tensor) -> tuple[Tensor | None, ...]:
    saved = ctx.saved_tensors  # once: checkpointing unpacks a tensor only once
    setting, (*structure, att), kept = ctx.setting, saved[:6], iter(saved[6:])
    edges = Edges(*structure)
    codes = [Codes(tuple(next(kept) for _ in range(number)), *like) for number, *like in ctx.codes]
    decoded = [setting.plan.sharp.decode(c) for c in codes]
    rows = (edges.rowptr, edges.col, decoded[0], decoded[-1], att.contiguous(), setting.slope)
    p = edge_softmax_op(edges.rowptr, gatv2_logits_op(*rows, None, None, None))
    dw, dh = edges.of_sum(dropped(p, setting), decoded[0], dout, setting.averages, True)
    dlogits = edge_softmax_backward_op(edges.rowptr, p, dropped(dw, setting))
    dh_src, dh_dst, datt = gatv2_backward_op(*rows, edges.t_rowptr, edges.t_col, edges.t_perm, dlogits)
    dh_src += dh
    if len(decoded) == 1:
        dh_src, dh_dst = dh_src.add_(dh_dst), None
    grads = (dh_src, dh_dst, datt)
    return tuple(grad if needed else None for grad, needed in zip(grads, ctx.needs_input_grad[:3], strict=True))
