"""Native kernels of ops/encode_codes.py."""

from __future__ import annotations

import torch
from torch import Tensor

from ... import memory
from ...native import library, num_threads
from ...ops._library import implement
from ...ops.encode_codes import EncodedRows, encode_product, encode_scalar
from ...ops.gather_codes import id_bits
from ...ops.pack_ids import row_bytes
from ._arguments import at, contiguous, enough

CHUNK_ROWS = 256
"""Rows of one thread, for which a codebook's part is read once into the second-level cache."""
LANES = 16
"""Codes that a kernel compares at once."""
NO_ROW = torch.iinfo(torch.int64).max


def _first_of_chunks(rows: int) -> Tensor:
    return torch.full([-(-rows // CHUNK_ROWS)], NO_ROW, dtype=torch.int64)


def _first(bad: Tensor) -> Tensor:
    first = bad.min() if bad.numel() else torch.tensor(NO_ROW)
    return torch.where(first == NO_ROW, -1, first)


def _encode_scalar(x: Tensor, thresholds: Tensor, bits: int) -> EncodedRows:
    x, thresholds = contiguous(x, thresholds)
    rows, columns = x.shape
    codes, bad = memory.empty([rows, row_bytes(columns, bits)], torch.uint8), _first_of_chunks(rows)
    library.encode_scalar(
        at(x), columns, bits, at(thresholds), thresholds.size(1) > 1, at(codes), rows, CHUNK_ROWS, at(bad),
        num_threads(),
    )  # fmt: skip
    return EncodedRows(codes, _first(bad))


def _in_blocks(books: Tensor, width: int) -> Tensor:
    """Part by part [length / 16, columns of the part, 16], so that a search reads memory in order."""
    parts = [part.view(len(part), -1, LANES).transpose(0, 1).flatten() for part in books.split(width)]
    return torch.cat(parts)


def _encode_product(x: Tensor, books: Tensor, start: Tensor, inverse_scale: Tensor, width: int) -> EncodedRows:
    x, inverse_scale = contiguous(x, inverse_scale)
    rows, columns = x.shape
    length = books.size(1)
    bits, width = id_bits(length), min(width, columns)
    more = (0, -length % LANES)
    blocks = _in_blocks(torch.nn.functional.pad(books, more), width)
    begin = torch.nn.functional.pad(start, more, value=-torch.inf)
    codes, bad = memory.empty([rows, row_bytes(len(start), bits)], torch.uint8), _first_of_chunks(rows)
    done = library.encode_product(
        at(x), at(blocks), at(begin), at(inverse_scale), columns, width, begin.size(1), bits, at(codes), rows,
        CHUNK_ROWS, at(bad), num_threads(),
    )  # fmt: skip
    enough(done)
    return EncodedRows(codes, _first(bad))


implement(encode_scalar, "cpu", _encode_scalar)
implement(encode_product, "cpu", _encode_product)
