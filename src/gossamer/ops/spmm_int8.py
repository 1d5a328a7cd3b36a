"""Neighbour sums over rows of int8 codes.

    out_i = dst_scale_i * sum over edges e = (j -> i) of (value_e * src_scale_j * scale_j) * codes_j
            + diagonal_i * scale_i * codes_i + rows_i + bias,                                           float32

A row's scale folds into the weight of each edge, so a gathered row costs a quarter of the bytes of float32 and one more
multiplication per edge. Equal to `spmm` on the decoded rows up to float32 rounding. Codes come from quantize_rows;
`keep` is that of `spmm`.

    d value = dst_scale_i * src_scale_j * scale_j * <dout_i, codes_j>       d bias = column sums of dout, d rows = dout
    d scale_j = <(A^T dout)_j + diagonal_j * dout_j, codes_j>
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from . import _checks
from ._library import define
from ._structure import take
from ._sum_checks import check_ends, check_heads, check_weights, plus_own_rows, refuse_gradient
from .csr import Sparse
from .linear import column_sums
from .quantize_rows import QRows
from .row_selection import check_keep, only_kept
from .spmm import row_sums, weighted_sum

if TYPE_CHECKING:
    from ..graph import Graph


def check_sum(
    a: Sparse, x: QRows, bias: Tensor | None = None, diagonal: Tensor | None = None, rows: Tensor | None = None,
    keep: Tensor | None = None,
) -> None:  # fmt: skip
    """What every neighbour sum of int8 rows asks of its arguments."""
    codes, scale = x
    _checks.dtype_of("codes", codes, (torch.int8,))
    _checks.shape_of("codes", codes, (None, None), "[num_src, columns]")
    _checks.dtype_of("scale", scale, (torch.float32,))
    _checks.shape_of("scale", scale, (codes.size(0),), f"[{codes.size(0)}], one number per row of `codes`")
    check_weights(a, codes)
    check_ends(a.num_dst, codes, bias, diagonal, rows)
    check_keep(keep, codes.size(0))


def of_codes(a: Sparse, x: QRows) -> Sparse:
    """The matrix that multiplies the codes themselves."""
    return a._replace(src_scale=x.scale if a.src_scale is None else x.scale * a.src_scale)


def int8_sum(
    a: Sparse, x: QRows, bias: Tensor | None = None, diagonal: Tensor | None = None, rows: Tensor | None = None,
    keep: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """The definition of `spmm_int8`."""
    wide = x.codes.to(torch.float32)
    out = plus_own_rows(weighted_sum(of_codes(a, x), wide, keep), wide, diagonal, x.scale)
    out = out if rows is None else out + rows
    return (out if bias is None else out + bias).to(torch.float32)


def _fake(a: Sparse, x: QRows, *rest: Any) -> Tensor:
    return x.scale.new_empty(a.num_dst, x.codes.size(1))


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    a, x, _, diagonal, _, keep = inputs
    refuse_gradient(dst_scale=a.dst_scale, src_scale=a.src_scale, diagonal=diagonal)
    ctx.save_for_backward(*a, *x, diagonal, keep)


def _backward(ctx: Any, dout: Tensor) -> tuple[Any, ...]:
    from .sddmm import edge_gradient

    a, x, (diagonal, keep) = take(ctx.saved_tensors, NO_MATRIX, NO_ROWS)
    needs, needs_x, needs_bias, _, needs_rows, _ = ctx.needs
    dvalue = dscale = None
    rows = x.codes.to(torch.float32)
    if needs.value:
        dvalue = only_kept(edge_gradient(of_codes(a, x), rows, dout), a.col, keep)
    if needs_x.scale:
        back = row_sums(a.transposed(x.codes.size(0)), dout.contiguous())
        back = plus_own_rows(back if keep is None else torch.where(keep.unsqueeze(1), back, 0.0), dout, diagonal)
        dscale = (back * rows).sum(1)
    dbias = column_sums(dout.contiguous()) if needs_bias else None
    return (None, None, dvalue, None, None), (None, dscale), dbias, None, dout if needs_rows else None, None


NO_MATRIX: Any = Sparse(None, None)  # type: ignore[arg-type]
NO_ROWS: Any = QRows(None, None)  # type: ignore[arg-type]
"""What saved tensors are put into."""


spmm_int8_op = define(
    "spmm_int8(Sparse, QRows, Tensor? bias=None, Tensor? diagonal=None, Tensor? rows=None, Tensor? keep=None) "
    "-> Tensor",
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
    matrix = Sparse(graph.rowptr, graph.col, weights, None, dst_scale)
    out = spmm_int8_op(matrix, QRows(flat.contiguous(), scale))
    return out.view(graph.num_dst, *codes.shape[1:])
