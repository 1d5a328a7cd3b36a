"""Feature codec of 1, 2, 4 or 8 bits per value that decodes through a table (BiFeat's scalar quantisation).

    code = #{ j : x > threshold_j }        x^ = table[code]        2^b - 1 thresholds, 2^b levels

once for all columns (per="tensor") or for each column. Thresholds lie half-way between levels of

    uniform   lo + k (hi - lo) / (2^b - 1)      lo, hi: the 0.5 and 99.5 percentiles; beyond them x is clipped
    log       +-2^(e_lo + (k + 1/2) w)          D = 2^(b-1) magnitudes per sign, w = (e_hi - e_lo) / D
              e_lo = log2 f_lo, e_hi = log2 f_hi + 1e-5; f_hi = q_99.5%(|x|), f_lo = max(q_0.5%(|x|), 1e-5 min(1, f_hi))
              the ratio x^/x lies in 2^(+-w/2) within the range; thresholds at 2^(e_lo + k w)
    optimal   from uniform, 20 times: every level becomes the mean of the sample's x that have its code (Lloyd, Max).
              The squared error of the sample never rises; of normal x it falls from 0.198 to 0.1175 at 2 bits
    1 bit     the means of x <= 0 and of x > 0, the least-squares choice for this threshold; {0, c} is exact. With
              "optimal" the threshold moves, too: for x that are all positive

Then (refine=True) every level becomes the mean of the x that have its code: the squared error never rises, and the mean
is preserved. zeros="keep" decodes zeros to exactly 0: one level is zero and is not refined; of log it is a code of its
own, so that D = 2^(b-1) - 1; of one bit the other level is the mean of the sign that has more energy. Percentiles are
then taken over what is not zero. "auto" keeps zeros if more than 20 % of the entries are zero, and takes tables per
column if the 95th over the 5th percentile of the columns' root mean squares exceeds 4.

Always rounds to nearest, since features are encoded once: a seed changes nothing. Keeps b bits per value, rows in whole
bytes, and a float32 table of 2^b levels, or of 2^b per column. How to fit, encode and refine by chunks: codecs/rows.py.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, final

import numpy as np
import torch
from torch import Tensor

from ..ops._few_bits import BITS
from ..ops.code_sums import code_sums
from ..ops.encode_codes import encode_scalar
from ..ops.gather_codes import gather_scalar, gather_scalar_into
from ..ops.pack_ids import row_bytes
from .codec import Codec, Codes, as_dtype
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

ENDS = (0.005, 0.995)
MANY_ZEROS = 0.2
SPREAD_OF_COLUMNS = 4.0
LARGEST = torch.finfo(torch.float32).max
LLOYD_STEPS = 20
SMALLEST = 2.0**-126  # the smallest normal float32: between it and zero nothing is told apart


class ScalarFit(NamedTuple):
    """Thresholds [2^b - 1, columns or 1], levels [2^b, columns or 1], and whether levels of zero are to stay."""

    thresholds: Tensor
    table: Tensor
    keeps_zeros: bool
    columns: int


@final
@dataclass(frozen=True)
class Scalar(Codec):
    bits: int = 4
    scale: Literal["uniform", "log", "optimal"] = "uniform"
    per: Literal["auto", "tensor", "column"] = "auto"
    zeros: Literal["auto", "keep", "fold"] = "auto"
    refine: bool = True
    fitted: ScalarFit | None = field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.bits not in BITS:
            raise ValueError(f"`bits` must be 1, 2, 4 or 8 so that codes fill whole bytes (got {self.bits})")
        for name, allowed in (
            ("scale", ("uniform", "log", "optimal")),
            ("per", ("auto", "tensor", "column")),
            ("zeros", ("auto", "keep", "fold")),
            ("refine", (True, False)),
        ):
            if getattr(self, name) not in allowed:
                choices = ", ".join(map(repr, allowed[:-1])) + f" or {allowed[-1]!r}"
                raise ValueError(f"`{name}` must be {choices} (got {getattr(self, name)!r})")

    @property
    def sample_rows(self) -> int:
        return SAMPLE_ROWS

    def fit(self, x: Tensor) -> Scalar:
        """The codec with thresholds and levels fitted to x, all of it."""
        rows = finite_matrix(x)
        keep = self.zeros == "keep" or (self.zeros == "auto" and _share_of_zeros(rows) > MANY_ZEROS)
        by_column = self.per == "column" or (self.per == "auto" and _columns_differ(rows, keep))
        if self.bits == 1 and self.scale != "optimal":
            thresholds, table = _one_bit(rows, keep, by_column)
        elif self.scale == "log":
            thresholds, table = _log(_quantiles(rows.abs(), ENDS, keep, by_column), self.bits, keep)
        else:
            thresholds, table = _uniform(_quantiles(rows, ENDS, keep, by_column), self.bits, keep)
        found = ScalarFit(_held(thresholds, x), _held(table, x), keep, rows.size(1))
        codec = dataclasses.replace(self, fitted=found)
        for _ in range(LLOYD_STEPS if self.scale == "optimal" else 0):
            means = codec._with_means(rows).tables()[0]
            half_way = means[1:] / 2 + means[:-1] / 2  # whose sum cannot overflow
            codec = dataclasses.replace(self, fitted=found._replace(thresholds=half_way, table=means))
        return codec if not self.refine and self.bits > 1 else codec._with_means(rows)

    def encode(self, x: Tensor, seed: int | None = None) -> Codes:
        """Codes of x; a codec that was not fitted is fitted to a sample of x first. The seed is ignored."""
        rows = matrix_of(x)
        if x.numel() == 0:
            return nothing(x, 1)
        if self.fitted is None:
            return self._fit_and_encode(x, rows)
        refuse_columns(rows.size(1), self.fitted.columns)
        packed, bad = encode_scalar(rows, self.fitted.thresholds, self.bits)
        refuse_bad_row(x, int(bad))
        return Codes((packed, *self.tables()), x.shape, x.dtype)

    def decode(self, codes: Codes) -> Tensor:
        if codes.shape.numel() == 0:
            return codes.tensors[0].new_empty(codes.shape, dtype=codes.dtype)
        ids = torch.arange(rows_of(codes.shape), device=codes.tensors[0].device)
        rows = gather_scalar(*codes.tensors, ids, columns_of(codes.shape), self.bits)
        return as_dtype(rows.view(codes.shape), codes.dtype)

    def decode_rows(
        self, codes: Codes, ids: Tensor, dtype: torch.dtype = torch.float32, out: Tensor | None = None
    ) -> Tensor:
        """Rows `ids` of a matrix, without decoding the others, as float32 or bfloat16; into `out` if given."""
        columns = columns_of(codes.shape)
        return rows_into(
            codes, ids, dtype, out, lambda to: gather_scalar_into(to, *codes.tensors, ids, columns, self.bits)
        )

    def nbytes(self, shape: torch.Size | tuple[int, ...]) -> int:
        """Exact, tables included; with per="auto" known once the codec is fitted."""
        if torch.Size(shape).numel() == 0:
            return 0
        columns = columns_of(shape)
        if self.fitted is not None:
            tables = self.fitted.table.size(1)
        elif self.per == "auto":
            raise ValueError(
                f"bytes of {self!r} depend on the data: fit it first, or set `per` to 'tensor' or 'column'"
            )
        else:
            tables = columns if self.per == "column" else 1
        return rows_of(shape) * row_bytes(columns, self.bits) + 4 * 2**self.bits * tables

    def error_bound(self, codes: Codes) -> Tensor:
        """Infinite for the first and the last code, which also stand for what was clipped, and if not fitted."""
        device = codes.tensors[0].device
        if self.fitted is None or codes.shape.numel() == 0:
            return torch.full((), torch.inf, device=device).expand(codes.shape)
        thresholds, table = self.fitted.thresholds.double(), self.fitted.table.double()
        end = torch.full_like(table[:1], torch.inf)
        below, above = table - torch.cat([-end, thresholds]), torch.cat([thresholds, end]) - table
        farthest = torch.maximum(below, above).float().contiguous()
        return self.decode(Codes((codes.tensors[0], farthest), codes.shape, torch.float32))

    def start_refining(self) -> Refining:
        if self.fitted is None:
            refuse_unfitted(self)
        shape, device = (self.fitted.columns, 2**self.bits), self.fitted.table.device
        sums = torch.zeros(*shape, 1, dtype=torch.float64, device=device)
        return Refining(sums, torch.zeros(shape, dtype=torch.int64, device=device))

    def accumulate(self, refining: Refining, x: Tensor, codes: Codes) -> None:
        if x.numel():
            code_sums(*refining, matrix_of(x), codes.tensors[0])

    def refined(self, refining: Refining) -> Scalar:
        """The codec whose levels are means; zeros that are kept, and codes that no row has, stay as they are."""
        if self.fitted is None:
            refuse_unfitted(self)
        table = self.fitted.table
        sums, counts = refining.sums.squeeze(-1).t(), refining.counts.t()  # [2^b, columns]
        if table.size(1) == 1:  # one table for all columns, added up in their order
            sums, counts = sums.cumsum(1)[:, -1:], counts.sum(1, keepdim=True)
        fixed = (counts == 0) | (table == 0 if self.fitted.keeps_zeros else torch.zeros_like(counts, dtype=torch.bool))
        means = torch.where(fixed, table, (sums / counts.clamp(min=1)).float()).contiguous()
        return dataclasses.replace(self, fitted=self.fitted._replace(table=means))

    def tables(self) -> tuple[Tensor, ...]:
        if self.fitted is None:
            refuse_unfitted(self)
        return (self.fitted.table,)

    def _with_means(self, rows: Tensor) -> Scalar:
        """The codec refined to these rows alone."""
        refining = self.start_refining()
        self.accumulate(refining, rows, self.encode(rows))
        return self.refined(refining)

    def _fit_and_encode(self, x: Tensor, rows: Tensor) -> Codes:
        ids = sample_ids(len(rows), self.sample_rows)
        if len(ids) == len(rows):
            return self.fit(x).encode(x)
        codec = fit_to_sample(self, x, rows, ids)
        codes = codec.encode(x)
        if not self.refine:
            return codes
        refining = codec.start_refining()
        codec.accumulate(refining, x, codes)
        return codes._replace(tensors=(codes.tensors[0], *codec.refined(refining).tables()))


# Fitting ----------------------------------------------------------------------------------------------------------


def _held(values: Tensor, x: Tensor) -> Tensor:
    return values.float().contiguous().to(x.device)


def _share_of_zeros(rows: Tensor) -> float:
    return 1 - int(rows.count_nonzero()) / rows.numel()


def _columns_differ(rows: Tensor, keep: bool) -> bool:
    """Whether columns differ in scale so much that each should have its own levels."""
    count = (rows != 0).sum(0) if keep else torch.full((rows.size(1),), len(rows), device=rows.device)
    norm = torch.linalg.vector_norm(rows, dim=0, dtype=torch.float64)
    scales = (norm / count.clamp(min=1).sqrt())[norm > 0]
    if scales.numel() < 2:
        return False
    small, large = torch.quantile(scales, scales.new_tensor([0.05, 0.95])).tolist()
    return large > SPREAD_OF_COLUMNS * small


def _quantiles(rows: Tensor, shares: Sequence[float], keep: bool, by_column: bool) -> Tensor:
    """Those numbers of the sorted column, or of all, that stand at these shares, [shares, columns or 1], float64.

    Of numbers that are not zero if `keep`; 0 where there are none.
    """
    if not by_column:
        values = rows[rows != 0] if keep else rows.flatten()
        if values.numel() == 0:
            return torch.zeros(len(shares), 1, dtype=torch.float64)
        places = [round(share * (values.numel() - 1)) for share in shares]
        found = np.partition(values.cpu().numpy(), places)[places]
        return torch.from_numpy(found).double().unsqueeze(1)
    blocks = [_column_quantiles(block, shares, keep) for block in rows.split(64, dim=1)]  # sorting takes memory
    return torch.cat(blocks, 1).cpu()


def _column_quantiles(rows: Tensor, shares: Sequence[float], keep: bool) -> Tensor:
    columns = rows.t().contiguous()
    count = torch.full((len(columns),), len(rows), device=rows.device)
    if keep:
        count = (columns != 0).sum(1)
        columns = columns.masked_fill(columns == 0, torch.inf)  # behind all others
    ordered = columns.sort(1).values
    places = torch.stack([(share * (count - 1).clamp(min=0)).round().long() for share in shares], 1)
    return ordered.gather(1, places).where(count.unsqueeze(1) > 0, 0).t().double()


def _uniform(ends: Tensor, bits: int, keep: bool) -> tuple[Tensor, Tensor]:
    low, high = ends[:1], ends[1:]  # [1, columns or 1]
    code = torch.arange(2**bits, dtype=torch.float64).unsqueeze(1)
    if keep:
        low, high = low.clamp(max=0), high.clamp(min=0)
    step = (high - low) / (2**bits - 1)
    if keep:  # moved by up to half a step, so that zero is a level
        code = code - (-low / step.where(step > 0, 1)).round()
        low = torch.zeros_like(low)
    levels = low + step * code
    return levels[1:] - step / 2, levels


def _log(ends: Tensor, bits: int, keep: bool) -> tuple[Tensor, Tensor]:
    high = ends[1:].clamp(min=2.0**-100)
    low = torch.maximum(ends[:1], 1e-5 * high.clamp(max=1)).clamp(max=high)
    count = 2 ** (bits - 1) - keep
    first = low.log2()
    width = (high.log2() + 1e-5 - first) / count
    k = torch.arange(count, dtype=torch.float64).unsqueeze(1)
    inner = 2 ** (first + width * k[1:])  # between magnitudes
    levels = (2 ** (first + width * (k + 0.5))).clamp(max=LARGEST).where(ends[1:] > 0, 0)
    zero, smallest = torch.zeros_like(high), torch.full_like(high, SMALLEST)
    if not keep:
        return torch.cat([-inner.flip(0), zero, inner]), torch.cat([-levels.flip(0), levels])
    unused = torch.full_like(high, torch.inf)  # two signs and zero are an odd number of codes
    thresholds = torch.cat([-inner.flip(0), -smallest, zero, inner, unused])
    return thresholds, torch.cat([-levels.flip(0), zero, levels, zero])


def _one_bit(rows: Tensor, keep: bool, by_column: bool) -> tuple[Tensor, Tensor]:
    """Thresholds, and levels that are still to be replaced by means: but zero, where it is kept."""
    columns = rows.size(1) if by_column else 1
    thresholds, table = torch.zeros(1, columns, dtype=torch.float64), torch.zeros(2, columns, dtype=torch.float64)
    if not keep:
        return thresholds, table
    energy = [
        torch.linalg.vector_norm(part, dim=0, dtype=torch.float64).square() for part in (rows.relu(), (-rows).relu())
    ]
    positive, negative = (e.view(1, -1) if by_column else e.sum().view(1, 1) for e in energy)
    below = (negative > positive).cpu()
    thresholds = thresholds.where(~below, -SMALLEST)
    return thresholds, torch.cat([table[:1].where(~below, -1), table[1:].where(below, 1)])
