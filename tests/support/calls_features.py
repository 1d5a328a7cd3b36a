"""Random well-formed calls of the ops of compressed features."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor

from gossamer.ops.gather_codes import id_bits
from gossamer.ops.pack_ids import row_bytes
from gossamer.ops.rank_rows import level_bits

from .calls import COUNTS, Draw, diagonals, floats, integers, masks, maybe, structure

COLUMNS = st.sampled_from([1, 3, 16, 18, 33, 70])
FEW_BITS = st.sampled_from([1, 2, 4, 8])
ID_BITS = st.integers(1, 16)


def ids_of(draw: Draw, rows: int, least: int = 0) -> Tensor:
    return integers(draw, least, rows, (draw(COUNTS) if rows else 0,), torch.int64)


def out_of(draw: Draw, ids: Tensor, columns: int) -> Tensor:
    return floats(draw, ids.numel(), columns).to(draw(st.sampled_from([torch.float32, torch.bfloat16])))


def pack_ids(draw: Draw) -> list[Any]:
    bits, parts = draw(ID_BITS), draw(st.integers(0, 9))
    return [integers(draw, 0, 2**bits, (draw(COUNTS), parts), torch.int32), bits]


def unpack_ids(draw: Draw) -> list[Any]:
    bits, parts = draw(ID_BITS), draw(st.integers(0, 9))
    return [integers(draw, 0, 256, (draw(COUNTS), row_bytes(parts, bits)), torch.uint8), parts, bits]


def scalar_table(draw: Draw) -> tuple[Tensor, Tensor, int, int]:
    rows, columns, bits = draw(COUNTS), draw(COLUMNS), draw(FEW_BITS)
    codes = integers(draw, 0, 256, (rows, row_bytes(columns, bits)), torch.uint8)
    return codes, floats(draw, 2**bits, draw(st.sampled_from([1, columns]))), columns, bits


def gather_scalar(draw: Draw) -> list[Any]:
    codes, table, columns, bits = scalar_table(draw)
    return [codes, table, ids_of(draw, codes.size(0)), columns, bits, draw(st.booleans())]


def gather_scalar_into(draw: Draw) -> list[Any]:
    codes, table, columns, bits = scalar_table(draw)
    ids = ids_of(draw, codes.size(0), least=-1)
    return [out_of(draw, ids, columns), codes, table, ids, columns, bits]


def spmm_scalar(draw: Draw) -> list[Any]:
    rowptr, col, num_src = structure(draw)
    num_dst, columns, bits = rowptr.numel() - 1, draw(COLUMNS), draw(FEW_BITS)
    factors = [maybe(draw, floats(draw, count)) for count in (col.numel(), num_src, num_dst)]
    codes = integers(draw, 0, 256, (num_src, row_bytes(columns, bits)), torch.uint8)
    table = floats(draw, 2**bits, draw(st.sampled_from([1, columns])))
    return [rowptr, col, *factors, codes, table, diagonals(draw, num_src, num_dst), columns, bits]


def books(draw: Draw) -> tuple[Tensor, Tensor, Tensor, int, int, int]:
    rows, columns, width = draw(COUNTS), draw(COLUMNS), draw(st.sampled_from([1, 5, 16, 40]))
    length, parts = draw(st.sampled_from([2, 3, 16, 60])), -(-columns // width)
    codes = integers(draw, 0, 256, (rows, row_bytes(parts, id_bits(length))), torch.uint8)
    return codes, floats(draw, columns * length).half(), floats(draw, parts), columns, width, length


def gather_product(draw: Draw) -> list[Any]:
    codes, entries, scale, *sizes = books(draw)
    return [codes, entries, scale, ids_of(draw, codes.size(0)), *sizes, draw(st.booleans())]


def gather_product_into(draw: Draw) -> list[Any]:
    codes, entries, scale, *sizes = books(draw)
    ids = ids_of(draw, codes.size(0), least=-1)
    return [out_of(draw, ids, sizes[0]), codes, entries, scale, ids, *sizes]


def encode_scalar(draw: Draw) -> list[Any]:
    columns, bits = draw(COLUMNS), draw(FEW_BITS)
    thresholds = floats(draw, 2**bits - 1, draw(st.sampled_from([1, columns]))).sort(0).values
    return [floats(draw, draw(COUNTS), columns), thresholds, bits]


def encode_product(draw: Draw) -> list[Any]:
    columns, width, length = draw(COLUMNS), draw(st.sampled_from([1, 5, 16, 40])), draw(st.sampled_from([2, 3, 16, 60]))
    parts = -(-columns // width)
    x = floats(draw, draw(COUNTS), columns) * masks(draw, columns)
    start = floats(draw, parts, length).where(floats(draw, parts, length) < 1, -torch.inf)
    return [x, floats(draw, columns, length), start, floats(draw, parts).abs(), width]


def code_sums(draw: Draw) -> list[Any]:
    codes, _, _, columns, width, length = books(draw)
    sums = floats(draw, -(-columns // width), length, width).double()
    counts = integers(draw, 0, 9, (sums.size(0), length), torch.int64)
    return [sums, counts, floats(draw, codes.size(0), columns), codes]


def row_products(draw: Draw) -> list[Any]:
    columns, outputs = draw(st.integers(0, 20)), draw(st.sampled_from([0, 1, 16, 18, 70]))
    x = floats(draw, draw(COUNTS), columns) * masks(draw, columns)
    return [x, floats(draw, outputs, columns), maybe(draw, floats(draw, outputs))]


def rank_rows(draw: Draw) -> list[Any]:
    rows = draw(st.sampled_from([0, 1, 8, 511, 512, 513, 1200]))
    return [*level_bits(masks(draw, rows)), ids_of(draw, rows), rows]


CALLS: dict[str, Callable[[Draw], list[Any]]] = {
    "pack_ids": pack_ids,
    "unpack_ids": unpack_ids,
    "gather_scalar": gather_scalar,
    "gather_scalar_into": gather_scalar_into,
    "spmm_scalar": spmm_scalar,
    "gather_product": gather_product,
    "gather_product_into": gather_product_into,
    "encode_scalar": encode_scalar,
    "encode_product": encode_product,
    "row_products": row_products,
    "code_sums": code_sums,
    "rank_rows": rank_rows,
}
