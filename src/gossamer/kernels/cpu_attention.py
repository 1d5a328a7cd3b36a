"""Native kernels of attention."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .. import memory
from ..ops._library import OPS
from . import native, num_threads
from ._arguments import F32, at, contiguous, row_sums_scratch


def _edge_sums(rowptr: Tensor, perm: Tensor | None, values: Tensor) -> Tensor:
    if values.dtype != F32:
        return OPS["edge_sums"].reference(rowptr, perm, values)
    rowptr, values = rowptr.contiguous(), values.contiguous()
    perm = None if perm is None else perm.contiguous()
    rows, heads = rowptr.numel() - 1, values.size(1)
    out = memory.empty([rows, heads], F32)
    native.edge_sums(at(rowptr), rows, at(perm), at(values), at(out), heads, num_threads())
    return out


def _gat_attention(
    rowptr: Tensor, col: Tensor, a_src: Tensor, a_dst: Tensor | None, a_edge: Tensor | None, slope: float,
    t_rowptr: Tensor | None, t_perm: Tensor | None,
) -> Tensor:  # fmt: skip
    if a_src.dtype != F32:
        return OPS["gat_attention"].reference(rowptr, col, a_src, a_dst, a_edge, slope, t_rowptr, t_perm)
    rowptr, col, terms = rowptr.contiguous(), col.contiguous(), contiguous(a_src, a_dst, a_edge)
    heads, rows = a_src.size(1), rowptr.numel() - 1
    out = memory.empty([col.numel(), heads], F32)
    where = [at(term) for term in terms]
    native.gat_attention(at(rowptr), at(col), rows, *where, slope, at(out), heads, num_threads())
    return out


def _gat_attention_backward(
    rowptr: Tensor, col: Tensor, a_src: Tensor, a_dst: Tensor | None, a_edge: Tensor | None, slope: float,
    p: Tensor, dp: Tensor,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    if a_src.dtype != F32:
        return OPS["gat_attention_backward"].reference(rowptr, col, a_src, a_dst, a_edge, slope, p, dp)
    rowptr, col, terms = rowptr.contiguous(), col.contiguous(), contiguous(a_src, a_dst, a_edge)
    p, dp, heads, rows = p.contiguous(), dp.contiguous(), a_src.size(1), rowptr.numel() - 1
    ds, da_dst = memory.empty(p.shape, F32), memory.empty([rows, heads], F32)
    where = [at(term) for term in terms]
    native.gat_attention_backward(
        at(rowptr), at(col), rows, *where, slope, at(p), at(dp), at(ds), at(da_dst),
        heads, num_threads(),
    )  # fmt: skip
    return ds, da_dst


def _gatv2_logits(
    rowptr: Tensor, col: Tensor, x_src: Tensor, x_dst: Tensor, att: Tensor, slope: float, *transposed: Tensor | None
) -> Tensor:
    if x_src.dtype != F32:
        return OPS["gatv2_logits"].reference(rowptr, col, x_src, x_dst, att, slope, *transposed)
    rowptr, col = rowptr.contiguous(), col.contiguous()
    x_src, x_dst, att = x_src.contiguous(), x_dst.contiguous(), att.contiguous()
    out = memory.empty([col.numel(), att.size(0)], F32)
    native.gatv2_logits(
        at(rowptr), at(col), x_dst.size(0), at(x_src), at(x_dst), at(att), slope, at(out),
        x_src.size(1), att.size(0), num_threads(),
    )  # fmt: skip
    return out


def _gatv2_backward(
    rowptr: Tensor, col: Tensor, x_src: Tensor, x_dst: Tensor, att: Tensor, slope: float,
    t_rowptr: Tensor, t_col: Tensor, t_perm: Tensor, dlogits: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    if x_src.dtype != F32 or x_src.size(1) == 0:  # without columns there is no memory to point a kernel to
        return OPS["gatv2_backward"].reference(rowptr, col, x_src, x_dst, att, slope, t_rowptr, t_col, t_perm, dlogits)
    x_src, x_dst, att, dlogits = x_src.contiguous(), x_dst.contiguous(), att.contiguous(), dlogits.contiguous()
    dx_src, dx_dst, datt = memory.empty(x_src.shape, F32), memory.empty(x_dst.shape, F32), torch.zeros_like(att)
    scratch, ends = row_sums_scratch(*x_dst.shape), (x_src.size(1), att.size(0), num_threads())
    forward = (rowptr.contiguous(), col.contiguous(), None, x_dst, x_src, scratch, dx_dst, datt)
    backward = (t_rowptr.contiguous(), t_col.contiguous(), t_perm.contiguous(), x_src, x_dst, None, dx_src, None)
    for own_rowptr, own_col, perm, own, other, partial, dx, dweights in (forward, backward):
        native.gatv2_backward(
            at(own_rowptr), at(own_col), own.size(0), at(perm), at(own), at(other),
            at(att), slope, at(dlogits), at(partial), at(dx), at(dweights), *ends,
        )  # fmt: skip
    return dx_src, dx_dst, datt


def _head_mean_spmm(
    rowptr: Tensor, col: Tensor, value: Tensor, x: Tensor, bias: Tensor | None, *transposed: Tensor | None
) -> Tensor:
    if x.dtype != F32:
        return OPS["head_mean_spmm"].reference(rowptr, col, value, x, bias, *transposed)
    rowptr, col, value, x, bias = contiguous(rowptr, col, value, x, bias)
    rows, heads = rowptr.numel() - 1, value.size(1)
    out = memory.empty([rows, x.size(1) // heads], F32)
    native.head_mean(
        at(rowptr), at(col), rows, at(value), at(x), at(bias), at(out), out.size(1), heads, num_threads()
    )  # fmt: skip
    return out


def _head_mean_backward(
    rowptr: Tensor, col: Tensor, perm: Tensor, value: Tensor, x: Tensor | None, dout: Tensor, needs_dx: bool
) -> tuple[Tensor, Tensor]:
    if dout.dtype != F32 or dout.size(1) == 0:  # without columns there is no dot product to write
        return OPS["head_mean_backward"].reference(rowptr, col, perm, value, x, dout, needs_dx)
    rowptr, col, perm, value, x, dout = contiguous(rowptr, col, perm, value, x, dout)
    num_src, (heads, width) = rowptr.numel() - 1, (value.size(1), dout.size(1))
    dx = memory.empty([num_src, heads * width], F32) if needs_dx else None
    dvalue = None if x is None else memory.empty(value.shape, F32)
    native.head_mean_backward(
        at(rowptr), at(col), num_src, at(perm), at(value), at(x), at(dout), at(dx), at(dvalue),
        width, heads, num_threads(),
    )  # fmt: skip
    return dout.new_empty(0) if dx is None else dx, dout.new_empty(0) if dvalue is None else dvalue


KERNELS: dict[str, Callable[..., Any]] = {
    "edge_sums": _edge_sums,
    "gat_attention": _gat_attention,
    "gat_attention_backward": _gat_attention_backward,
    "gatv2_logits": _gatv2_logits,
    "gatv2_backward": _gatv2_backward,
    "head_mean_spmm": _head_mean_spmm,
    "head_mean_backward": _head_mean_backward,
}
