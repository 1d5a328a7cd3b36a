"""Native kernels of the ops that run along edges."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .. import memory
from ..ops import _checks
from ..ops._library import OPS
from ..ops._sum_checks import heads_of
from ..ops.spmm_max import NOT_A_WINNER, winner_dtype
from . import native, num_threads
from ._arguments import F32, as_float, at, stepped


def _coo_to_csr(dst: Tensor, src: Tensor, num_dst: int, num_src: int) -> tuple[Tensor, Tensor, Tensor]:
    dst, src, nnz = dst.contiguous(), src.contiguous(), dst.numel()
    rowptr = memory.empty([num_dst + 1], torch.int64)
    col, perm = memory.empty([nnz], torch.int32), memory.empty([nnz], torch.int64)
    bad = native.coo_to_csr(
        at(dst),
        at(src),
        dst.element_size(),
        nnz,
        num_dst,
        num_src,
        at(rowptr),
        at(col),
        at(perm),
        num_threads(),
    )
    if bad >= 0:
        _checks.ids_within("src", src, num_src, "source nodes")
        _checks.ids_within("dst", dst, num_dst, "destination nodes")
    return rowptr, col, perm


def _transpose_csr(rowptr: Tensor, col: Tensor, num_src: int) -> tuple[Tensor, Tensor, Tensor]:
    rowptr, col, nnz = rowptr.contiguous(), col.contiguous(), col.numel()
    t_rowptr = memory.empty([num_src + 1], torch.int64)
    t_col, t_perm = memory.empty([nnz], torch.int32), memory.empty([nnz], torch.int64)
    native.transpose_csr(
        at(rowptr),
        at(col),
        rowptr.numel() - 1,
        num_src,
        at(t_rowptr),
        at(t_col),
        at(t_perm),
        num_threads(),
    )
    return t_rowptr, t_col, t_perm


def sum_rows(
    kernel: Callable[..., None], rowptr: Tensor, col: Tensor, value: Tensor | None, src_scale: Tensor | None,
    dst_scale: Tensor | None, x: Tensor, dtype: torch.dtype, bias: Tensor | None = None,
    diagonal: Tensor | None = None, rows: Tensor | None = None, own_scale: Tensor | None = None,
) -> Tensor:  # fmt: skip
    rowptr, col, x, num_dst = rowptr.contiguous(), col.contiguous(), x.contiguous(), rowptr.numel() - 1
    value, src_scale, dst_scale, bias, rows = (as_float(t) for t in (value, src_scale, dst_scale, bias, rows))
    diagonal, step = stepped(diagonal)
    out = memory.empty([num_dst, x.size(1)], dtype)
    kernel(
        at(rowptr), at(col), num_dst, at(value), at(src_scale), at(dst_scale), heads_of(value),
        at(bias), at(diagonal), step, at(rows), at(own_scale), at(x), at(out), x.size(1), num_threads(),
    )  # fmt: skip
    return out


def _spmm(
    rowptr: Tensor, col: Tensor, value: Tensor | None, src_scale: Tensor | None, dst_scale: Tensor | None, x: Tensor,
    bias: Tensor | None, diagonal: Tensor | None, rows: Tensor | None, *transposed: Tensor | None,
) -> Tensor:  # fmt: skip
    kernel = {F32: native.spmm_f32, torch.bfloat16: native.spmm_bf16}.get(x.dtype)
    if kernel is None:
        return OPS["spmm"].reference(rowptr, col, value, src_scale, dst_scale, x, bias, diagonal, rows, *transposed)
    return sum_rows(kernel, rowptr, col, value, src_scale, dst_scale, x, x.dtype, bias, diagonal, rows)


def _spmm_max(rowptr: Tensor, col: Tensor, value: Tensor | None, x: Tensor, max_degree: int) -> tuple[Tensor, Tensor]:
    if x.dtype != F32:
        return OPS["spmm_max"].reference(rowptr, col, value, x, max_degree)
    rowptr, col, value, x = rowptr.contiguous(), col.contiguous(), as_float(value), x.contiguous()
    shape = [rowptr.numel() - 1, x.size(1)]
    out, winner = memory.empty(shape, F32), memory.empty(shape, winner_dtype(max_degree))
    native.spmm_max(
        at(rowptr), at(col), shape[0], at(value), at(x), at(out), at(winner), winner.element_size(), shape[1],
        num_threads(),
    )  # fmt: skip
    return out, winner


def _spmm_max_backward(
    rowptr: Tensor, col: Tensor, value: Tensor | None, winner: Tensor, dout: Tensor, num_src: int
) -> Tensor:
    if dout.dtype != F32:
        return OPS["spmm_max_backward"].reference(rowptr, col, value, winner, dout, num_src)
    rowptr, col, value = rowptr.contiguous(), col.contiguous(), as_float(value)
    winner, dout = winner.contiguous(), dout.contiguous()
    dx = memory.empty([num_src, dout.size(1)], F32).zero_()
    valid = native.spmm_max_backward(
        at(rowptr), at(col), dout.size(0), at(value), at(dout), at(winner), winner.element_size(), at(dx),
        dout.size(1), num_threads(),
    )  # fmt: skip
    if not valid:
        raise ValueError(NOT_A_WINNER)
    return dx


def _sddmm(rowptr: Tensor, col: Tensor, a: Tensor, b: Tensor, heads: int, *transposed: Tensor | None) -> Tensor:
    if a.dtype != F32:
        return OPS["sddmm"].reference(rowptr, col, a, b, heads, *transposed)
    rowptr, col, a, b = rowptr.contiguous(), col.contiguous(), a.contiguous(), b.contiguous()
    out = memory.empty([col.numel(), heads], F32)
    native.sddmm(at(rowptr), at(col), a.size(0), at(a), at(b), at(out), a.size(1), heads, num_threads())
    return out


def _edge_softmax(rowptr: Tensor, logits: Tensor) -> Tensor:
    if logits.dtype != F32:
        return OPS["edge_softmax"].reference(rowptr, logits)
    rowptr, logits = rowptr.contiguous(), logits.contiguous()
    out = memory.empty(logits.shape, F32)
    native.edge_softmax(at(rowptr), rowptr.numel() - 1, at(logits), at(out), logits.size(1), num_threads())
    return out


def _edge_softmax_backward(rowptr: Tensor, p: Tensor, dp: Tensor) -> Tensor:
    if p.dtype != F32:
        return OPS["edge_softmax_backward"].reference(rowptr, p, dp)
    rowptr, p, dp = rowptr.contiguous(), p.contiguous(), dp.contiguous()
    out = memory.empty(p.shape, F32)
    native.edge_softmax_backward(at(rowptr), rowptr.numel() - 1, at(p), at(dp), at(out), p.size(1), num_threads())
    return out


KERNELS: dict[str, Callable[..., Any]] = {
    "coo_to_csr": _coo_to_csr,
    "transpose_csr": _transpose_csr,
    "spmm": _spmm,
    "spmm_max": _spmm_max,
    "spmm_max_backward": _spmm_max_backward,
    "sddmm": _sddmm,
    "edge_softmax": _edge_softmax,
    "edge_softmax_backward": _edge_softmax_backward,
}
