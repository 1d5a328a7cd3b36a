"""Native kernels of ops/gather_rows.py."""

from __future__ import annotations

import torch
from torch import Tensor

from ... import memory
from ...native import library, num_threads
from ...ops._library import implement
from ...ops.gather_rows import gather_packed_rows, gather_rows, gather_rows_int8
from ._arguments import F32, at


def _gather_rows(x: Tensor, ids: Tensor) -> Tensor:
    x, ids = x.contiguous(), ids.contiguous()
    if x.dtype not in memory.POOLED_DTYPES:
        return gather_rows.reference(x, ids)
    out = memory.empty([ids.numel(), *x.shape[1:]], x.dtype)
    row_bytes = x.element_size() * x[:1].numel()
    library.gather_rows(at(x), at(ids), at(out), ids.numel(), row_bytes, num_threads())
    return out


def _gather_rows_int8(codes: Tensor, scale: Tensor, ids: Tensor) -> Tensor:
    codes, scale, ids = codes.contiguous(), scale.contiguous(), ids.contiguous()
    out = memory.empty([ids.numel(), codes.size(1)], F32)
    library.gather_rows_int8(at(codes), at(scale), at(ids), at(out), ids.numel(), codes.size(1), num_threads())
    return out


def _gather_packed_rows(codes: Tensor, zero: Tensor, spread: Tensor, ids: Tensor, columns: int, bits: int) -> Tensor:
    codes, zero, spread, ids = codes.contiguous(), zero.contiguous(), spread.contiguous(), ids.contiguous()
    out = memory.empty([ids.numel(), columns], F32)
    library.gather_packed(
        at(codes), at(zero), at(spread), at(ids), at(out), ids.numel(), columns, bits,
        zero.dtype == torch.bfloat16, num_threads(),
    )  # fmt: skip
    return out


implement(gather_rows, "cpu", _gather_rows)
implement(gather_rows_int8, "cpu", _gather_rows_int8)
implement(gather_packed_rows, "cpu", _gather_packed_rows)
