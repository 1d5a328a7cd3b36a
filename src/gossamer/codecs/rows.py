"""Codecs of feature matrices (BiFeat): codes row by row, and a few tables that all rows share.

How a matrix that is never in memory as a whole is encoded:

    codec = setting.fit(sample)                        some rows, drawn at random: `sample_ids(n, setting.sample_rows)`
    refining = codec.start_refining()
    for chunk in chunks:                               consecutive rows, [rows, columns]
        codes = codec.encode(chunk)                    codes.tensors[0]: uint8 [rows, bytes]; a row's codes depend on
        codec.accumulate(refining, chunk, codes)       that row alone. Counts and sums by code
    codec = codec.refined(refining)                    levels: means over all rows. No code changes
    whole = Codes((packed, *codec.tables()), (n, columns), dtype)    packed: all chunks' rows, one below the other
    codec.decode_rows(whole, ids)                      decoding needs the setting and the codes, nothing fitted

Sums run over rows in order, so the tables have the same bits however rows are cut into chunks, and equal those of
`setting.encode(x)` in memory, which does just this. Chunks are floating point: cast integers before. A chunk that holds
NaN or infinity raises `NotFinite`, whose `row` counts from the chunk's first. `TwoLevel` takes a truth value per row as
well and keeps two matrices: see there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, NoReturn, Protocol, TypeVar, runtime_checkable

import torch
from torch import Tensor

from .. import memory
from ..ops._checks import ids_within
from .codec import Codec, Codes, as_dtype, as_float32

Self = TypeVar("Self", bound="RowCodec")
Fitted = TypeVar("Fitted", bound=Codec)

SAMPLE_ROWS = 100_000


@runtime_checkable
class RowCodec(Protocol):
    """What a store of features asks of a codec, beside encode, decode and nbytes."""

    @property
    def sample_rows(self) -> int:
        """Rows that are enough to fit the codec to."""

    def fit(self: Self, x: Tensor) -> Self:
        """The codec with thresholds and tables, or codebooks, fitted to these rows."""

    def start_refining(self) -> Any:
        """Counts and sums by code, all zero, of a fitted codec."""

    def accumulate(self, refining: Any, x: Tensor, codes: Codes) -> None:
        """Add rows, which `encode` has made into these codes, to counts and sums."""

    def refined(self: Self, refining: Any) -> Self:
        """The codec whose levels are means of what was accumulated; codes that no row has keep theirs."""

    def tables(self) -> tuple[Tensor, ...]:
        """What follows the packed rows in `Codes.tensors`, of a fitted codec."""

    def decode_rows(
        self, codes: Codes, ids: Tensor, dtype: torch.dtype = torch.float32, out: Tensor | None = None
    ) -> Tensor:
        """Rows `ids` of a matrix, float32 or bfloat16.

        Written into `out` [ids, columns] if given, which is returned; an id of -1 then leaves its row as it is.
        """


class Refining(NamedTuple):
    """Sums [parts, codes, width] and counts [parts, codes]; `accumulate` adds to both."""

    sums: Tensor
    counts: Tensor


class NotFinite(ValueError):
    """Rows hold NaN or infinity; `row` is the first of them."""

    def __init__(self, message: str, row: int) -> None:
        super().__init__(message)
        self.row = row


def matrix_of(x: Tensor) -> Tensor:
    """x as a float32 matrix, [rows, columns]: a row is what the last dimension holds."""
    x = as_float32(x)
    columns = x.size(-1) if x.dim() else 1
    return x.view(-1, columns) if x.numel() else x.new_empty(0, max(columns, 1))


def columns_of(shape: torch.Size | tuple[int, ...]) -> int:
    return max(shape[-1], 1) if len(shape) else 1


def rows_of(shape: torch.Size | tuple[int, ...]) -> int:
    return torch.Size(shape).numel() // columns_of(shape)


def refuse_bad_row(x: Tensor, row: int) -> None:
    """Raise if `row` is one that holds NaN or infinity; -1 is none."""
    if row < 0:
        return
    nans, infinities = int(x.isnan().sum()), int(x.isinf().sum())
    raise NotFinite(
        f"`x` must be finite to be encoded (got {nans} NaN and {infinities} infinite of {x.numel()} elements); "
        f"clean it with torch.nan_to_num; the first bad row is {row}",
        row,
    )


def first_bad_row(rows: Tensor) -> int:
    bad = ~rows.isfinite().all(1)
    return int(bad.int().argmax()) if bool(bad.any()) else -1


def finite_matrix(x: Tensor) -> Tensor:
    """`matrix_of` rows to fit to: at least one number, all finite."""
    rows = matrix_of(x)
    if rows.numel() == 0:
        raise ValueError(f"`x` must have at least one row and column to fit a codec to (got {tuple(x.shape)})")
    refuse_bad_row(x, first_bad_row(rows))
    return rows


def refuse_unfitted(codec: object) -> NoReturn:
    raise ValueError(f"{codec!r} must be fitted first: call fit(rows) and use what it returns")


def refuse_columns(columns: int, expected: int) -> None:
    if columns != expected:
        raise ValueError(
            f"`x` must have {expected} columns, as the rows that the codec was fitted to (got {columns}); fit it again"
        )


def sample_ids(rows: int, count: int, seed: int = 0) -> Tensor:
    """Ids of `count` different rows, or of all if there are no more, in ascending order; the same for the same seed."""
    if rows <= count:
        return torch.arange(rows)
    rng = torch.Generator().manual_seed(seed)
    if rows <= 4 * count:
        return torch.randperm(rows, generator=rng)[:count].sort().values
    drawn = torch.randint(rows, (2 * count,), generator=rng).unique()  # at least 1.57 count of them, on average
    return drawn[torch.randperm(len(drawn), generator=rng)[:count]].sort().values


def rows_into(
    codes: Codes,
    ids: Tensor,
    dtype: torch.dtype,
    out: Tensor | None,
    gather: Callable[[Tensor], None],
) -> Tensor:
    """What `gather` writes into `out`, or into a new matrix, which is then made `dtype`."""
    if out is None:
        ids_within("ids", ids, rows_of(codes.shape), "rows")
        kind = dtype if dtype == torch.bfloat16 else torch.float32
        shape = [ids.numel(), columns_of(codes.shape)]
        out = memory.empty(shape, kind) if ids.device.type == "cpu" else ids.new_empty(shape, dtype=kind)
        if codes.shape.numel():
            gather(out)
        return out if out.dtype == dtype else as_dtype(out, dtype)
    gather(out)
    return out


def fit_to_sample(codec: Fitted, x: Tensor, rows: Tensor, ids: Tensor) -> Fitted:
    """The codec fitted to rows `ids` of x; an error names the row of x."""
    try:
        return codec.fit(rows[ids])
    except NotFinite:
        refuse_bad_row(x, first_bad_row(rows))
        raise


def nothing(x: Tensor, tables: int) -> Codes:
    """Codes of a tensor without elements: as many empty tensors as others have."""
    empty = (torch.empty(0, dtype=torch.uint8, device=x.device) for _ in range(1 + tables))
    return Codes(tuple(empty), x.shape, x.dtype)
