"""Native kernels for the ops on the CPU: allocate the result, pass addresses, return it.

Arguments have been checked by the op. A dtype that no kernel handles (float64) goes to the op's reference.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from .. import memory
from ..ops import _checks
from ..ops._library import OPS, Op, implement_on_cpu
from ..ops.pack import num_blocks, num_bytes
from ..ops.spmm import heads_of
from ..ops.spmm_max import NOT_A_WINNER, winner_dtype
from . import native, num_threads

F32 = torch.float32
MASK64 = 2**64 - 1


def _at(tensor: Tensor | None) -> int:
    return 0 if tensor is None else tensor.data_ptr()


def _float(tensor: Tensor | None) -> Tensor | None:
    """What kernels expect of a weight: float32, contiguous."""
    return None if tensor is None else tensor.to(F32).contiguous()


def _noise(seed: int | None) -> tuple[bool, int]:
    return seed is not None, (seed or 0) & MASK64


def _coo_to_csr(dst: Tensor, src: Tensor, num_dst: int, num_src: int) -> tuple[Tensor, Tensor, Tensor]:
    dst, src, nnz = dst.contiguous(), src.contiguous(), dst.numel()
    rowptr = memory.empty([num_dst + 1], torch.int64)
    col, perm = memory.empty([nnz], torch.int32), memory.empty([nnz], torch.int64)
    bad = native.coo_to_csr(
        _at(dst), _at(src), dst.element_size(), nnz, num_dst, num_src, _at(rowptr), _at(col), _at(perm), num_threads()
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
        _at(rowptr), _at(col), rowptr.numel() - 1, num_src, _at(t_rowptr), _at(t_col), _at(t_perm), num_threads()
    )
    return t_rowptr, t_col, t_perm


def _sum_rows(
    kernel: Callable[..., None], rowptr: Tensor, col: Tensor, value: Tensor | None, src_scale: Tensor | None,
    dst_scale: Tensor | None, x: Tensor, dtype: torch.dtype,
) -> Tensor:  # fmt: skip
    rowptr, col, x, num_dst = rowptr.contiguous(), col.contiguous(), x.contiguous(), rowptr.numel() - 1
    value, src_scale, dst_scale = _float(value), _float(src_scale), _float(dst_scale)
    out = memory.empty([num_dst, x.size(1)], dtype)
    kernel(
        _at(rowptr), _at(col), num_dst, _at(value), _at(src_scale), _at(dst_scale), heads_of(value),
        _at(x), _at(out), x.size(1), num_threads(),
    )  # fmt: skip
    return out


def _spmm(
    rowptr: Tensor, col: Tensor, value: Tensor | None, src_scale: Tensor | None, dst_scale: Tensor | None, x: Tensor,
    *transposed: Tensor | None,
) -> Tensor:  # fmt: skip
    kernel = {F32: native.spmm_f32, torch.bfloat16: native.spmm_bf16}.get(x.dtype)
    if kernel is None:
        return OPS["spmm"].reference(rowptr, col, value, src_scale, dst_scale, x, *transposed)
    return _sum_rows(kernel, rowptr, col, value, src_scale, dst_scale, x, x.dtype)


def _spmm_int8(
    rowptr: Tensor, col: Tensor, value: Tensor | None, scale: Tensor, dst_scale: Tensor | None, codes: Tensor
) -> Tensor:
    return _sum_rows(native.spmm_int8, rowptr, col, value, scale, dst_scale, codes, F32)


def _spmm_max(rowptr: Tensor, col: Tensor, value: Tensor | None, x: Tensor, max_degree: int) -> tuple[Tensor, Tensor]:
    if x.dtype != F32:
        return OPS["spmm_max"].reference(rowptr, col, value, x, max_degree)
    rowptr, col, value, x = rowptr.contiguous(), col.contiguous(), _float(value), x.contiguous()
    shape = [rowptr.numel() - 1, x.size(1)]
    out, winner = memory.empty(shape, F32), memory.empty(shape, winner_dtype(max_degree))
    native.spmm_max(
        _at(rowptr), _at(col), shape[0], _at(value), _at(x), _at(out), _at(winner), winner.element_size(), shape[1],
        num_threads(),
    )  # fmt: skip
    return out, winner


def _spmm_max_backward(
    rowptr: Tensor, col: Tensor, value: Tensor | None, winner: Tensor, dout: Tensor, num_src: int
) -> Tensor:
    if dout.dtype != F32:
        return OPS["spmm_max_backward"].reference(rowptr, col, value, winner, dout, num_src)
    rowptr, col, value = rowptr.contiguous(), col.contiguous(), _float(value)
    winner, dout = winner.contiguous(), dout.contiguous()
    dx = memory.empty([num_src, dout.size(1)], F32).zero_()
    valid = native.spmm_max_backward(
        _at(rowptr), _at(col), dout.size(0), _at(value), _at(dout), _at(winner), winner.element_size(), _at(dx),
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
    native.sddmm(_at(rowptr), _at(col), a.size(0), _at(a), _at(b), _at(out), a.size(1), heads, num_threads())
    return out


def _edge_softmax(rowptr: Tensor, logits: Tensor) -> Tensor:
    if logits.dtype != F32:
        return OPS["edge_softmax"].reference(rowptr, logits)
    rowptr, logits = rowptr.contiguous(), logits.contiguous()
    out = memory.empty(logits.shape, F32)
    native.edge_softmax(_at(rowptr), rowptr.numel() - 1, _at(logits), _at(out), logits.size(1), num_threads())
    return out


def _edge_softmax_backward(rowptr: Tensor, p: Tensor, dp: Tensor) -> Tensor:
    if p.dtype != F32:
        return OPS["edge_softmax_backward"].reference(rowptr, p, dp)
    rowptr, p, dp = rowptr.contiguous(), p.contiguous(), dp.contiguous()
    out = memory.empty(p.shape, F32)
    native.edge_softmax_backward(_at(rowptr), rowptr.numel() - 1, _at(p), _at(dp), _at(out), p.size(1), num_threads())
    return out


def _quantize_rows(x: Tensor, seed: int | None) -> tuple[Tensor, Tensor]:
    x = x.contiguous()
    codes, scale = memory.empty(x.shape, torch.int8), memory.empty([x.size(0)], F32)
    native.quantize_rows(_at(x), _at(codes), _at(scale), x.size(0), x.size(1), *_noise(seed), num_threads())
    return codes, scale


def _dequantize_rows(codes: Tensor, scale: Tensor) -> Tensor:
    codes, scale = codes.contiguous(), scale.contiguous()
    out = memory.empty(codes.shape, F32)
    native.dequantize_rows(_at(codes), _at(scale), _at(out), codes.size(0), codes.size(1), num_threads())
    return out


def _pack(x: Tensor, bits: int, block: int, seed: int | None, bf16_meta: bool) -> tuple[Tensor, Tensor, Tensor]:
    x, numel = x.contiguous(), x.numel()
    block = min(block, max(numel, 1))  # one block is one block, however long
    codes = memory.empty([num_bytes(numel, block, bits)], torch.uint8)
    meta = torch.bfloat16 if bf16_meta else F32
    zero, spread = (memory.empty([num_blocks(numel, block)], meta) for _ in range(2))
    native.pack(_at(x), numel, block, bits, bf16_meta, _at(codes), _at(zero), _at(spread), *_noise(seed), num_threads())
    return codes, zero, spread


def _unpack(codes: Tensor, zero: Tensor, spread: Tensor, numel: int, bits: int, block: int) -> Tensor:
    codes, zero, spread = codes.contiguous(), zero.contiguous(), spread.contiguous()
    block = min(block, max(numel, 1))
    out = memory.empty([numel], F32)
    native.unpack(
        _at(codes), _at(zero), _at(spread), numel, block, bits, zero.dtype == torch.bfloat16, _at(out), num_threads()
    )
    return out


def _gather_rows(x: Tensor, ids: Tensor) -> Tensor:
    x, ids = x.contiguous(), ids.contiguous()
    if x.dtype not in memory.POOLED_DTYPES:
        return OPS["gather_rows"].reference(x, ids)
    out = memory.empty([ids.numel(), *x.shape[1:]], x.dtype)
    row_bytes = x.element_size() * x[:1].numel()
    native.gather_rows(_at(x), _at(ids), _at(out), ids.numel(), row_bytes, num_threads())
    return out


def _gather_rows_int8(codes: Tensor, scale: Tensor, ids: Tensor) -> Tensor:
    codes, scale, ids = codes.contiguous(), scale.contiguous(), ids.contiguous()
    out = memory.empty([ids.numel(), codes.size(1)], F32)
    native.gather_rows_int8(_at(codes), _at(scale), _at(ids), _at(out), ids.numel(), codes.size(1), num_threads())
    return out


def _gather_packed_rows(codes: Tensor, zero: Tensor, spread: Tensor, ids: Tensor, columns: int, bits: int) -> Tensor:
    codes, zero, spread, ids = codes.contiguous(), zero.contiguous(), spread.contiguous(), ids.contiguous()
    out = memory.empty([ids.numel(), columns], F32)
    native.gather_packed(
        _at(codes), _at(zero), _at(spread), _at(ids), _at(out), ids.numel(), columns, bits,
        zero.dtype == torch.bfloat16, num_threads(),
    )  # fmt: skip
    return out


def _int8_linear(x: Tensor, x_scale: Tensor, w: Tensor, w_scale: Tensor, bias: Tensor | None) -> Tensor:
    x, x_scale, w, w_scale, bias = (
        x.contiguous(),
        x_scale.contiguous(),
        w.contiguous(),
        w_scale.contiguous(),
        _float(bias),
    )
    out = memory.empty([x.size(0), w.size(0)], F32)
    done = native.int8_linear(
        _at(x), _at(x_scale), _at(w), _at(w_scale), _at(bias), _at(out), x.size(0), x.size(1), w.size(0), num_threads()
    )
    if not done:
        raise MemoryError("int8_linear: no memory left for the packed weights and rows")
    return out


def _random_bits(seed: int, offset: int, numel: int, like: Tensor) -> Tensor:
    out = memory.empty([numel], torch.int32)
    native.random_bits(seed & MASK64, offset, _at(out), numel, num_threads())
    return out


def _dropout(x: Tensor, p: float, seed: int) -> Tensor:
    if x.dtype != F32:
        return OPS["dropout"].reference(x, p, seed)
    x, out = x.contiguous(), memory.empty(x.shape, F32)
    native.dropout(_at(x), _at(out), 0, x.numel(), p, seed & MASK64, num_threads())
    return out


def _dropout_with_mask(op: Op, kernel: Callable[..., None], x: Tensor, p: float, seed: int) -> tuple[Tensor, Tensor]:
    if x.dtype != F32:
        return op.reference(x, p, seed)
    x, out = x.contiguous(), memory.empty(x.shape, F32)
    mask = memory.empty([(x.numel() + 7) // 8], torch.uint8)
    kernel(_at(x), _at(out), _at(mask), x.numel(), p, seed & MASK64, num_threads())
    return out, mask


def _masked_scale(x: Tensor, mask: Tensor, p: float) -> Tensor:
    if x.dtype != F32:
        return OPS["masked_scale"].reference(x, mask, p)
    x, mask, out = x.contiguous(), mask.contiguous(), memory.empty(x.shape, F32)
    native.masked_scale(_at(x), _at(mask), _at(out), x.numel(), p, num_threads())
    return out


def bind() -> None:
    """Give every op its native kernel."""
    kernels: dict[str, Callable[..., Any]] = {
        "coo_to_csr": _coo_to_csr,
        "transpose_csr": _transpose_csr,
        "spmm": _spmm,
        "spmm_int8": _spmm_int8,
        "spmm_max": _spmm_max,
        "spmm_max_backward": _spmm_max_backward,
        "sddmm": _sddmm,
        "edge_softmax": _edge_softmax,
        "edge_softmax_backward": _edge_softmax_backward,
        "quantize_rows": _quantize_rows,
        "dequantize_rows": _dequantize_rows,
        "pack": _pack,
        "unpack": _unpack,
        "gather_rows": _gather_rows,
        "gather_rows_int8": _gather_rows_int8,
        "gather_packed_rows": _gather_packed_rows,
        "int8_linear": _int8_linear,
        "random_bits": _random_bits,
        "dropout": _dropout,
        "dropout_mask": partial(_dropout_with_mask, OPS["dropout_mask"], native.dropout),
        "relu_dropout": partial(_dropout_with_mask, OPS["relu_dropout"], native.relu_dropout),
        "masked_scale": _masked_scale,
    }
    for name, kernel in kernels.items():
        implement_on_cpu(OPS[name], kernel)
