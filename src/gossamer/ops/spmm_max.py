"""Maximum over neighbours.

    out_i = max over edges e = (j -> i) of value_e * x_j,   0 where row i has no edges

Backward needs only which edge won each element: its position inside the row's list, kept in the smallest type that
holds the maximum degree (1, 2 or 4 bytes). Ties go to the first edge; NaN wins over any number.

    d x[j, c] += value_e * dout[i, c]     d value_e += x[j, c] * dout[i, c]     for the winning e = (j -> i)
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


NOT_A_WINNER = "`winner` must hold positions inside each row's edges: pass what spmm_max returned"


def winner_dtype(max_degree: int) -> torch.dtype:
    """The smallest type for positions 0 .. max_degree - 1."""
    if max_degree <= 2**8:
        return torch.uint8
    return torch.int16 if max_degree <= 2**15 else torch.int32


def _check_value(value: Tensor | None, col: Tensor) -> None:
    if value is not None:
        _checks.dtype_of("value", value, (torch.float32, torch.float64))
        meaning = f"[{col.numel()}], one number per edge (heads need sum or mean)"
        _checks.shape_of("value", value, (col.numel(),), meaning)


def _check(rowptr: Tensor, col: Tensor, value: Tensor | None, x: Tensor, max_degree: int) -> None:
    _checks.dtype_of("x", x, (torch.float32, torch.float64))
    _checks.shape_of("x", x, (None, None), "[num_src, columns]")
    _checks.csr(rowptr, col, x.size(0))
    _check_value(value, col)
    longest = int(rowptr.diff().max()) if rowptr.numel() > 1 else 0
    if max_degree < longest:
        raise ValueError(f"`max_degree` must be at least the longest row's, {longest} (got {max_degree})")


def _reference(rowptr: Tensor, col: Tensor, value: Tensor | None, x: Tensor, max_degree: int) -> tuple[Tensor, Tensor]:
    message = x[col.long()]  # [nnz, columns]
    if value is not None:
        message = message * value.to(x.dtype).unsqueeze(1)
    row = row_of_edge(rowptr)
    position = (torch.arange(col.numel(), device=x.device) - rowptr[row]).unsqueeze(1).expand_as(message)
    row = row.unsqueeze(1).expand_as(message)
    nodes = (rowptr.numel() - 1, x.size(1))
    top = x.new_zeros(nodes).scatter_reduce(0, row, message, "amax", include_self=False)
    first_best = position.where(message == top.gather(0, row), max_degree)
    winner = position.new_zeros(nodes).scatter_reduce(0, row, first_best, "amin", include_self=False)
    last_nan = position.where(message.isnan(), -1)
    nan_at = position.new_full(nodes, -1).scatter_reduce(0, row, last_nan, "amax")
    winner = torch.where(nan_at >= 0, nan_at, winner)
    edge = (rowptr[:-1].unsqueeze(1) + winner).clamp(max=max(col.numel() - 1, 0))
    out = message.gather(0, edge) if col.numel() else top
    return out.where((rowptr.diff() > 0).unsqueeze(1), 0.0), winner.to(winner_dtype(max_degree))


def _fake(rowptr: Tensor, col: Tensor, value: Tensor | None, x: Tensor, max_degree: int) -> tuple[Tensor, Tensor]:
    out = x.new_empty(rowptr.size(0) - 1, x.size(1))
    return out, torch.empty_like(out, dtype=winner_dtype(max_degree))


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    rowptr, col, value, x, _ = inputs
    learn_value = value is not None and value.requires_grad
    ctx.mark_non_differentiable(output[1])
    ctx.save_for_backward(rowptr, col, value, x if learn_value else None, output[1])
    ctx.num_src = x.size(0)


def _backward(ctx: Any, dout: Tensor, _: Tensor | None) -> tuple[Tensor | None, ...]:
    rowptr, col, value, x, winner = ctx.saved_tensors
    dx = dvalue = None
    _, _, needs_value, needs_x, *_ = ctx.needs_input_grad
    if needs_x:
        dx = spmm_max_backward.followed(rowptr, col, value, winner, dout.contiguous(), ctx.num_src)
    if needs_value:
        has_edges = rowptr.diff() > 0
        edge = (rowptr[:-1].unsqueeze(1) + winner.long())[has_edges]  # [rows with edges, columns]
        of_winner = dout[has_edges] * torch.gather(x, 0, col.long()[edge])
        dvalue = dout.new_zeros(col.numel()).index_add(0, edge.reshape(-1), of_winner.reshape(-1)).to(value.dtype)
    return None, None, dvalue, dx, None


spmm_max_op = define(
    "spmm_max(Tensor rowptr, Tensor col, Tensor? value, Tensor x, int max_degree) -> (Tensor, Tensor)",
    check=_check,
    reference=_reference,
    fake=_fake,
    backward=_backward,
    setup_context=_setup_context,
)


def _check_backward(
    rowptr: Tensor, col: Tensor, value: Tensor | None, winner: Tensor, dout: Tensor, num_src: int
) -> None:
    _checks.csr(rowptr, col, num_src)
    _checks.dtype_of("winner", winner, (torch.uint8, torch.int16, torch.int32))
    _checks.shape_of("dout", dout, (rowptr.numel() - 1, None), "[num_dst, columns]")
    _checks.shape_of("winner", winner, tuple(dout.shape), f"of `dout`, {tuple(dout.shape)}")
    _check_value(value, col)


def _backward_reference(
    rowptr: Tensor, col: Tensor, value: Tensor | None, winner: Tensor, dout: Tensor, num_src: int
) -> Tensor:
    has_edges = rowptr.diff() > 0
    if bool((winner < 0).any()) or bool((winner.long() >= rowptr.diff().clamp(min=1).unsqueeze(1)).any()):
        raise ValueError(NOT_A_WINNER)
    edge = (rowptr[:-1].unsqueeze(1) + winner.long())[has_edges]
    grad = dout[has_edges] if value is None else dout[has_edges] * value.to(dout.dtype)[edge]
    return dout.new_zeros(num_src, dout.size(1)).scatter_add(0, col.long()[edge], grad)


def _backward_fake(
    rowptr: Tensor, col: Tensor, value: Tensor | None, winner: Tensor, dout: Tensor, num_src: int
) -> Tensor:
    return dout.new_empty(num_src, dout.size(1))


spmm_max_backward = define(
    "spmm_max_backward(Tensor rowptr, Tensor col, Tensor? value, Tensor winner, Tensor dout, SymInt num_src) -> Tensor",
    check=_check_backward,
    reference=_backward_reference,
    fake=_backward_fake,
)


def spmm_max(graph: Graph, x: Tensor, value: Tensor | None = None) -> Tensor:
    """Maximum of the neighbours' rows, multiplied by `value` (CSR order) or else by the graph's own weights first."""
    graph.check_rows("x", x)
    weights = graph.value if value is None else value
    return spmm_max_op(graph.rowptr, graph.col, weights, x.contiguous(), graph.max_degree)[0]
