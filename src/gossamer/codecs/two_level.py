"""Feature codec of two levels: rows that matter most in a mild code, the others in an aggressive one (F2CGT).

    CR = 1 / (phi / CR_mild + (1 - phi) / CR_aggressive)        phi: the share of important rows

A seed's own features enter a model without being averaged; a neighbour's error is averaged. Which rows are important is
a property of the graph, hence no part of the setting but an argument:

    important = hottest(hotness(graph.rowptr, graph.col, train, fanouts, n), 0.1)     or the seeds' mask
    codec = gs.TwoLevel(gs.Scalar(bits=4), gs.Product(64, 256)).fit(x, important)     each code on the rows it is for
    codes = codec.encode(x, important=important)                                      without it every row is important

`important` the field says which of the two a store or a command takes by itself: "seeds" (train, validation, test), or
"hotness". Where every node is a seed, take hotness.

Codes: rows of the mild code, rows of the aggressive code, a bit per row and a count per 512 rows to find a row by
(ops/rank_rows.py, 1.0625 bits per row), and the tables of both. Decoding scatters both groups into one batch. For
chunks: fit, encode, accumulate and refined as in codecs/rows.py, with `important` of the chunk; `joined` puts the codes
of chunks together. Always rounds to nearest.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, final

import torch
from torch import Tensor

from ..ops.rank_rows import BLOCK, level_bits, rank_rows
from .codec import Codec, Codes, as_dtype
from .product import Product
from .rows import (
    NotFinite,
    Refining,
    columns_of,
    first_bad_row,
    matrix_of,
    nothing,
    refuse_bad_row,
    rows_into,
    rows_of,
)
from .scalar import Scalar

TABLES = {Scalar: 1, Product: 2}


class RefiningTwo(NamedTuple):
    mild: Refining
    aggressive: Refining


@final
@dataclass(frozen=True)
class TwoLevel(Codec):
    mild: Scalar | Product = field(default_factory=lambda: Scalar(bits=4))
    aggressive: Scalar | Product = field(default_factory=lambda: Product(width=64, length=256))
    important: Literal["seeds", "hotness"] = "seeds"

    def __post_init__(self) -> None:
        for name in ("mild", "aggressive"):
            if not isinstance(getattr(self, name), (Scalar, Product)):
                raise ValueError(f"`{name}` must be a Scalar or a Product codec (got {getattr(self, name)!r})")
        if self.important not in ("seeds", "hotness"):
            raise ValueError(
                f"`important` must be 'seeds' or 'hotness' (got {self.important!r}); "
                "a truth value per row is an argument of fit and encode"
            )

    @property
    def sample_rows(self) -> int:
        return max(self.mild.sample_rows, self.aggressive.sample_rows)

    def fit(self, x: Tensor, important: Tensor | None = None) -> TwoLevel:
        """Each code fitted to the rows that it is for, or to all if there are none."""
        rows = matrix_of(x)
        refuse_bad_row(x, first_bad_row(rows))
        mask = _mask(important, len(rows), x.device)
        chosen = [rows[group] if bool(group.any()) else rows for group in (mask, ~mask)]
        return dataclasses.replace(self, mild=self.mild.fit(chosen[0]), aggressive=self.aggressive.fit(chosen[1]))

    def encode(self, x: Tensor, seed: int | None = None, important: Tensor | None = None) -> Codes:
        """Codes of x; codes that were not fitted are fitted to the rows that they are for. The seed is ignored."""
        rows = matrix_of(x)
        mask = _mask(important, len(rows), x.device)
        if x.numel() == 0:
            return nothing(x, 3 + sum(self._tables()))
        try:
            mild, aggressive = self.mild.encode(rows[mask]), self.aggressive.encode(rows[~mask])
        except NotFinite:
            refuse_bad_row(x, first_bad_row(rows))
            raise
        tensors = (
            mild.tensors[0],
            aggressive.tensors[0],
            *level_bits(mask),
            *mild.tensors[1:],
            *aggressive.tensors[1:],
        )
        return Codes(tensors, x.shape, x.dtype)

    def decode(self, codes: Codes) -> Tensor:
        if codes.shape.numel() == 0:
            return codes.tensors[0].new_empty(codes.shape, dtype=codes.dtype)
        ids = torch.arange(rows_of(codes.shape), device=codes.tensors[0].device)
        return as_dtype(self.decode_rows(codes, ids).view(codes.shape), codes.dtype)

    def decode_rows(
        self, codes: Codes, ids: Tensor, dtype: torch.dtype = torch.float32, out: Tensor | None = None
    ) -> Tensor:
        """Rows `ids` of a matrix from both levels, as float32 or bfloat16; into `out` if given."""

        def gather(to: Tensor) -> None:
            found = rank_rows(codes.tensors[2], codes.tensors[3], ids, rows_of(codes.shape))
            for codec, level, rows in zip((self.mild, self.aggressive), self.levels(codes), found, strict=True):
                if level.shape.numel():
                    codec.decode_rows(level, rows, out=to)

        return rows_into(codes, ids, dtype, out, gather)

    def levels(self, codes: Codes) -> tuple[Codes, Codes]:
        """The mild and the aggressive codes, as matrices of their own."""
        mild, aggressive, _, _, *tables = codes.tensors
        first, columns = self._tables()[0], columns_of(codes.shape)
        return (
            Codes((mild, *tables[:first]), torch.Size((mild.size(0), columns)), torch.float32),
            Codes((aggressive, *tables[first:]), torch.Size((aggressive.size(0), columns)), torch.float32),
        )

    def joined(self, chunks: Sequence[Codes]) -> Codes:
        """The codes of consecutive chunks of a matrix, with the tables of this codec where they have any rows."""
        masks = [_unpacked(codes.tensors[2], rows_of(codes.shape)) for codes in chunks]
        packed = []
        for which, codec in enumerate((self.mild, self.aggressive)):
            parts = [codes.tensors[which] for codes in chunks if codes.tensors[which].numel()]
            none = torch.empty(0, dtype=torch.uint8)
            packed.append((torch.cat(parts), codec.tables()) if parts else (none, (none,) * TABLES[type(codec)]))
        (mild, mild_tables), (aggressive, aggressive_tables) = packed
        shape = torch.Size((sum(len(mask) for mask in masks), columns_of(chunks[0].shape)))
        tensors = (mild, aggressive, *level_bits(torch.cat(masks)), *mild_tables, *aggressive_tables)
        return Codes(tensors, shape, chunks[0].dtype)

    def nbytes(self, shape: torch.Size | tuple[int, ...], num_important: int | None = None) -> int:
        """Exact, for so many important rows; None: all of them."""
        rows, columns = rows_of(shape), columns_of(shape)
        if torch.Size(shape).numel() == 0:
            return 0
        first = rows if num_important is None else num_important
        if not 0 <= first <= rows:
            raise ValueError(f"`num_important` must be from 0 to {rows}, the number of rows (got {first})")
        levels = self.mild.nbytes((first, columns)) + self.aggressive.nbytes((rows - first, columns))
        return levels + -(-rows // 8) + 4 * -(-rows // BLOCK)

    def error_bound(self, codes: Codes) -> Tensor:
        """Of each row by its code."""
        if codes.shape.numel() == 0:
            return torch.full((), torch.inf, device=codes.tensors[0].device).expand(codes.shape)
        mask = _unpacked(codes.tensors[2], rows_of(codes.shape))
        bound = torch.empty(len(mask), columns_of(codes.shape), device=mask.device)
        for codec, level, group in zip((self.mild, self.aggressive), self.levels(codes), (mask, ~mask), strict=True):
            bound[group] = codec.error_bound(level).expand(level.shape)
        return bound.view(codes.shape)

    def start_refining(self) -> RefiningTwo:
        return RefiningTwo(self.mild.start_refining(), self.aggressive.start_refining())

    def accumulate(self, refining: RefiningTwo, x: Tensor, codes: Codes) -> None:
        if x.numel():
            rows, mask = matrix_of(x), _unpacked(codes.tensors[2], rows_of(codes.shape))
            mild, aggressive = self.levels(codes)
            self.mild.accumulate(refining.mild, rows[mask], mild)
            self.aggressive.accumulate(refining.aggressive, rows[~mask], aggressive)

    def refined(self, refining: RefiningTwo) -> TwoLevel:
        mild, aggressive = self.mild.refined(refining.mild), self.aggressive.refined(refining.aggressive)
        return dataclasses.replace(self, mild=mild, aggressive=aggressive)

    def tables(self) -> tuple[Tensor, ...]:
        """Those of both codes; in `Codes.tensors` after the two matrices, the bits and the counts."""
        return (*self.mild.tables(), *self.aggressive.tables())

    def _tables(self) -> tuple[int, int]:
        return TABLES[type(self.mild)], TABLES[type(self.aggressive)]


def _mask(important: Tensor | None, rows: int, device: torch.device) -> Tensor:
    if important is None:
        return torch.ones(rows, dtype=torch.bool, device=device)
    if important.dtype != torch.bool or important.shape != (rows,):
        raise ValueError(
            f"`important` must hold a truth value for each of {rows} rows "
            f"(got {important.dtype} of shape {tuple(important.shape)}); set those of ids in torch.zeros"
        )
    return important


def _unpacked(level: Tensor, rows: int) -> Tensor:
    """A truth value per row, of its bits."""
    bits = (level.unsqueeze(1) >> torch.arange(8, device=level.device)) & 1
    return bits.view(-1)[:rows].bool()
