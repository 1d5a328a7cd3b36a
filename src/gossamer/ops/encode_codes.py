"""Codes of rows, as compressed features (BiFeat) store them, in one pass over the rows.

    encode_scalar    code_ic = #{ j : x_ic > thresholds_jc }           2^bits - 1 ascending thresholds, one set for all
                                                                      columns ([.., 1]) or one for each ([.., columns])
    encode_product   code_ip = argmax_c  start_pc + sum_k z_k book_kc      z: the columns of part p, times
                                                                      inverse_scale_p, clamped to +-2^40

Rounding to nearest is a search among thresholds half-way between levels. Of Euclidean distances the nearest entry has
the largest z.c - |c|^2 / 2: start = -|c|^2 / 2. Sums run over k in order, multiplied and added in float32; of equal
scores the lowest code wins, a part that is all zeros has code 0, and start = -inf leaves an entry out. A row's codes
depend on nothing but the row.

Codes are packed as by `pack_ids`; `bad` is the first row that holds NaN or infinity, -1 if none does.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from . import _checks
from ._few_bits import check_bits
from ._library import define
from ._structure import structure
from .gather_codes import check_columns, check_length, check_table, id_bits
from .pack_ids import pack_ids, row_bytes

LIMIT = 2.0**40
BLOCK_ROWS = 1024  # of the reference, whose scores take rows x length floats


@structure
class EncodedRows(NamedTuple):
    """`codes` [rows, bytes]; `bad`: the first row that is not finite, or -1."""

    codes: Tensor
    bad: Tensor


def _check_x(x: Tensor) -> None:
    _checks.dtype_of("x", x, (torch.float32,))
    _checks.shape_of("x", x, (None, None), "[rows, columns]")
    check_columns(x.size(1), "columns of `x`")


def first_bad(x: Tensor) -> Tensor:
    bad = ~x.isfinite().all(1)
    if x.size(0) == 0:
        return torch.full((), -1, dtype=torch.int64, device=x.device)
    return torch.where(bad.any(), bad.int().argmax(), -1)


def _check_scalar(x: Tensor, thresholds: Tensor, bits: int) -> None:
    _check_x(x)
    check_bits(bits)
    check_table("thresholds", thresholds, 2**bits - 1, x.size(1))
    if not bool((thresholds[1:] >= thresholds[:-1]).all()):
        raise ValueError("`thresholds` must ascend from row to row (got some that do not); sort them")


def _scalar_reference(x: Tensor, thresholds: Tensor, bits: int) -> EncodedRows:
    codes = torch.zeros(x.shape, dtype=torch.int32, device=x.device)
    for row in thresholds:
        codes += x > row
    return EncodedRows(pack_ids.reference(codes, bits), first_bad(x))


def _scalar_fake(x: Tensor, thresholds: Tensor, bits: int) -> EncodedRows:
    codes = x.new_empty(x.size(0), row_bytes(x.size(1), bits), dtype=torch.uint8)
    return EncodedRows(codes, x.new_empty((), dtype=torch.int64))


encode_scalar = define(
    "encode_scalar(Tensor x, Tensor thresholds, int bits) -> EncodedRows",
    check=_check_scalar,
    reference=_scalar_reference,
    fake=_scalar_fake,
)


def _check_product(x: Tensor, books: Tensor, start: Tensor, inverse_scale: Tensor, width: int) -> None:
    _check_x(x)
    _checks.at_least("width", width, 1)
    parts = -(-x.size(1) // width)
    _checks.dtype_of("books", books, (torch.float32,))
    _checks.shape_of("books", books, (x.size(1), None), f"[{x.size(1)}, length], a row per column")
    check_length(books.size(1), "columns of `books`")
    _checks.dtype_of("start", start, (torch.float32,))
    _checks.shape_of("start", start, (parts, books.size(1)), f"[{parts}, {books.size(1)}], a row per part")
    _checks.dtype_of("inverse_scale", inverse_scale, (torch.float32,))
    _checks.shape_of("inverse_scale", inverse_scale, (parts,), f"[{parts}], one number per part")


def _product_reference(x: Tensor, books: Tensor, start: Tensor, inverse_scale: Tensor, width: int) -> EncodedRows:
    ids = torch.empty(x.size(0), start.size(0), dtype=torch.int32, device=x.device)
    for p in range(start.size(0)):
        columns = slice(p * width, (p + 1) * width)
        book = books[columns]
        for first in range(0, x.size(0), BLOCK_ROWS):
            rows = x[first : first + BLOCK_ROWS, columns]
            z = (rows * inverse_scale[p]).clamp(-LIMIT, LIMIT)
            score = start[p].expand(len(z), -1)
            for k in range(z.size(1)):
                score = score + z[:, k : k + 1] * book[k]
            found = score.argmax(1).where((rows != 0).any(1), 0)
            ids[first : first + BLOCK_ROWS, p] = found.to(torch.int32)
    return EncodedRows(pack_ids.reference(ids, id_bits(books.size(1))), first_bad(x))


def _product_fake(x: Tensor, books: Tensor, start: Tensor, inverse_scale: Tensor, width: int) -> EncodedRows:
    count = row_bytes(start.size(0), id_bits(books.size(1)))
    return EncodedRows(x.new_empty(x.size(0), count, dtype=torch.uint8), x.new_empty((), dtype=torch.int64))


encode_product = define(
    "encode_product(Tensor x, Tensor books, Tensor start, Tensor inverse_scale, int width) -> EncodedRows",
    check=_check_product,
    reference=_product_reference,
    fake=_product_fake,
)
