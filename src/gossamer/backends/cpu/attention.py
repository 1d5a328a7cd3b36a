"""Native kernels of ops/attention.py."""

from __future__ import annotations

from torch import Tensor

from ... import memory
from ...native import library, num_threads
from ...ops._library import implement
from ...ops.attention import edge_sums, gat_attention_backward, gat_attention_op
from ._arguments import F32, at, contiguous


def _edge_sums(rowptr: Tensor, perm: Tensor | None, values: Tensor) -> Tensor:
    if values.dtype != F32:
        return edge_sums.reference(rowptr, perm, values)
    rowptr, values = rowptr.contiguous(), values.contiguous()
    perm = None if perm is None else perm.contiguous()
    rows, heads = rowptr.numel() - 1, values.size(1)
    out = memory.empty([rows, heads], F32)
    library.edge_sums(at(rowptr), rows, at(perm), at(values), at(out), heads, num_threads())
    return out


def _gat_attention(
    rowptr: Tensor, col: Tensor, a_src: Tensor, a_dst: Tensor | None, a_edge: Tensor | None, slope: float,
    t_rowptr: Tensor | None, t_perm: Tensor | None,
) -> Tensor:  # fmt: skip
    if a_src.dtype != F32:
        return gat_attention_op.reference(rowptr, col, a_src, a_dst, a_edge, slope, t_rowptr, t_perm)
    rowptr, col, terms = rowptr.contiguous(), col.contiguous(), contiguous(a_src, a_dst, a_edge)
    heads, rows = a_src.size(1), rowptr.numel() - 1
    out = memory.empty([col.numel(), heads], F32)
    where = [at(term) for term in terms]
    library.gat_attention(at(rowptr), at(col), rows, *where, slope, at(out), heads, num_threads())
    return out


def _gat_attention_backward(
    rowptr: Tensor, col: Tensor, a_src: Tensor, a_dst: Tensor | None, a_edge: Tensor | None, slope: float,
    p: Tensor, dp: Tensor,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    if a_src.dtype != F32:
        return gat_attention_backward.reference(rowptr, col, a_src, a_dst, a_edge, slope, p, dp)
    rowptr, col, terms = rowptr.contiguous(), col.contiguous(), contiguous(a_src, a_dst, a_edge)
    p, dp, heads, rows = p.contiguous(), dp.contiguous(), a_src.size(1), rowptr.numel() - 1
    ds, da_dst = memory.empty(p.shape, F32), memory.empty([rows, heads], F32)
    where = [at(term) for term in terms]
    library.gat_attention_backward(
        at(rowptr), at(col), rows, *where, slope, at(p), at(dp), at(ds), at(da_dst),
        heads, num_threads(),
    )  # fmt: skip
    return ds, da_dst


implement(edge_sums, "cpu", _edge_sums)
implement(gat_attention_op, "cpu", _gat_attention)
implement(gat_attention_backward, "cpu", _gat_attention_backward)
