"""Neighbour sums: sparse matrix times dense rows.

    sum:   out_i = dst_scale_i * sum over edges e = (j -> i) of value_e * src_scale_j * x_j
                   + diagonal_i * x_i + rows_i + bias
    mean:  the sum with dst_scale_i = 1 / max(degree_i, 1)
    max:   out_i = max over edges of value_e * x_j, 0 where there are none; ties go to the first edge (ops/spmm_max.py)

`diagonal` [min(num_src, num_dst)], the main diagonal of the matrix, holds the weights of self-loops that are not among
the edges; a zero is no loop. Node i is the i-th source and the i-th destination; of a rectangular matrix the nodes that
are both come first. A constant diagonal is expanded from one element, and nothing more is stored or read. `value` may
have one column per head: [nnz, heads] with x [num_src, heads, width]. bfloat16 rows are summed in float32. With `keep`
[num_src] only edges from sources that it keeps are summed (ops/row_selection.py); a node's own row is added all the
same.

    d x     = the same product with A transposed and the two scales exchanged, + diagonal * dout
    d bias  = column sums of dout,  d rows = dout
    d value = dst_scale_i * src_scale_j * <dout_i, x_j> per head                                      (ops/sddmm.py)

With fixed values nothing is saved for backward but the graph and the diagonal. Cost: nnz * width multiplications, and
as many elements read; the sum of a row is taken in edge order, so results do not depend on the number of threads.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from . import _checks
from ._library import define
from ._sum_checks import FLOATS, check_ends, check_heads, check_weights, heads_of, plus_own_rows, refuse_gradient
from .csr import Sparse, row_of_edge, transpose_csr
from .gather_rows import gather_rows
from .linear import bias_gradient
from .row_selection import check_keep, filter_edges, kept_matrix, only_kept

if TYPE_CHECKING:
    from ..graph import Graph


def _check(
    a: Sparse, x: Tensor, bias: Tensor | None, diagonal: Tensor | None, rows: Tensor | None, t_rowptr: Tensor | None,
    t_col: Tensor | None, t_perm: Tensor | None, t_value: Tensor | None, keep: Tensor | None = None,
) -> None:  # fmt: skip
    _checks.dtype_of("x", x, FLOATS)
    _checks.shape_of("x", x, (None, None), "[num_src, columns]")
    check_weights(a, x)
    check_ends(a.num_dst, x, bias, diagonal, rows)
    check_keep(keep, x.size(0))


def weights_of_edges(col: Tensor, value: Tensor | None, src_scale: Tensor | None, dtype: torch.dtype) -> Tensor:
    """value * src_scale of each edge, [nnz, heads]."""
    weight = torch.ones(col.numel(), 1, dtype=dtype, device=col.device)
    if value is not None:
        weight = value.to(dtype).reshape(col.numel(), heads_of(value))
    if src_scale is not None:
        weight = weight * src_scale.to(dtype)[col.long()].unsqueeze(1)
    return weight


def weighted_sum(a: Sparse, x: Tensor, keep: Tensor | None = None) -> Tensor:
    """The definition of `spmm`, in the dtype of x."""
    a = kept_matrix(a, keep, filter_edges.reference)
    nnz = a.col.numel()
    weight = weights_of_edges(a.col, a.value, a.src_scale, x.dtype)
    heads = weight.size(1)
    message = x[a.col.long()].view(nnz, heads, x.size(1) // heads) * weight.unsqueeze(2)
    out = x.new_zeros(a.num_dst, x.size(1))
    out.index_add_(0, row_of_edge(a.rowptr), message.view(nnz, x.size(1)))
    return out if a.dst_scale is None else out * a.dst_scale.to(x.dtype).unsqueeze(1)


def _reference(
    a: Sparse, x: Tensor, bias: Tensor | None, diagonal: Tensor | None, rows: Tensor | None, t_rowptr: Any = None,
    t_col: Any = None, t_perm: Any = None, t_value: Any = None, keep: Tensor | None = None,
) -> Tensor:  # fmt: skip
    wide = x.float() if x.dtype == torch.bfloat16 else x
    out = plus_own_rows(weighted_sum(a, wide, keep), wide, diagonal)
    out = out if rows is None else out + rows
    return (out if bias is None else out + bias).to(x.dtype)


def _fake(a: Sparse, x: Tensor, *rest: Any) -> Tensor:
    return x.new_empty(a.num_dst, x.size(1))


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    a, x, bias, diagonal, rows, *transposed, keep = inputs
    refuse_gradient(src_scale=a.src_scale, dst_scale=a.dst_scale, diagonal=diagonal)
    needs_value = a.value is not None and a.value.requires_grad
    ctx.save_for_backward(*a, x if needs_value else None, diagonal, *transposed, keep)
    ctx.num_src = x.size(0)
    ctx.bias_dtype = None if bias is None else bias.dtype
    ctx.rows_dtype = None if rows is None else rows.dtype


def _backward(ctx: Any, dout: Tensor) -> tuple[Any, ...]:
    *matrix, x, diagonal, t_rowptr, t_col, t_perm, t_value, keep = ctx.saved_tensors
    a, (needs, needs_x, needs_bias, _, needs_rows, *_) = Sparse(*matrix), ctx.needs
    dx = dvalue = None
    if needs_x:
        if t_rowptr is None:
            t_rowptr, t_col, t_perm = transpose_csr(a.rowptr, a.col, ctx.num_src)
        if a.value is not None and t_value is None:
            t_value = gather_rows(a.value, t_perm)
        back = Sparse(t_rowptr, t_col, t_value, a.dst_scale, a.src_scale)
        if keep is None:
            dx = row_sums(back, dout.contiguous(), diagonal)
        else:
            dx = plus_own_rows(torch.where(keep.unsqueeze(1), row_sums(back, dout.contiguous()), 0.0), dout, diagonal)
    if needs.value:
        from .sddmm import edge_gradient

        dvalue = only_kept(edge_gradient(a, x, dout, (t_rowptr, t_col, t_perm)), a.col, keep)
    dbias = bias_gradient(dout).to(ctx.bias_dtype) if needs_bias else None
    drows = dout.to(ctx.rows_dtype) if needs_rows else None
    return (None, None, dvalue, None, None), dx, dbias, None, drows, None, None, None, None, None


def row_sums(a: Sparse, x: Tensor, diagonal: Tensor | None = None, keep: Tensor | None = None) -> Tensor:
    """A x + diagonal * x, the first over sources that are kept."""
    return spmm_op(a, x, None, diagonal, None, None, None, None, None, keep)


spmm_op = define(
    "spmm(Sparse, Tensor x, Tensor? bias, Tensor? diagonal, Tensor? rows, "
    "Tensor? t_rowptr, Tensor? t_col, Tensor? t_perm, Tensor? t_value, Tensor? keep=None) -> Tensor",
    check=_check,
    reference=_reference,
    fake=_fake,
    backward=_backward,
    setup_context=_setup_context,
)


def spmm(
    graph: Graph,
    x: Tensor,
    value: Tensor | None = None,
    reduce: Literal["sum", "mean", "max"] = "sum",
    bias: Tensor | None = None,
    diagonal: Tensor | None = None,
    rows: Tensor | None = None,
    scale: Tensor | None = None,
) -> Tensor:
    """Sum, mean or maximum of the neighbours' rows; `value` (CSR order) replaces the graph's own edge weights.

    `scale` [nodes] multiplies each edge's weight by fixed factors of its source and of its destination (sums only).
    `diagonal` [min(num_src, num_dst)] times the node's own row, its row in `rows` [num_dst, ..] and `bias` are added in
    the same pass.
    """
    from .spmm_max import spmm_max

    if reduce not in ("sum", "mean", "max"):
        raise ValueError(f"`reduce` must be 'sum', 'mean' or 'max' (got {reduce!r})")
    graph.check_rows("x", x)
    weights = graph.value if value is None else value
    check_heads(x, weights)
    if scale is not None and reduce != "sum":
        raise ValueError(f"`scale` goes with reduce='sum' alone (got {reduce!r})")
    if reduce == "max":
        top = spmm_max(graph, x, weights)
        check_ends(graph.num_dst, x, bias, diagonal, rows)
        refuse_gradient(diagonal=diagonal)
        top = plus_own_rows(top, x, diagonal)
        top = top if rows is None else top + rows.to(x.dtype)
        return top if bias is None else top + bias.to(x.dtype)
    flat = x.flatten(1) if x.dim() == 3 else x
    rows = rows.flatten(1) if rows is not None and x.dim() == rows.dim() == 3 else rows
    transposed: tuple[Tensor | None, ...] = (None, None, None, None)
    if torch.is_grad_enabled() and x.requires_grad and not graph.is_traced:
        t = graph.t()
        order = (None, t.value) if value is None else (graph.t_perm, None)  # the graph's own weights are sorted already
        transposed = (t.rowptr, t.col, *order)
    dst_scale = graph.inverse_degree if reduce == "mean" else scale
    matrix = Sparse(graph.rowptr, graph.col, weights, scale, dst_scale)
    out = spmm_op(matrix, flat.contiguous(), bias, diagonal, rows, *transposed)
    return out if x.dim() == 2 else out.view(graph.num_dst, *x.shape[1:])  # a view refuses in-place ops in a Function
