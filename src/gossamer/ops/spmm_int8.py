"""Neighbour sums over rows of int8 codes.

    out_i = dst_scale_i * sum over edges e = (j -> i) of (value_e * scale_j) * codes_j,    float32

A row's scale folds into the weight of each edge, so a gathered row costs a quarter of the bytes of float32 and one more
multiplication per edge. Equal to `spmm` on the decoded rows up to float32 rounding. Codes come from quantize_rows.

    d value = dst_scale_i * scale_j * <dout_i, codes_j>       d scale_j = <(A^T dout)_j, codes_j>
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from . import _checks
from ._library import define
from ._sum_checks import check_heads, check_weights, refuse_gradient
from .csr import transpose_csr
from .gather_rows import gather_rows
from .spmm import spmm_op, weighted_sum

if TYPE_CHECKING:
    from ..graph import Graph


def _check(
    rowptr: Tensor, col: Tensor, value: Tensor | None, scale: Tensor, dst_scale: Tensor | None, codes: Tensor
) -> None:
    _checks.dtype_of("codes", codes, (torch.int8,))
    _checks.shape_of("codes", codes, (None, None), "[num_src, columns]")
    _checks.dtype_of("scale", scale, (torch.float32,))
    _checks.shape_of("scale", scale, (codes.size(0),), f"[{codes.size(0)}], one number per row of `codes`")
    check_weights(rowptr, col, value, (scale, dst_scale), codes)


def _reference(
    rowptr: Tensor, col: Tensor, value: Tensor | None, scale: Tensor, dst_scale: Tensor | None, codes: Tensor
) -> Tensor:
    return weighted_sum(rowptr, col, value, scale, dst_scale, codes.to(torch.float32))


def _fake(
    rowptr: Tensor, col: Tensor, value: Tensor | None, scale: Tensor, dst_scale: Tensor | None, codes: Tensor
) -> Tensor:
    return scale.new_empty(rowptr.size(0) - 1, codes.size(1))


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    refuse_gradient(dst_scale=inputs[4])
    ctx.save_for_backward(*inputs)


def _backward(ctx: Any, dout: Tensor) -> tuple[Tensor | None, ...]:
    from .sddmm import edge_gradient

    rowptr, col, value, scale, dst_scale, codes = ctx.saved_tensors
    dvalue = dscale = None
    rows = codes.to(torch.float32)
    if ctx.needs_input_grad[2]:
        dvalue = edge_gradient(rowptr, col, value, scale, dst_scale, rows, dout, (None, None, None))
    if ctx.needs_input_grad[3]:
        t_rowptr, t_col, t_perm = transpose_csr(rowptr, col, codes.size(0))
        t_value = None if value is None else gather_rows(value, t_perm)
        back = spmm_op(t_rowptr, t_col, t_value, dst_scale, None, dout.contiguous(), None, 0.0, *[None] * 5)
        dscale = (back * rows).sum(1)
    return None, None, dvalue, dscale, None, None


spmm_int8_op = define(
    "spmm_int8(Tensor rowptr, Tensor col, Tensor? value, Tensor scale, Tensor? dst_scale, Tensor codes) -> Tensor",
    check=_check,
    reference=_reference,
    fake=_fake,
    backward=_backward,
    setup_context=_setup_context,
)


def spmm_int8(
    graph: Graph, codes: Tensor, scale: Tensor, value: Tensor | None = None, reduce: Literal["sum", "mean"] = "sum"
) -> Tensor:
    """Sum or mean of neighbours given as int8 rows; `value` (CSR order) replaces the graph's own edge weights."""
    if reduce not in ("sum", "mean"):
        raise ValueError(f"`reduce` must be 'sum' or 'mean' (got {reduce!r}); decode with dequantize_rows for others")
    graph.check_rows("codes", codes)
    weights = graph.value if value is None else value
    check_heads(codes, weights)
    flat = codes.flatten(1) if codes.dim() == 3 else codes
    dst_scale = graph.inverse_degree if reduce == "mean" else None
    out = spmm_int8_op(graph.rowptr, graph.col, weights, scale, dst_scale, flat.contiguous())
    return out.view(graph.num_dst, *codes.shape[1:])
