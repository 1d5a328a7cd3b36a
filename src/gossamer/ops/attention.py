"""GAT's attention weights over the edges into each node.

    s_e = a_src_j + a_dst_i + a_edge_e      p_e = softmax over the edges e = (j -> i) of row i of leaky(s_e)

    ds_e = p_e (dp_e - sum over the row of p dp) leaky'(s_e)
    da_dst_i = sum of ds over row i         da_src_j = its sum over the edges out of j         da_edge_e = ds_e

Everything is per node, or per edge and head; rows of features do not enter. Saves p and the terms. The order
of a row's sums depends on its length alone, so any number of threads gives the same bits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from . import _checks
from ._library import define
from .activation import check_slope
from .csr import row_of_edge, transpose_csr
from .edge_softmax import edge_softmax_backward, edge_softmax_op

if TYPE_CHECKING:
    from ..graph import Graph

FLOATS = (torch.float32, torch.float64)


def leaky(s: Tensor, slope: float) -> Tensor:
    return torch.where(s > 0, s, s * slope)


def leaky_derivative(s: Tensor, slope: float) -> Tensor:
    return torch.where(s > 0, torch.ones_like(s), slope)


# Sums of edge values ------------------------------------------------------------------------------------------------


def _check_sums(rowptr: Tensor, perm: Tensor | None, values: Tensor) -> None:
    _checks.dtype_of("values", values, FLOATS)
    _checks.shape_of("values", values, (None, None), "[nnz, heads]")
    _checks.rowptr_of(rowptr, values.size(0))
    if perm is not None:
        _checks.dtype_of("perm", perm, (torch.int64,))
        _checks.shape_of("perm", perm, (values.size(0),), f"[{values.size(0)}], one position per edge")
        _checks.ids_within("perm", perm, values.size(0), "edges")


def sums_of_edges(rowptr: Tensor, perm: Tensor | None, values: Tensor) -> Tensor:
    sums = values.new_zeros(rowptr.numel() - 1, values.size(1))
    return sums.index_add(0, row_of_edge(rowptr), values if perm is None else values[perm])


edge_sums = define(
    "edge_sums(Tensor rowptr, Tensor? perm, Tensor values) -> Tensor",
    check=_check_sums,
    reference=sums_of_edges,
    fake=lambda rowptr, perm, values: values.new_empty(rowptr.size(0) - 1, values.size(1)),
)


# GAT ------------------------------------------------------------------------------------------------------------


def _check_gat(
    rowptr: Tensor, col: Tensor, a_src: Tensor, a_dst: Tensor | None, a_edge: Tensor | None, slope: float,
    t_rowptr: Tensor | None, t_perm: Tensor | None,
) -> None:  # fmt: skip
    _checks.dtype_of("a_src", a_src, FLOATS)
    _checks.shape_of("a_src", a_src, (None, None), "[num_src, heads]")
    _checks.csr(rowptr, col, a_src.size(0))
    check_slope(slope)
    heads = a_src.size(1)
    for name, term, count in (("a_dst", a_dst, rowptr.numel() - 1), ("a_edge", a_edge, col.numel())):
        if term is not None:
            _checks.dtype_of(name, term, (a_src.dtype,))
            _checks.shape_of(name, term, (count, heads), f"[{count}, {heads}]")


def gat_sums(rowptr: Tensor, col: Tensor, a_src: Tensor, a_dst: Tensor | None, a_edge: Tensor | None) -> Tensor:
    s = a_src[col.long()]
    s = s if a_dst is None else s + a_dst[row_of_edge(rowptr)]
    return s if a_edge is None else s + a_edge


def _gat_reference(
    rowptr: Tensor, col: Tensor, a_src: Tensor, a_dst: Tensor | None, a_edge: Tensor | None, slope: float,
    t_rowptr: Tensor | None, t_perm: Tensor | None,
) -> Tensor:  # fmt: skip
    return edge_softmax_op.reference(rowptr, leaky(gat_sums(rowptr, col, a_src, a_dst, a_edge), slope))


def _gat_fake(
    rowptr: Tensor, col: Tensor, a_src: Tensor, a_dst: Tensor | None, a_edge: Tensor | None, slope: float,
    t_rowptr: Tensor | None, t_perm: Tensor | None,
) -> Tensor:  # fmt: skip
    return a_src.new_empty(col.size(0), a_src.size(1))


def _gat_setup(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    rowptr, col, a_src, a_dst, a_edge, ctx.slope, t_rowptr, t_perm = inputs
    ctx.save_for_backward(rowptr, col, a_src, a_dst, a_edge, output, t_rowptr, t_perm)


def _gat_backward(ctx: Any, dp: Tensor) -> tuple[Tensor | None, ...]:
    rowptr, col, a_src, a_dst, a_edge, p, t_rowptr, t_perm = ctx.saved_tensors
    ds, da_dst = gat_attention_backward.followed(rowptr, col, a_src, a_dst, a_edge, ctx.slope, p, dp.contiguous())
    if t_rowptr is None:
        t_rowptr, _, t_perm = transpose_csr(rowptr, col, a_src.size(0))
    _, _, needs_src, *_ = ctx.needs_input_grad
    da_src = edge_sums.followed(t_rowptr, t_perm, ds) if needs_src else None
    return (
        None, None, da_src, None if a_dst is None else da_dst, None if a_edge is None else ds, None, None, None,
    )  # fmt: skip


gat_attention_op = define(
    "gat_attention(Tensor rowptr, Tensor col, Tensor a_src, Tensor? a_dst, Tensor? a_edge, float slope, "
    "Tensor? t_rowptr, Tensor? t_perm) -> Tensor",
    check=_check_gat,
    reference=_gat_reference,
    fake=_gat_fake,
    backward=_gat_backward,
    setup_context=_gat_setup,
)


def _check_gat_backward(
    rowptr: Tensor, col: Tensor, a_src: Tensor, a_dst: Tensor | None, a_edge: Tensor | None, slope: float,
    p: Tensor, dp: Tensor,
) -> None:  # fmt: skip
    _check_gat(rowptr, col, a_src, a_dst, a_edge, slope, None, None)
    for name, tensor in (("p", p), ("dp", dp)):
        _checks.dtype_of(name, tensor, (a_src.dtype,))
        _checks.shape_of(name, tensor, (col.numel(), a_src.size(1)), f"[{col.numel()}, {a_src.size(1)}]")


def _gat_backward_reference(
    rowptr: Tensor, col: Tensor, a_src: Tensor, a_dst: Tensor | None, a_edge: Tensor | None, slope: float,
    p: Tensor, dp: Tensor,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    ds = edge_softmax_backward.reference(rowptr, p, dp)
    ds = ds * leaky_derivative(gat_sums(rowptr, col, a_src, a_dst, a_edge), slope)
    return ds, sums_of_edges(rowptr, None, ds)


gat_attention_backward = define(
    "gat_attention_backward(Tensor rowptr, Tensor col, Tensor a_src, Tensor? a_dst, Tensor? a_edge, float slope, "
    "Tensor p, Tensor dp) -> (Tensor, Tensor)",
    check=_check_gat_backward,
    reference=_gat_backward_reference,
    fake=lambda rowptr, col, a_src, a_dst, a_edge, slope, p, dp: (
        torch.empty_like(p),
        p.new_empty(rowptr.size(0) - 1, p.size(1)),
    ),
)


def gat_attention(
    graph: Graph, a_src: Tensor, a_dst: Tensor | None = None, a_edge: Tensor | None = None, slope: float = 0.2
) -> Tensor:
    """GAT's attention weights, [nnz, heads] in CSR order, from per-node (and per-edge, CSR order) terms [.., heads]."""
    transposed: tuple[Tensor | None, Tensor | None] = (None, None)
    if torch.is_grad_enabled() and a_src.requires_grad and not graph.is_traced:
        transposed = (graph.t().rowptr, graph.t_perm)
    terms = (None if t is None else t.contiguous() for t in (a_src, a_dst, a_edge))
    return gat_attention_op(graph.rowptr, graph.col, *terms, slope, *transposed)
