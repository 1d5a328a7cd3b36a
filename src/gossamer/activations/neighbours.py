"""Neighbour sums whose edge weights are learned: few bits of the rows are kept for the weights' gradient.

    out_i = s_i sum over edges e = (j -> i) of v_e x_j        dv_e = s_i <dout_i, x^_j>        dx = A^T dout (exact)

with s the inverse degree for means. A sum with fixed weights keeps nothing and is ops.spmm itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from .. import ops
from ..codecs.codec import Codes
from ..ops.sddmm import edge_gradient
from .noise import draw_seed, refuse_twice
from .plan import Plan

if TYPE_CHECKING:
    from ..graph import Graph


class _LearnedSum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, value: Tensor, graph: Graph, reduce: Any, plan: Plan) -> Tensor:
        ctx.graph, ctx.reduce, ctx.codec = graph, reduce, None
        kept: tuple[Tensor, ...] = (x,)
        if x.requires_grad or not plan.shared:
            codes = plan.values.encode(x, draw_seed(x))
            ctx.codec, ctx.meta, kept = plan.values, (codes.shape, codes.dtype), codes.tensors
        ctx.save_for_backward(value, *kept)
        return ops.spmm(graph, x, value, reduce)

    @staticmethod
    def backward(ctx: Any, dout: Tensor) -> tuple[Tensor | None, ...]:
        value, *kept = ctx.saved_tensors
        graph, needs, dout = ctx.graph, ctx.needs_input_grad, dout.contiguous()
        with torch.no_grad():
            degree = graph.inverse_degree if ctx.reduce == "mean" else None
            dx = dvalue = None
            if needs[1]:
                x = kept[0] if ctx.codec is None else ctx.codec.decode(Codes(tuple(kept), *ctx.meta))
                none = (None, None, None)
                dvalue = edge_gradient(graph.rowptr, graph.col, value, None, degree, x, dout, none)
            if needs[0]:
                scaled = dout if degree is None else dout * degree.unsqueeze(1)
                dx = ops.spmm(graph.t(), scaled, ops.gather_rows(value, graph.t_perm))
        return refuse_twice(dx, dvalue, None, None, None)


def neighbour_sum(
    graph: Graph, x: Tensor, value: Tensor | None, reduce: Literal["sum", "mean", "max"] = "sum",
    bias: Tensor | None = None, rows: Tensor | None = None, scale: Tensor | None = None, plan: Plan | None = None,
) -> Tensor:  # fmt: skip
    """ops.spmm, keeping few bits of x if the weights are learned and the plan says so."""
    learned = value is not None and value.requires_grad
    if plan is None or value is None or not learned or reduce == "max" or not plan.worth(x):
        return ops.spmm(graph, x, value, reduce, bias=bias, rows=rows, scale=scale)
    out = _LearnedSum.apply(x, value, graph, reduce, plan)
    out = out if rows is None else out + rows
    return out if bias is None else out + bias
