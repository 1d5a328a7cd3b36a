"""Neighbour sums whose heads are averaged: the last layer of a GAT.

    out_i = 1/H sum over edges e = (j -> i) and heads h of  value[e, h] * x[j, h]  + bias      x[j, h] has width columns

    dx[j, h] = 1/H sum over the edges out of j of  value[e, h] * dout_i
    dvalue[e, h] = 1/H <dout_i, x[j, h]>            dbias = column sums of dout

As `spmm` and a mean over heads, but the rows of all heads are never written, and backward gathers one row of `width`
columns per edge for both gradients, in one pass over the transposed edges; edges into rows of dout that are zero, as
those of nodes without a label, are skipped. Saves value, and x if value requires grad.
The order of every sum is fixed, so any number of threads gives the same bits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from . import _checks
from ._library import define
from .csr import row_of_edge, transpose_csr
from .linear import column_sums
from .row_selection import check_keep, rows_that_count

if TYPE_CHECKING:
    from ..graph import Graph

FLOATS = (torch.float32, torch.float64)


def _check_value(value: Tensor, dtype: torch.dtype, nnz: int) -> None:
    _checks.dtype_of("value", value, (dtype,))
    _checks.shape_of("value", value, (nnz, None), f"[nnz, heads] with nnz = {nnz}")
    if value.size(1) == 0:
        raise ValueError("`value` must have at least one head (got 0)")


def _check(
    rowptr: Tensor, col: Tensor, value: Tensor, x: Tensor, bias: Tensor | None,
    t_rowptr: Tensor | None, t_col: Tensor | None, t_perm: Tensor | None,
) -> None:  # fmt: skip
    _checks.dtype_of("x", x, FLOATS)
    _checks.shape_of("x", x, (None, None), "[num_src, heads * width]")
    _checks.csr(rowptr, col, x.size(0))
    _check_value(value, x.dtype, col.numel())
    if x.size(1) % value.size(1):
        raise ValueError(f"`value` must have heads that divide the {x.size(1)} columns of x (got {value.size(1)})")
    if bias is not None:
        width = x.size(1) // value.size(1)
        _checks.dtype_of("bias", bias, (x.dtype,))
        _checks.shape_of("bias", bias, (width,), f"[{width}], one number per column of a head")


def _reference(
    rowptr: Tensor, col: Tensor, value: Tensor, x: Tensor, bias: Tensor | None,
    t_rowptr: Tensor | None, t_col: Tensor | None, t_perm: Tensor | None,
) -> Tensor:  # fmt: skip
    heads = value.size(1)
    rows = x.view(x.size(0), heads, x.size(1) // heads)[col.long()]  # [nnz, heads, width]
    message = (rows * value.unsqueeze(2)).sum(1) / heads
    out = x.new_zeros(rowptr.numel() - 1, rows.size(2)).index_add(0, row_of_edge(rowptr), message)
    return out if bias is None else out + bias


def _fake(
    rowptr: Tensor, col: Tensor, value: Tensor, x: Tensor, bias: Tensor | None,
    t_rowptr: Tensor | None, t_col: Tensor | None, t_perm: Tensor | None,
) -> Tensor:  # fmt: skip
    return x.new_empty(rowptr.size(0) - 1, x.size(1) // value.size(1))


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    rowptr, col, value, x, _, *transposed = inputs
    ctx.num_src = x.size(0)
    ctx.save_for_backward(rowptr, col, value, x if value.requires_grad else None, *transposed)


def _backward(ctx: Any, dout: Tensor) -> tuple[Tensor | None, ...]:
    rowptr, col, value, x, *transposed = ctx.saved_tensors
    dvalue = dx = None
    _, _, of_value, of_x, of_bias, *_ = ctx.needs_input_grad
    if of_value or of_x:
        if transposed[0] is None:
            transposed = transpose_csr(rowptr, col, ctx.num_src)
        dout = dout.contiguous()
        keep = None if torch.is_grad_enabled() else rows_that_count(dout, value.numel() * dout.size(1))
        given = (value, x if of_value else None, dout, of_x, keep)
        dx, dvalue = head_mean_backward.followed(*transposed, *given)
        dx, dvalue = dx if of_x else None, dvalue if of_value else None
    dbias = column_sums(dout.contiguous()) if of_bias else None
    return None, None, dvalue, dx, dbias, None, None, None


head_mean_spmm_op = define(
    "head_mean_spmm(Tensor rowptr, Tensor col, Tensor value, Tensor x, Tensor? bias, "
    "Tensor? t_rowptr, Tensor? t_col, Tensor? t_perm) -> Tensor",
    check=_check,
    reference=_reference,
    fake=_fake,
    backward=_backward,
    setup_context=_setup_context,
)


# Gradients of both, from the graph transposed; `perm` says where in `value` each of its edges stands, and `keep` which
# rows of dout count.


def _check_backward(
    rowptr: Tensor, col: Tensor, perm: Tensor, value: Tensor, x: Tensor | None, dout: Tensor, needs_dx: bool,
    keep: Tensor | None = None,
) -> None:  # fmt: skip
    _checks.dtype_of("dout", dout, FLOATS)
    _checks.shape_of("dout", dout, (None, None), "[num_dst, width]")
    _checks.csr(rowptr, col, dout.size(0))
    check_keep(keep, dout.size(0))
    _check_value(value, dout.dtype, col.numel())
    _checks.permutation("perm", perm, col.numel())
    if x is not None:
        shape = (rowptr.numel() - 1, value.size(1) * dout.size(1))
        _checks.dtype_of("x", x, (dout.dtype,))
        _checks.shape_of("x", x, shape, f"[{shape[0]}, {shape[1]}], the heads of each source")


def _backward_reference(
    rowptr: Tensor, col: Tensor, perm: Tensor, value: Tensor, x: Tensor | None, dout: Tensor, needs_dx: bool,
    keep: Tensor | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    num_src, heads = rowptr.numel() - 1, value.size(1)
    dout = dout if keep is None else torch.where(keep.unsqueeze(1), dout, 0.0)
    source, dmessage = row_of_edge(rowptr), (dout / heads)[col.long()].unsqueeze(1)  # [nnz, 1, width]
    dx = dvalue = dout.new_empty(0)
    if needs_dx:
        dx = dout.new_zeros(num_src, heads * dout.size(1))
        dx = dx.index_add(0, source, (value[perm].unsqueeze(2) * dmessage).flatten(1))
    if x is not None:
        dots = (x.view(num_src, heads, dout.size(1))[source] * dmessage).sum(2)  # [nnz, heads]
        dvalue = torch.zeros_like(dots).index_copy(0, perm, dots)
    return dx, dvalue


def _backward_fake(
    rowptr: Tensor, col: Tensor, perm: Tensor, value: Tensor, x: Tensor | None, dout: Tensor, needs_dx: bool,
    keep: Tensor | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    dx_shape = (rowptr.size(0) - 1, value.size(1) * dout.size(1)) if needs_dx else (0,)
    return dout.new_empty(dx_shape), dout.new_empty(value.shape if x is not None else (0,))


head_mean_backward = define(
    "head_mean_backward(Tensor rowptr, Tensor col, Tensor perm, Tensor value, Tensor? x, Tensor dout, "
    "bool needs_dx, Tensor? keep=None) -> (Tensor, Tensor)",
    check=_check_backward,
    reference=_backward_reference,
    fake=_backward_fake,
)


def head_mean_spmm(graph: Graph, x: Tensor, value: Tensor, bias: Tensor | None = None) -> Tensor:
    """The mean over heads of `spmm(graph, x, value)`, [num_dst, width], with `value` [nnz, heads] in CSR order.

    x is [num_src, heads * width] or [num_src, heads, width]; `bias` [width] is added in the same pass.
    """
    graph.check_rows("x", x)
    if x.dim() == 3 and value.dim() == 2 and value.size(1) != x.size(1):
        raise ValueError(f"`value` must have one column for each of the {x.size(1)} heads of x (got {value.size(1)})")
    transposed: tuple[Tensor | None, ...] = (None, None, None)
    if torch.is_grad_enabled() and (x.requires_grad or value.requires_grad) and not graph.is_traced:
        t = graph.t()
        transposed = (t.rowptr, t.col, graph.t_perm)
    rows = x.flatten(1) if x.dim() == 3 else x
    return head_mean_spmm_op(graph.rowptr, graph.col, value.contiguous(), rows.contiguous(), bias, *transposed)
