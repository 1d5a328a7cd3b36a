"""Rows of compressed features (BiFeat), gathered and decoded in one pass.

    gather_scalar    out_kc = table[code_kc, c]             a code of 1, 2, 4 or 8 bits per column; one table for all
                                                            columns, [2^bits, 1], or one for each, [2^bits, columns]
    gather_product   out_k,p = scale_p book_p[code_kp]      a code of ceil(log2 length) bits per part p of `width`
                                                            columns; the last part may be narrower

code_k is row ids_k of `codes`, [rows, bytes], packed as by `pack_ids`. Books are float16, finite, one part after the
other, part p as [length, columns of the part]; a code beyond the book counts as its last. The result is float32, or
bfloat16, rounded to nearest.

The ops `_into` write into rows of `out`, float32 or bfloat16, and leave out those whose id is -1: two calls fill a
batch from two matrices. Reading 1/32 (1 bit) to 1/4 (8 bits) of the bytes of float32 rows, they are bound by writing
the result.
"""

from __future__ import annotations

import torch
from torch import Tensor

from . import _checks
from ._few_bits import check_bits, spread_codes
from ._library import define
from .pack_ids import MOST_BITS, row_bytes, unpack_ids

MOST_COLUMNS = 2**22  # times 2^8 entries of a table stay below 2^31


def id_bits(length: int) -> int:
    """Bits of an id among `length`: ceil(log2 length)."""
    return max(1, (length - 1).bit_length())


def check_length(length: int, name: str = "`length`") -> None:
    """`name` says what has so many entries."""
    if not 2 <= length <= 2**MOST_BITS:
        raise ValueError(f"{name} must be from 2 to {2**MOST_BITS}, entries of a codebook (got {length})")


def check_columns(columns: int, name: str = "`columns`") -> None:
    """`name` says what has so many columns."""
    if not 1 <= columns <= MOST_COLUMNS:
        raise ValueError(f"{name} must be from 1 to {MOST_COLUMNS} (got {columns})")


def check_table(name: str, table: Tensor, entries: int, columns: int) -> None:
    _checks.dtype_of(name, table, (torch.float32,))
    wide = columns if table.dim() == 2 and table.size(1) == columns else 1
    meaning = f"[{entries}, 1] for all columns or [{entries}, {columns}], one per column"
    _checks.shape_of(name, table, (entries, wide), meaning)


def _check_codes(codes: Tensor, count: int) -> None:
    _checks.dtype_of("codes", codes, (torch.uint8,))
    _checks.shape_of("codes", codes, (None, count), f"[rows, {count}] bytes")


def _check_ids(ids: Tensor, rows: int) -> None:
    _checks.dtype_of("ids", ids, (torch.int64,))
    _checks.shape_of("ids", ids, (None,), "[count]")
    _checks.ids_within("ids", ids, rows, "rows")


def check_some_ids(ids: Tensor, rows: int) -> None:
    _checks.dtype_of("ids", ids, (torch.int64,))
    _checks.shape_of("ids", ids, (None,), "[count]")
    at = _checks.first_outside(ids + 1, rows + 1)
    if at >= 0:
        raise IndexError(
            f"`ids` must hold ids from 0 to {rows - 1}, or -1 for rows to leave out "
            f"(got {int(ids[at])} at position {at})"
        )


def check_out(out: Tensor, ids: Tensor, columns: int) -> None:
    _checks.dtype_of("out", out, (torch.float32, torch.bfloat16))
    _checks.shape_of("out", out, (ids.numel(), columns), f"[{ids.numel()}, {columns}], a row per id")
    if not out.is_contiguous():
        raise ValueError(
            f"`out` must be contiguous (got strides {out.stride()}); pass `out.contiguous()` and copy back"
        )


def _kept(out: Tensor, rows: Tensor, ids: Tensor) -> None:
    """Rows of `out` whose id is not -1."""
    out.copy_(torch.where((ids >= 0).unsqueeze(1), rows.to(out.dtype), out))


# One code per column ----------------------------------------------------------------------------------------------


def check_scalar_table(codes: Tensor, table: Tensor, columns: int, bits: int) -> None:
    check_columns(columns)
    check_bits(bits)
    _check_codes(codes, row_bytes(columns, bits))
    check_table("table", table, 2**bits, columns)


def _check_scalar(codes: Tensor, table: Tensor, ids: Tensor, columns: int, bits: int, bfloat16: bool = False) -> None:
    check_scalar_table(codes, table, columns, bits)
    _check_ids(ids, codes.size(0))


def _scalar_reference(
    codes: Tensor, table: Tensor, ids: Tensor, columns: int, bits: int, bfloat16: bool = False
) -> Tensor:
    found = spread_codes(codes[ids], bits, columns).long()
    rows = table.expand(-1, columns).gather(0, found)
    return rows.to(torch.bfloat16) if bfloat16 else rows


def _scalar_fake(codes: Tensor, table: Tensor, ids: Tensor, columns: int, bits: int, bfloat16: bool = False) -> Tensor:
    return table.new_empty(ids.size(0), columns, dtype=torch.bfloat16 if bfloat16 else torch.float32)


gather_scalar = define(
    "gather_scalar(Tensor codes, Tensor table, Tensor ids, int columns, int bits, bool bfloat16=False) -> Tensor",
    check=_check_scalar,
    reference=_scalar_reference,
    fake=_scalar_fake,
)


def _check_scalar_into(out: Tensor, codes: Tensor, table: Tensor, ids: Tensor, columns: int, bits: int) -> None:
    check_scalar_table(codes, table, columns, bits)
    check_some_ids(ids, codes.size(0))
    check_out(out, ids, columns)


def _scalar_into_reference(out: Tensor, codes: Tensor, table: Tensor, ids: Tensor, columns: int, bits: int) -> None:
    if codes.size(0):
        _kept(out, _scalar_reference(codes, table, ids.clamp(min=0), columns, bits), ids)


gather_scalar_into = define(
    "gather_scalar_into(Tensor(a!) out, Tensor codes, Tensor table, Tensor ids, int columns, int bits) -> ()",
    check=_check_scalar_into,
    reference=_scalar_into_reference,
    fake=lambda out, codes, table, ids, columns, bits: None,
)


# One code per part ------------------------------------------------------------------------------------------------


def _check_books(codes: Tensor, books: Tensor, scale: Tensor, columns: int, width: int, length: int) -> None:
    check_columns(columns)
    _checks.at_least("width", width, 1)
    check_length(length)
    parts = -(-columns // width)
    _check_codes(codes, row_bytes(parts, id_bits(length)))
    _checks.dtype_of("books", books, (torch.float16,))
    _checks.shape_of("books", books, (columns * length,), f"[{columns * length}], {length} entries of all parts")
    _checks.dtype_of("scale", scale, (torch.float32,))
    _checks.shape_of("scale", scale, (parts,), f"[{parts}], one number per part")


def _check_product(
    codes: Tensor,
    books: Tensor,
    scale: Tensor,
    ids: Tensor,
    columns: int,
    width: int,
    length: int,
    bfloat16: bool = False,
) -> None:
    _check_books(codes, books, scale, columns, width, length)
    _check_ids(ids, codes.size(0))


def entries_of_parts(books: Tensor, columns: int, width: int, length: int) -> list[Tensor]:
    """The book of each part, [length, columns of the part]."""
    starts = range(0, columns, width)
    return [books[c * length : min(c + width, columns) * length].view(length, -1) for c in starts]


def _product_reference(
    codes: Tensor,
    books: Tensor,
    scale: Tensor,
    ids: Tensor,
    columns: int,
    width: int,
    length: int,
    bfloat16: bool = False,
) -> Tensor:
    parts = entries_of_parts(books.contiguous(), columns, width, length)
    found = unpack_ids.reference(codes[ids], len(parts), id_bits(length)).clamp(max=length - 1).long()
    rows = torch.cat([part[found[:, p]].float() * scale[p] for p, part in enumerate(parts)], 1)
    return rows.to(torch.bfloat16) if bfloat16 else rows


def _product_fake(
    codes: Tensor,
    books: Tensor,
    scale: Tensor,
    ids: Tensor,
    columns: int,
    width: int,
    length: int,
    bfloat16: bool = False,
) -> Tensor:
    return scale.new_empty(ids.size(0), columns, dtype=torch.bfloat16 if bfloat16 else torch.float32)


gather_product = define(
    "gather_product(Tensor codes, Tensor books, Tensor scale, Tensor ids, int columns, int width, int length, "
    "bool bfloat16=False) -> Tensor",
    check=_check_product,
    reference=_product_reference,
    fake=_product_fake,
)


def _check_product_into(
    out: Tensor, codes: Tensor, books: Tensor, scale: Tensor, ids: Tensor, columns: int, width: int, length: int
) -> None:
    _check_books(codes, books, scale, columns, width, length)
    check_some_ids(ids, codes.size(0))
    check_out(out, ids, columns)


def _product_into_reference(
    out: Tensor, codes: Tensor, books: Tensor, scale: Tensor, ids: Tensor, columns: int, width: int, length: int
) -> None:
    if codes.size(0):
        _kept(out, _product_reference(codes, books, scale, ids.clamp(min=0), columns, width, length), ids)


gather_product_into = define(
    "gather_product_into(Tensor(a!) out, Tensor codes, Tensor books, Tensor scale, Tensor ids, int columns, int width, "
    "int length) -> ()",
    check=_check_product_into,
    reference=_product_into_reference,
    fake=lambda out, codes, books, scale, ids, columns, width, length: None,
)
