"""Softmax over the incoming edges of each node, per head.

    p_e = exp(z_e - m_i) / sum over edges f of row i of exp(z_f - m_i),     m_i = max of the row's z

    d z_e = p_e * (d p_e - sum over the row of p_f * d p_f)

Exact softmax: the maximum is subtracted first. A row of minus infinities (all edges masked) gives zeros, not NaN.
Keeps p alone for backward.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from . import _checks
from ._library import define
from .csr import row_of_edge

if TYPE_CHECKING:
    from ..graph import Graph


def _check(rowptr: Tensor, logits: Tensor) -> None:
    _check_edges(rowptr, "logits", logits)


def _check_edges(rowptr: Tensor, name: str, edges: Tensor) -> None:
    _checks.dtype_of(name, edges, (torch.float32, torch.float64))
    _checks.shape_of(name, edges, (None, None), "[nnz, heads]")
    _checks.rowptr_of(rowptr, edges.size(0))


def _reference(rowptr: Tensor, logits: Tensor) -> Tensor:
    row = row_of_edge(rowptr).unsqueeze(1).expand_as(logits)
    rows = logits.new_zeros(rowptr.numel() - 1, logits.size(1))
    top = rows.scatter_reduce(0, row, logits, "amax", include_self=False)
    top = torch.where(top == -torch.inf, 0.0, top)
    p = (logits - top.gather(0, row)).exp()
    total = rows.scatter_add(0, row, p).gather(0, row)
    return torch.where(total == 0, 0.0, p / total)


def _fake(rowptr: Tensor, logits: Tensor) -> Tensor:
    return torch.empty_like(logits, memory_format=torch.contiguous_format)


def _setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
    ctx.save_for_backward(inputs[0], output)


def _backward(ctx: Any, dout: Tensor) -> tuple[None, Tensor]:
    rowptr, p = ctx.saved_tensors
    return None, edge_softmax_backward.followed(rowptr, p, dout.contiguous())


edge_softmax_op = define(
    "edge_softmax(Tensor rowptr, Tensor logits) -> Tensor",
    check=_check,
    reference=_reference,
    fake=_fake,
    backward=_backward,
    setup_context=_setup_context,
)


def _check_backward(rowptr: Tensor, p: Tensor, dp: Tensor) -> None:
    _check_edges(rowptr, "p", p)
    _checks.dtype_of("dp", dp, (p.dtype,))
    _checks.shape_of("dp", dp, tuple(p.shape), f"of the softmax, {tuple(p.shape)}")


def _backward_reference(rowptr: Tensor, p: Tensor, dp: Tensor) -> Tensor:
    row = row_of_edge(rowptr).unsqueeze(1).expand_as(p)
    total = p.new_zeros(rowptr.numel() - 1, p.size(1)).scatter_add(0, row, p * dp)
    return p * (dp - total.gather(0, row))


def _backward_fake(rowptr: Tensor, p: Tensor, dp: Tensor) -> Tensor:
    return torch.empty_like(p)


edge_softmax_backward = define(
    "edge_softmax_backward(Tensor rowptr, Tensor p, Tensor dp) -> Tensor",
    check=_check_backward,
    reference=_backward_reference,
    fake=_backward_fake,
)


def edge_softmax(graph: Graph, logits: Tensor) -> Tensor:
    """Softmax over each node's incoming edges; `logits` is [nnz] or [nnz, heads] in CSR order."""
    if logits.dim() not in (1, 2) or logits.size(0) != graph.num_edges:
        raise ValueError(
            f"`logits` must be [nnz] or [nnz, heads] with nnz = {graph.num_edges} (got {tuple(logits.shape)})"
        )
    columns = logits.unsqueeze(1) if logits.dim() == 1 else logits
    return edge_softmax_op(graph.rowptr, columns.contiguous()).view(logits.shape)
