"""What neighbour sums ask of their weights and of what they add to a row."""

from __future__ import annotations

import torch
from torch import Tensor

from . import _checks
from .csr import Sparse

FLOATS = (torch.float32, torch.float64, torch.bfloat16)


def refuse_gradient(**fixed: Tensor | None) -> None:
    """Raise for a factor that wants a gradient which this op does not give: leaving it out would be silent."""
    for name, tensor in fixed.items():
        if tensor is not None and tensor.requires_grad:
            instead = "pass diagonal * x as `rows`" if name == "diagonal" else "use `value`"
            raise ValueError(f"`{name}` must not require grad: it has no gradient here. Detach it, or {instead}")


def heads_of(value: Tensor | None) -> int:
    return value.size(1) if value is not None and value.dim() == 2 else 1


def check_heads(x: Tensor, value: Tensor | None) -> None:
    """[nodes, heads, width] needs weights for exactly those heads, or one weight per edge."""
    if x.dim() == 3 and value is not None and value.dim() == 2 and value.size(1) != x.size(1):
        raise ValueError(f"`value` must have one column for each of the {x.size(1)} heads of x (got {value.size(1)})")


def check_weights(a: Sparse, x: Tensor) -> None:
    """What `spmm` and `spmm_int8` ask of structure and weights alike."""
    rowptr, col, value, src_scale, dst_scale = a
    _checks.csr(rowptr, col, x.size(0))
    if value is not None:
        _checks.dtype_of("value", value, (torch.float32, torch.float64))
        _checks.shape_of(
            "value",
            value,
            (col.numel(), None)[: max(value.dim(), 1)],
            f"[nnz] or [nnz, heads] with nnz = {col.numel()}",
        )
        if heads_of(value) == 0 or x.size(1) % heads_of(value):
            raise ValueError(
                f"`value` must have a number of heads that divides the {x.size(1)} columns (got {heads_of(value)})"
            )
    for name, scale, count in (("src_scale", src_scale, x.size(0)), ("dst_scale", dst_scale, a.num_dst)):
        if scale is not None:
            _checks.shape_of(name, scale, (count,), f"[{count}], one number per node")


def plus_own_rows(out: Tensor, x: Tensor, diagonal: Tensor | None, scale: Tensor | None = None) -> Tensor:
    """out_i + diagonal_i * scale_i * x_i. A zero is no self-loop: it adds nothing, even to an infinite x_i."""
    if diagonal is None:
        return out
    own, by_row = diagonal.size(0), [-1, *[1] * (x.dim() - 1)]
    if out.size(0) > own:  # destinations that are no sources
        return torch.cat([plus_own_rows(out[:own], x, diagonal, scale), out[own:]])
    factor = diagonal if scale is None else diagonal * scale[:own]
    return torch.where(diagonal.view(by_row) == 0, out, out + factor.view(by_row) * x[:own])


def check_ends(num_dst: int, x: Tensor, bias: Tensor | None, diagonal: Tensor | None, rows: Tensor | None) -> None:
    """What is added to a row's sum or maximum."""
    if bias is not None:
        _checks.dtype_of("bias", bias, (torch.float32, torch.float64))
        _checks.shape_of("bias", bias, (x.size(1),), f"[{x.size(1)}], one number per column")
    if rows is not None:
        _checks.dtype_of("rows", rows, FLOATS)
        shape = (num_dst, x.size(1))
        _checks.shape_of("rows", rows, shape, f"{shape}, one row per destination")
    if diagonal is not None:
        _checks.dtype_of("diagonal", diagonal, (torch.float64 if x.dtype == torch.float64 else torch.float32,))
        own = min(x.size(0), num_dst)
        _checks.shape_of("diagonal", diagonal, (own,), f"[{own}], one number per node that is source and destination")
