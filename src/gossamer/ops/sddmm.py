"""One dot product per edge: sampled dense-dense matrix multiplication.

    out[e, h] = <a_i, b_j>_h      for e = (j -> i), over the columns of head h

    d a = the neighbour sum of b with weights dout       d b = that of a over the transposed edges       (ops/spmm.py)

It is the gradient of `spmm` for edge weights, and attention by dot products. Cost: that of the `spmm`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from . import _checks
from ._library import define
from ._sum_checks import heads_of
from .csr import Sparse, row_of_edge, transpose_csr
from .gather_rows import gather_rows
from .spmm import row_sums, spmm_op

if TYPE_CHECKING:
    from ..graph import Graph


def _check(
    rowptr: Tensor, col: Tensor, a: Tensor, b: Tensor, heads: int,
    t_rowptr: Tensor | None, t_col: Tensor | None, t_perm: Tensor | None,
) -> None:  # fmt: skip
    _checks.dtype_of("a", a, (torch.float32, torch.float64))
    _checks.dtype_of("b", b, (a.dtype,))
    _checks.shape_of("a", a, (rowptr.numel() - 1, None), f"[num_dst, columns] with num_dst = {rowptr.numel() - 1}")
    _checks.shape_of("b", b, (None, a.size(1)), f"[num_src, columns] with {a.size(1)} columns, those of `a`")
    _checks.csr(rowptr, col, b.size(0))
    if heads < 1 or a.size(1) % heads:
        raise ValueError(f"`heads` must divide the number of columns, {a.size(1)} (got {heads})")


def _reference(
    rowptr: Tensor, col: Tensor, a: Tensor, b: Tensor, heads: int,
    t_rowptr: Tensor | None, t_col: Tensor | None, t_perm: Tensor | None,
) -> Tensor:  # fmt: skip
    product = a[row_of_edge(rowptr)] * b[col.long()]  # [nnz, columns]
    return product.view(col.numel(), heads, a.size(1) // heads).sum(2)


def _fake(
    rowptr: Tensor, col: Tensor, a: Tensor, b: Tensor, heads: int,
    t_rowptr: Tensor | None, t_col: Tensor | None, t_perm: Tensor | None,
) -> Tensor:  # fmt: skip
    return a.new_empty(col.size(0), heads)


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    rowptr, col, a, b, _, *transposed = inputs
    ctx.save_for_backward(rowptr, col, a, b, *transposed)


def _backward(ctx: Any, dout: Tensor) -> tuple[Tensor | None, ...]:
    rowptr, col, a, b, t_rowptr, t_col, t_perm = ctx.saved_tensors
    da = db = None
    dout = dout.contiguous()
    _, _, needs_a, needs_b, *_ = ctx.needs_input_grad
    if needs_a:
        da = spmm_op(Sparse(rowptr, col, dout), b, None, None, None, t_rowptr, t_col, t_perm, None)
    if needs_b:
        if t_rowptr is None:
            t_rowptr, t_col, t_perm = transpose_csr(rowptr, col, b.size(0))
        db = row_sums(Sparse(t_rowptr, t_col, gather_rows(dout, t_perm)), a)
    return None, None, da, db, None, None, None, None


sddmm_op = define(
    "sddmm(Tensor rowptr, Tensor col, Tensor a, Tensor b, int heads, "
    "Tensor? t_rowptr, Tensor? t_col, Tensor? t_perm) -> Tensor",
    check=_check,
    reference=_reference,
    fake=_fake,
    backward=_backward,
    setup_context=_setup_context,
)


def edge_gradient(
    a: Sparse, x: Tensor, dout: Tensor, transposed: Sequence[Tensor | None] = (None, None, None)
) -> Tensor:
    """d value of a neighbour sum: dst_scale_i * src_scale_j * <dout_i, x_j>, in the shape and dtype of `value`."""
    assert a.value is not None
    if x.dtype == torch.bfloat16:
        x, dout = x.float(), dout.float()
    scaled = dout if a.dst_scale is None else dout * a.dst_scale.to(dout.dtype).unsqueeze(1)
    grad = sddmm_op(a.rowptr, a.col, scaled.contiguous(), x.contiguous(), heads_of(a.value), *transposed)
    if a.src_scale is not None:
        grad = grad * a.src_scale.to(grad.dtype)[a.col.long()].unsqueeze(1)
    return grad.view_as(a.value).to(a.value.dtype)


def sddmm(graph: Graph, a: Tensor, b: Tensor) -> Tensor:
    """<a_i, b_j> of each edge j -> i, in CSR order: [nnz], or [nnz, heads] for a, b of shape [nodes, heads, width]."""
    if a.dim() != b.dim() or a.dim() not in (2, 3) or a.shape[1:] != b.shape[1:]:
        raise ValueError(
            "`a` and `b` must both be [nodes, columns] or [nodes, heads, width] with equal columns "
            f"(got {tuple(a.shape)} and {tuple(b.shape)})"
        )
    graph.check_rows("b", b)
    heads = a.size(1) if a.dim() == 3 else 1
    transposed: tuple[Tensor | None, ...] = (None, None, None)
    if torch.is_grad_enabled() and b.requires_grad and not graph.is_traced:
        t = graph.t()
        transposed = (t.rowptr, t.col, graph.t_perm)
    flat = [t.flatten(1).contiguous() for t in (a, b)]
    out = sddmm_op(graph.rowptr, graph.col, *flat, heads, *transposed)
    return out if a.dim() == 3 else out.squeeze(1)
