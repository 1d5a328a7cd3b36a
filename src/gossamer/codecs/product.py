"""Feature codec of a codebook per few columns (BiFeat's vector quantisation, product quantisation).

    columns are split into P = ceil(F / width) parts, the last possibly narrower; each part has `length` vectors
    id = argmin_c |x_part - c|        x^_part = c_id        ids of beta = ceil(log2 length) bits, packed

Codebooks are k-means centres (codecs/kmeans.py) of max(100 000, 64 length) rows, recomputed as means over all rows that
are encoded. Code 0 is reserved for parts that are all zeros and decodes to exactly 0. metric="cosine" assigns by
direction and loses the norm of a part, as published. Rows with fewer different parts than `length` leave codes unused:
they decode to 0, and no row has them.

    bytes = N ceil(P beta / 8) + 2 F length + 4 P       ids; float16 codebooks; one power of two per part

The power of two brings a part's largest number to float16's range. Codebooks dominate on few rows: choose `length` so
that 2 F length is a tenth of the ids. Always rounds to nearest: a seed for `encode` changes nothing; the field `seed`
is that of k-means. How to fit, encode and refine by chunks: codecs/rows.py.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, final

import torch
from torch import Tensor

from ..ops.code_sums import code_sums
from ..ops.encode_codes import encode_product
from ..ops.gather_codes import entries_of_parts, gather_product, gather_product_into, id_bits
from ..ops.pack_ids import MOST_BITS, row_bytes
from .codec import Codec, Codes, as_dtype
from .kmeans import kmeans, search_tables
from .rows import (
    SAMPLE_ROWS,
    Refining,
    columns_of,
    finite_matrix,
    fit_to_sample,
    matrix_of,
    nothing,
    refuse_bad_row,
    refuse_columns,
    refuse_unfitted,
    rows_into,
    rows_of,
    sample_ids,
)

ROWS_PER_CODE = 64
LARGEST_EXPONENT = 15  # numbers of a part are brought below 2^15, half of float16's range


class ProductFit(NamedTuple):
    """Codebooks float16 [F length], part by part [length, columns of the part], in units of a power of two per part."""

    books: Tensor
    scale: Tensor
    columns: int


@final
@dataclass(frozen=True)
class Product(Codec):
    width: int = 16
    length: int = 2048
    metric: Literal["euclidean", "cosine"] = "euclidean"
    seed: int = 0
    fitted: ProductFit | None = field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not isinstance(self.width, int) or self.width < 1:
            raise ValueError(f"`width` must be a positive number of columns (got {self.width!r})")
        if not isinstance(self.length, int) or not 2 <= self.length <= 2**MOST_BITS:
            raise ValueError(f"`length` must be from 2 to {2**MOST_BITS}, vectors of a codebook (got {self.length!r})")
        if self.metric not in ("euclidean", "cosine"):
            raise ValueError(f"`metric` must be 'euclidean' or 'cosine' (got {self.metric!r})")
        if not isinstance(self.seed, int):
            raise ValueError(f"`seed` must be a whole number (got {self.seed!r})")

    @property
    def sample_rows(self) -> int:
        return max(SAMPLE_ROWS, ROWS_PER_CODE * self.length)

    def fit(self, x: Tensor) -> Product:
        """The codec with codebooks fitted to x, all of it; a part at a time."""
        rows = finite_matrix(x)
        books = []
        for p, part in enumerate(rows.split(self.width, dim=1)):
            some = part[(part != 0).any(1)].contiguous()
            centres = torch.zeros(self.length, part.size(1), dtype=torch.float64, device=x.device)
            if len(some):
                unit = 2.0 ** _exponent(some.abs().max())
                found, _ = kmeans((some.double() / unit).float(), self.length - 1, self.metric, self.seed + p)
                centres[1 : 1 + len(found)] = found.double() * unit
            books.append(centres)
        codec = self._with(books)
        refining = codec.start_refining()
        codec.accumulate(refining, rows, codec.encode(rows))
        return codec.refined(refining)

    def encode(self, x: Tensor, seed: int | None = None) -> Codes:
        """Codes of x; a codec that was not fitted is fitted to a sample of x first. The seed is ignored."""
        rows = matrix_of(x)
        if x.numel() == 0:
            return nothing(x, 2)
        if self.fitted is None:
            return self._fit_and_encode(x, rows)
        refuse_columns(rows.size(1), self.fitted.columns)
        searched = [search_tables(book[1:].float(), self.metric) for book in self._entries()]
        books, start = torch.cat([book for book, _ in searched]), torch.stack([start for _, start in searched])
        packed, bad = encode_product(rows, books, start, 1 / self.fitted.scale, self.width)
        refuse_bad_row(x, int(bad))
        return Codes((packed, *self.tables()), x.shape, x.dtype)

    def decode(self, codes: Codes) -> Tensor:
        if codes.shape.numel() == 0:
            return codes.tensors[0].new_empty(codes.shape, dtype=codes.dtype)
        ids = torch.arange(rows_of(codes.shape), device=codes.tensors[0].device)
        rows = gather_product(*codes.tensors, ids, columns_of(codes.shape), self.width, self.length)
        return as_dtype(rows.view(codes.shape), codes.dtype)

    def decode_rows(
        self, codes: Codes, ids: Tensor, dtype: torch.dtype = torch.float32, out: Tensor | None = None
    ) -> Tensor:
        """Rows `ids` of a matrix, without decoding the others, as float32 or bfloat16; into `out` if given."""
        sizes = columns_of(codes.shape), self.width, self.length
        return rows_into(codes, ids, dtype, out, lambda to: gather_product_into(to, *codes.tensors, ids, *sizes))

    def nbytes(self, shape: torch.Size | tuple[int, ...]) -> int:
        if torch.Size(shape).numel() == 0:
            return 0
        columns = columns_of(shape)
        parts = -(-columns // self.width)
        return rows_of(shape) * row_bytes(parts, id_bits(self.length)) + 2 * columns * self.length + 4 * parts

    def error_bound(self, codes: Codes) -> Tensor:
        """Infinite: a row may be as far from all centres as it likes."""
        return torch.full((), torch.inf, device=codes.tensors[0].device).expand(codes.shape)

    def start_refining(self) -> Refining:
        if self.fitted is None:
            refuse_unfitted(self)
        shape, device = (len(self.fitted.scale), self.length), self.fitted.scale.device
        width = min(self.width, self.fitted.columns)
        sums = torch.zeros(*shape, width, dtype=torch.float64, device=device)
        return Refining(sums, torch.zeros(shape, dtype=torch.int64, device=device))

    def accumulate(self, refining: Refining, x: Tensor, codes: Codes) -> None:
        if x.numel():
            code_sums(*refining, matrix_of(x), codes.tensors[0])

    def refined(self, refining: Refining) -> Product:
        """The codec whose codebooks are means; code 0, and codes that no row has, stay as they are."""
        if self.fitted is None:
            refuse_unfitted(self)
        books = []
        for p, book in enumerate(self._entries()):
            count = refining.counts[p].unsqueeze(1)
            means = refining.sums[p, :, : book.size(1)] / count.clamp(min=1)
            means[0] = 0
            books.append(torch.where(count > 0, means, book.double() * self.fitted.scale[p].double()))
        return self._with(books)

    def tables(self) -> tuple[Tensor, ...]:
        if self.fitted is None:
            refuse_unfitted(self)
        return self.fitted.books, self.fitted.scale

    def _entries(self) -> list[Tensor]:
        """The codebook of each part, [length, columns of the part], float16."""
        assert self.fitted is not None
        return entries_of_parts(self.fitted.books, self.fitted.columns, self.width, self.length)

    def _with(self, books: list[Tensor]) -> Product:
        """The codec with these codebooks (float64, a part each), rounded to float16."""
        exponents = [_exponent(book.abs().max()) for book in books]
        largest = 2.0**LARGEST_EXPONENT - 16  # the float16 below: rounded up, the largest float32 would be infinite
        halves = [
            (book / 2.0**e).clamp(-largest, largest).half().flatten() for book, e in zip(books, exponents, strict=True)
        ]
        scale = torch.tensor([2.0**e for e in exponents], dtype=torch.float32, device=books[0].device)
        return dataclasses.replace(
            self, fitted=ProductFit(torch.cat(halves), scale, sum(book.size(1) for book in books))
        )

    def _fit_and_encode(self, x: Tensor, rows: Tensor) -> Codes:
        ids = sample_ids(len(rows), self.sample_rows)
        codec = fit_to_sample(self, x, rows, ids)
        codes = codec.encode(x)
        refining = codec.start_refining()
        codec.accumulate(refining, x, codes)
        return codes._replace(tensors=(codes.tensors[0], *codec.refined(refining).tables()))


def _exponent(largest: Tensor) -> int:
    """e such that largest / 2^e lies in [2^14, 2^15); 0 for zero, and never below the normal float32 numbers."""
    if not float(largest):
        return 0
    return max(int(torch.frexp(largest.double()).exponent) - LARGEST_EXPONENT, -126)
