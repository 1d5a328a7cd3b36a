"""Neighbour sums over rows of int8 codes.

    out_i = dst_scale_i * sum over edges e = (j -> i) of (value_e * src_scale_j * scale_j) * codes_j
            + diagonal_i * scale_i * codes_i + rows_i + bias,                                           float32

A row's scale folds into the weight of each edge, so a gathered row costs a quarter of the bytes of float32 and one more
multiplication per edge. Equal to `spmm` on the decoded rows up to float32 rounding. Codes come from quantize_rows.

    d value = dst_scale_i * src_scale_j * scale_j * <dout_i, codes_j>       d bias = column sums of dout, d rows = dout
    d scale_j = <(A^T dout)_j + diagonal_j * dout_j, codes_j>
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from . import _checks
from ._library import define
from ._sum_checks import check_ends, check_heads, check_weights, plus_own_rows, refuse_gradient
from .csr import transpose_csr
from .gather_rows import gather_rows
from .linear import column_sums
from .spmm import spmm_op, weighted_sum

if TYPE_CHECKING:
    from ..graph import Graph


def check_sum(
    rowptr: Tensor, col: Tensor, value: Tensor | None, scale: Tensor, dst_scale: Tensor | None, codes: Tensor,
    src_scale: Tensor | None = None, bias: Tensor | None = None, diagonal: Tensor | None = None,
    rows: Tensor | None = None,
) -> None:  # fmt: skip
    """What every neighbour sum of int8 rows asks of its arguments."""
    _checks.dtype_of("codes", codes, (torch.int8,))
    _checks.shape_of("codes", codes, (None, None), "[num_src, columns]")
    _checks.dtype_of("scale", scale, (torch.float32,))
    _checks.shape_of("scale", scale, (codes.size(0),), f"[{codes.size(0)}], one number per row of `codes`")
    check_weights(rowptr, col, value, (src_scale, dst_scale), codes)
    check_ends(rowptr.numel() - 1, codes, bias, diagonal, rows)


def of_sources(scale: Tensor, src_scale: Tensor | None) -> Tensor:
    """What the codes of each source are multiplied by."""
    return scale if src_scale is None else scale * src_scale


def int8_sum(
    rowptr: Tensor, col: Tensor, value: Tensor | None, scale: Tensor, dst_scale: Tensor | None, codes: Tensor,
    src_scale: Tensor | None = None, bias: Tensor | None = None, diagonal: Tensor | None = None,
    rows: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """The definition of `spmm_int8`."""
    wide = codes.to(torch.float32)
    out = weighted_sum(rowptr, col, value, of_sources(scale, src_scale), dst_scale, wide)
    out = plus_own_rows(out, wide, diagonal, scale)
    out = out if rows is None else out + rows
    return (out if bias is None else out + bias).to(torch.float32)


def _fake(rowptr: Tensor, col: Tensor, value: Any, scale: Tensor, dst_scale: Any, codes: Tensor, *rest: Any) -> Tensor:
    return scale.new_empty(rowptr.size(0) - 1, codes.size(1))


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    *first, src_scale, _, diagonal, _ = inputs
    refuse_gradient(dst_scale=inputs[4], src_scale=src_scale, diagonal=diagonal)
    ctx.save_for_backward(*first, src_scale, diagonal)


def _backward(ctx: Any, dout: Tensor) -> tuple[Tensor | None, ...]:
    from .sddmm import edge_gradient

    rowptr, col, value, scale, dst_scale, codes, src_scale, diagonal = ctx.saved_tensors
    dvalue = dscale = None
    rows = codes.to(torch.float32)
    needs = (*ctx.needs_input_grad, *[False] * 4)  # torch leaves out last arguments that equal their defaults
    if needs[2]:
        by_source = of_sources(scale, src_scale)
        dvalue = edge_gradient(rowptr, col, value, by_source, dst_scale, rows, dout, (None, None, None))
    if needs[3]:
        t_rowptr, t_col, t_perm = transpose_csr(rowptr, col, codes.size(0))
        t_value = None if value is None else gather_rows(value, t_perm)
        own = (None, diagonal, *[None] * 5)
        back = spmm_op(t_rowptr, t_col, t_value, dst_scale, src_scale, dout.contiguous(), *own)
        dscale = (back * rows).sum(1)
    dbias = column_sums(dout.contiguous()) if needs[7] else None
    return None, None, dvalue, dscale, None, None, None, dbias, None, dout if needs[9] else None


spmm_int8_op = define(
    "spmm_int8(Tensor rowptr, Tensor col, Tensor? value, Tensor scale, Tensor? dst_scale, Tensor codes, "
    "Tensor? src_scale=None, Tensor? bias=None, Tensor? diagonal=None, Tensor? rows=None) -> Tensor",
    check=check_sum,
    reference=int8_sum,
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
