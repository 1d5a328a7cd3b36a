"""Native kernels of ops/gather_codes.py."""

from __future__ import annotations

import torch
from torch import Tensor

from ... import memory
from ...native import library, num_threads
from ...ops._library import implement
from ...ops.gather_codes import gather_product, gather_product_into, gather_scalar, gather_scalar_into, id_bits
from ._arguments import F32, at, contiguous


def _gather_scalar_into(out: Tensor, codes: Tensor, table: Tensor, ids: Tensor, columns: int, bits: int) -> None:
    codes, table, ids = contiguous(codes, table, ids)
    gather = library.gather_scalar_f32 if out.dtype == F32 else library.gather_scalar_bf16
    gather(at(codes), columns, bits, at(table), table.size(1) > 1, at(ids), at(out), ids.numel(), num_threads())


def _gather_scalar(
    codes: Tensor, table: Tensor, ids: Tensor, columns: int, bits: int, bfloat16: bool = False
) -> Tensor:
    out = memory.empty([ids.numel(), columns], torch.bfloat16 if bfloat16 else F32)
    _gather_scalar_into(out, codes, table, ids, columns, bits)
    return out


def _gather_product_into(
    out: Tensor, codes: Tensor, books: Tensor, scale: Tensor, ids: Tensor, columns: int, width: int, length: int
) -> None:
    codes, books, scale, ids = contiguous(codes, books, scale, ids)
    gather = library.gather_product_f32 if out.dtype == F32 else library.gather_product_bf16
    gather(
        at(codes), codes.size(0), columns, min(width, columns), length, id_bits(length), at(books), at(scale), at(ids),
        at(out), ids.numel(), num_threads(),
    )  # fmt: skip


def _gather_product(
    codes: Tensor,
    books: Tensor,
    scale: Tensor,
    ids: Tensor,
    columns: int,
    width: int,
    length: int,
    bfloat16: bool = False,
) -> Tensor:
    out = memory.empty([ids.numel(), columns], torch.bfloat16 if bfloat16 else F32)
    _gather_product_into(out, codes, books, scale, ids, columns, width, length)
    return out


implement(gather_scalar, "cpu", _gather_scalar)
implement(gather_scalar_into, "cpu", _gather_scalar_into)
implement(gather_product, "cpu", _gather_product)
implement(gather_product_into, "cpu", _gather_product_into)
