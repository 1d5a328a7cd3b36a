"""GATv2's attention and weighted sum, on int8 rows both ways (attention.py has what it shares with GAT's).

    p = softmax over row i's edges of  <att, leaky(h_j + g_i)>      out_i = sum over the edges of  dropout(p_e) h^_j + b

Logits come from h and g themselves. In backward the slopes of leaky are those at h^_j + g^_i, the int8 rows that are
kept: where |h_j + g_i| is less than a step this may be the other slope; activations/gatv2.py says what that does to dg.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from .. import ops
from ..activations.attention import Edges
from ..graph import Graph
from ..ops.edge_softmax import edge_softmax_backward_op
from ..ops.gatv2 import gatv2_backward_op
from .attention import Grads, Setting, ask_for, backward, sum_int8, weighted_sum
from .box import Box, leave_box
from .rows import Rows, quantised


def gatv2_sum(graph: Graph, h_src: Tensor, h_dst: Tensor, att: Tensor, bias: Tensor | None, setting: Setting) -> Tensor:
    """The sums [num_dst, heads * width] from rows h_src and h_dst of that width and att [heads, width]."""
    if not torch.is_grad_enabled():
        p = _weights(graph, h_src, h_dst, att, setting.slope)
        return weighted_sum(graph, p, quantised(h_src, setting.how), bias, setting)
    box = Box()
    out = _Int8Gatv2.apply(h_src, None if h_dst is h_src else h_dst, att, bias, graph, setting, box)
    leave_box(out, box)
    return out


def _weights(graph: Graph, h_src: Tensor, h_dst: Tensor, att: Tensor, slope: float) -> Tensor:
    return ops.edge_softmax(graph, ops.gatv2_logits(graph, h_src, h_dst, att, slope))


def _dp(edges: Edges, g: Rows, h: Rows, heads: int, setting: Setting) -> Tensor:
    return setting.dropped(ops.sddmm_int8(edges.rowptr, edges.col, *g, *h, heads))


def _dh(edges: Edges, p: Tensor, g: Rows, setting: Setting, rows: Tensor | None = None) -> Tensor:
    """The sum of w_e G_i over the edges out of each node, plus `rows`."""
    w = ops.gather_rows(setting.dropped(p), edges.t_perm)
    return sum_int8(edges.t_rowptr, edges.t_col, w, g.scale, None, g.codes, None, None, 0.0, rows)


class _Int8Gatv2(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, h_src: Tensor, h_dst: Tensor | None, att: Tensor, bias: Tensor | None, graph: Graph,
        setting: Setting, box: Box,
    ) -> Tensor:  # fmt: skip
        p = _weights(graph, h_src, h_src if h_dst is None else h_dst, att, setting.slope)
        rows = quantised(h_src, setting.how)
        ctx.setting = setting
        if ask_for(ctx, box, rows, setting, 3):
            other = () if h_dst is None else quantised(h_dst, setting.how)
            ctx.save_for_backward(*Edges.of(graph), p, att, *rows, *other)
        return weighted_sum(graph, p, rows, bias, setting)

    @staticmethod
    def backward(ctx: Any, dout: Tensor) -> Grads:
        return backward(ctx, dout, _gradients)


def _gradients(ctx: Any, saved: Sequence[Any], g: Rows, dots: Tensor | None) -> Grads:
    setting, edges, p, att, rows = ctx.setting, Edges(*saved[:5]), saved[5], saved[6].contiguous(), saved[7:]
    decoded = [ops.dequantize_rows(*rows[k : k + 2]) for k in range(0, len(rows), 2)]
    given = (edges.rowptr, edges.col, decoded[0], decoded[-1], att, setting.slope)
    dlogits = edge_softmax_backward_op(edges.rowptr, p, _dp(edges, g, Rows(*rows[:2]), p.size(1), setting))
    dh_src, dh_dst, datt = gatv2_backward_op(*given, edges.t_rowptr, edges.t_col, edges.t_perm, dlogits)
    if len(decoded) == 1:
        dh_src, dh_dst = dh_src.add_(dh_dst), None
    needs = ctx.needs_input_grad
    dh_src = _dh(edges, p, g, setting, dh_src) if needs[0] else None
    return dh_src, dh_dst if needs[1] else None, datt if needs[2] else None
