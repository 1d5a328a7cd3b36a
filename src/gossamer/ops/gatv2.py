"""GATv2's attention logits: a small network on every edge, without laying the rows out per edge.

    l_eh = sum over the columns c of head h of  att_c leaky(x_src_jc + x_dst_ic)         e = (j -> i)

    dx_dst_i, dx_src_j = sums over the edges of i, of j, of  dl_e att leaky'(x_src_j + x_dst_i)
    datt               = sum over all edges of  dl_e leaky(x_src_j + x_dst_i)

Keeps the two tensors of rows. Cost: three passes like a neighbour sum, one forward and two backward.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from . import _checks
from ._library import define
from .activation import check_slope
from .attention import FLOATS, leaky, leaky_derivative
from .csr import row_of_edge, transpose_csr

if TYPE_CHECKING:
    from ..graph import Graph


def _check(
    rowptr: Tensor, col: Tensor, x_src: Tensor, x_dst: Tensor, att: Tensor, slope: float,
    t_rowptr: Tensor | None, t_col: Tensor | None, t_perm: Tensor | None,
) -> None:  # fmt: skip
    _checks.dtype_of("x_src", x_src, FLOATS)
    _checks.shape_of("x_src", x_src, (None, None), "[num_src, heads * width]")
    _checks.csr(rowptr, col, x_src.size(0))
    shape = (rowptr.numel() - 1, x_src.size(1))
    _checks.dtype_of("x_dst", x_dst, (x_src.dtype,))
    _checks.shape_of("x_dst", x_dst, shape, f"[{shape[0]}, {shape[1]}], as wide as x_src")
    _checks.dtype_of("att", att, (x_src.dtype,))
    _checks.shape_of("att", att, (None, None), "[heads, width]")
    if att.size(0) == 0 or att.numel() != x_src.size(1):
        raise ValueError(
            f"`att` must have at least one head and as many elements as x_src has columns, {x_src.size(1)} "
            f"(got {att.size(0)} heads and {att.numel()} elements)"
        )
    check_slope(slope)


def _sums(rowptr: Tensor, col: Tensor, x_src: Tensor, x_dst: Tensor, att: Tensor) -> Tensor:
    return (x_src[col.long()] + x_dst[row_of_edge(rowptr)]).view(col.numel(), *att.shape)  # [nnz, heads, width]


def _reference(
    rowptr: Tensor, col: Tensor, x_src: Tensor, x_dst: Tensor, att: Tensor, slope: float,
    t_rowptr: Tensor | None, t_col: Tensor | None, t_perm: Tensor | None,
) -> Tensor:  # fmt: skip
    return (leaky(_sums(rowptr, col, x_src, x_dst, att), slope) * att).sum(-1)


def _fake(
    rowptr: Tensor, col: Tensor, x_src: Tensor, x_dst: Tensor, att: Tensor, slope: float,
    t_rowptr: Tensor | None, t_col: Tensor | None, t_perm: Tensor | None,
) -> Tensor:  # fmt: skip
    return x_src.new_empty(col.size(0), att.size(0))


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    rowptr, col, x_src, x_dst, att, ctx.slope, *transposed = inputs
    ctx.save_for_backward(rowptr, col, x_src, x_dst, att, *transposed)


def _backward(ctx: Any, dlogits: Tensor) -> tuple[Tensor | None, ...]:
    rowptr, col, x_src, x_dst, att, *transposed = ctx.saved_tensors
    if transposed[0] is None:
        transposed = transpose_csr(rowptr, col, x_src.size(0))
    grads = gatv2_backward.followed(rowptr, col, x_src, x_dst, att, ctx.slope, *transposed, dlogits.contiguous())
    return None, None, *grads, None, None, None, None


gatv2_logits_op = define(
    "gatv2_logits(Tensor rowptr, Tensor col, Tensor x_src, Tensor x_dst, Tensor att, float slope, "
    "Tensor? t_rowptr, Tensor? t_col, Tensor? t_perm) -> Tensor",
    check=_check,
    reference=_reference,
    fake=_fake,
    backward=_backward,
    setup_context=_setup_context,
)


def _check_backward(
    rowptr: Tensor, col: Tensor, x_src: Tensor, x_dst: Tensor, att: Tensor, slope: float,
    t_rowptr: Tensor, t_col: Tensor, t_perm: Tensor, dlogits: Tensor,
) -> None:  # fmt: skip
    _check(rowptr, col, x_src, x_dst, att, slope, t_rowptr, t_col, t_perm)
    _checks.csr(t_rowptr, t_col, rowptr.numel() - 1)
    _checks.shape_of("t_col", t_col, (col.numel(),), f"[{col.numel()}], as many edges as the graph has")
    _checks.dtype_of("t_perm", t_perm, (torch.int64,))
    _checks.shape_of("t_rowptr", t_rowptr, (x_src.size(0) + 1,), f"[{x_src.size(0) + 1}]")
    _checks.shape_of("t_perm", t_perm, (col.numel(),), f"[{col.numel()}]")
    _checks.ids_within("t_perm", t_perm, col.numel(), "edges")
    _checks.dtype_of("dlogits", dlogits, (x_src.dtype,))
    _checks.shape_of("dlogits", dlogits, (col.numel(), att.size(0)), f"[{col.numel()}, {att.size(0)}]")


def _backward_reference(
    rowptr: Tensor, col: Tensor, x_src: Tensor, x_dst: Tensor, att: Tensor, slope: float,
    t_rowptr: Tensor, t_col: Tensor, t_perm: Tensor, dlogits: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    s, dl = _sums(rowptr, col, x_src, x_dst, att), dlogits.unsqueeze(2)
    per_edge = (dl * att * leaky_derivative(s, slope)).flatten(1)
    dx_src = torch.zeros_like(x_src).index_add(0, col.long(), per_edge)
    dx_dst = torch.zeros_like(x_dst).index_add(0, row_of_edge(rowptr), per_edge)
    return dx_src, dx_dst, (dl * leaky(s, slope)).sum(0)


gatv2_backward = define(
    "gatv2_backward(Tensor rowptr, Tensor col, Tensor x_src, Tensor x_dst, Tensor att, float slope, "
    "Tensor t_rowptr, Tensor t_col, Tensor t_perm, Tensor dlogits) -> (Tensor, Tensor, Tensor)",
    check=_check_backward,
    reference=_backward_reference,
    fake=lambda rowptr, col, x_src, x_dst, att, *rest: (
        torch.empty_like(x_src),
        torch.empty_like(x_dst),
        torch.empty_like(att),
    ),
)


def gatv2_logits(graph: Graph, x_src: Tensor, x_dst: Tensor, att: Tensor, slope: float = 0.2) -> Tensor:
    """One logit per edge (CSR order) and head, from rows [nodes, heads * width] and att [heads, width]."""
    transposed: tuple[Tensor | None, ...] = (None, None, None)
    needs_grad = x_src.requires_grad or x_dst.requires_grad or att.requires_grad
    if torch.is_grad_enabled() and needs_grad and not graph.is_traced:
        t = graph.t()
        transposed = (t.rowptr, t.col, graph.t_perm)
    rows = (x_src.contiguous(), x_dst.contiguous(), att.contiguous())
    return gatv2_logits_op(graph.rowptr, graph.col, *rows, slope, *transposed)
