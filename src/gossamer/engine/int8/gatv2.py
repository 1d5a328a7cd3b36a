"""GATv2's attention and weighted sum, on int8 rows both ways (gat.py has what it shares with GAT's).

    p = softmax over row i's edges of  <att, leaky(h_j + g_i)>      out_i = sum over the edges of  dropout(p_e) h^_j + b

Logits come from h and g themselves. In backward the slopes of leaky are those at h^_j + g^_i, the int8 rows that are
saved: where |h_j + g_i| is less than a step this may be the other slope; saved/gatv2.py says what that does to dg.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from ... import ops
from ...aggregate import Edges
from ...graph import Graph
from ...ops.csr import Sparse
from ...ops.edge_softmax import edge_softmax_backward
from ...ops.gatv2 import gatv2_backward
from ...ops.quantize_rows import QRows
from ...ops.spmm_int8 import spmm_int8_op
from ..noise import refuse_twice
from .gat import Grads, Received, Setting, prepare, receive, weighted_sum
from .qrows import quantised


def gatv2_sum(
    graph: Graph, edges: Edges | None, h_src: Tensor, h_dst: Tensor, att: Tensor, bias: Tensor | None, setting: Setting
) -> Tensor:
    """The sums [num_dst, heads * width] from rows h_src and h_dst of that width and att [heads, width]."""
    if edges is None:
        p = _weights(graph, h_src, h_dst, att, setting.slope)
        return weighted_sum(graph, p, quantised(h_src, setting.int8), bias, setting)
    return _Int8Gatv2.apply(h_src, None if h_dst is h_src else h_dst, att, bias, graph, edges, setting)


def _weights(graph: Graph, h_src: Tensor, h_dst: Tensor, att: Tensor, slope: float) -> Tensor:
    return ops.edge_softmax(graph, ops.gatv2_logits(graph, h_src, h_dst, att, slope))


class _Saved(NamedTuple):
    p: Tensor
    att: Tensor
    codes: Tensor
    scale: Tensor
    dst_codes: Tensor | None
    dst_scale: Tensor | None

    @property
    def rows(self) -> list[QRows]:
        """Of the sources and, if they are other ones, of the destinations."""
        own = [QRows(self.codes, self.scale)]
        apart = self.dst_codes is not None and self.dst_scale is not None
        return [*own, QRows(self.dst_codes, self.dst_scale)] if apart else own  # type: ignore[arg-type]


class _Int8Gatv2(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, h_src: Tensor, h_dst: Tensor | None, att: Tensor, bias: Tensor | None, graph: Graph, edges: Edges,
        setting: Setting,
    ) -> Tensor:  # fmt: skip
        p = _weights(graph, h_src, h_src if h_dst is None else h_dst, att, setting.slope)
        rows = quantised(h_src, setting.int8)
        needs_src, needs_dst, needs_att, *_ = ctx.needs_input_grad
        ctx.edges = edges
        prepare(ctx, rows, setting, needs_src or needs_dst or needs_att)
        if ctx.needs_rows:
            other = (None, None) if h_dst is None else quantised(h_dst, setting.int8)
            ctx.save_for_backward(*_Saved(p, att, *rows, *other))
        return weighted_sum(graph, p, rows, bias, setting)

    @staticmethod
    def backward(ctx: Any, dout: Tensor) -> Grads:
        needs_src, needs_dst, needs_att, needs_bias, *_ = ctx.needs_input_grad
        dh_src = dh_dst = datt = None
        with torch.no_grad():
            received = receive(ctx, dout, needs_bias)
            if ctx.needs_rows:
                dh_src, dh_dst, datt = _gradients(ctx, received, needs_src)
        grads = (dh_src if needs_src else None, dh_dst if needs_dst else None, datt if needs_att else None)
        return *refuse_twice(*grads, received.sums if needs_bias else None), None, None, None


def _gradients(ctx: Any, received: Received, needs_src: bool) -> tuple[Tensor, Tensor | None, Tensor]:
    setting, edges, saved, g = ctx.setting, ctx.edges, _Saved(*ctx.saved_tensors), received.rows
    assert g is not None
    p, h = saved.p, saved.rows[0]
    decoded = [ops.dequantize_rows(*rows) for rows in saved.rows]
    given = (edges.rowptr, edges.col, decoded[0], decoded[-1], saved.att.contiguous(), setting.slope)
    dp = setting.dropped(ops.sddmm_int8(edges.rowptr, edges.col, g, h, p.size(1)))
    dlogits = edge_softmax_backward(edges.rowptr, p, dp)
    dh_src, dh_dst, datt = gatv2_backward(*given, edges.t_rowptr, edges.t_col, edges.t_perm, dlogits)
    if len(decoded) == 1:
        dh_src, dh_dst = dh_src.add_(dh_dst), None
    if needs_src:  # plus the sum of w_e G_i over the edges out of each node
        w = ops.gather_rows(setting.dropped(p), edges.t_perm)
        dh_src = spmm_int8_op(Sparse(edges.t_rowptr, edges.t_col, w), g, None, None, dh_src)
    return dh_src, dh_dst, datt
