"""Feature codec of principal components, each then in few bits (Scalar, or Product).

    mean, s   of each column of a sample of rows the mean and the standard deviation (1 where that is 0)
    B         [k, F]: the first k = ceil(F / ratio) principal directions of (x - mean) / s; the largest entry of each is
              positive; float16, hence orthonormal up to 2^-10

    z = ((x - mean) / s) B^T        codes = then.encode(z)        x^ = mean + s (then.decode(codes) B)

    |(x - x^) / s|^2 = |what B leaves out of (x - mean) / s|^2 + |z - z^|^2

For dense features: columns that have much in common (embeddings, averaged word vectors) need few components, and of
columns that are mostly noise components drop most of it. Zeros do not stay zeros: bags of words are Scalar's. The error
says what is dropped, not whether a model misses it: the noise of `gs.datasets.load("arxiv-like")` is better dropped.

Columns are divided by s because directions follow the columns that vary most, and a unit of measurement should not
decide which ones these are. Beside 25 columns of noise, 16 columns of 3 factors that are 100 times smaller would lose
all of their variance at ratio 2; divided they lose 2 % of it. A column that has nothing in common with the others, such
as a price, is kept where they have fewer than k factors, and else may be left out as any of them.

Components differ in scale by nature, so per="auto" of a Scalar means levels for each. Products are those of
ops/row_products.py: codes and decoded rows are functions of the row alone, to the bit. Directions are computed in
float64 and on one thread, since the bits of LAPACK's depend on their number: the same sample, the same directions.

    bytes = those of `then` for k columns + 2 k F + 8 F        directions dominate on few rows

Always rounds to nearest: a seed changes nothing. How to fit, encode and refine by chunks: codecs/rows.py.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple, final

import torch
from torch import Tensor

from ..ops._checks import ids_within
from ..ops.gather_codes import check_out, check_some_ids
from ..ops.row_products import row_products
from .codec import Codec, Codes, as_dtype, refuse_too_large_sums
from .product import Product
from .rows import (
    Refining,
    columns_of,
    finite_matrix,
    first_bad_row,
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
from .scalar import Scalar
from .two_level import TABLES

MOST_COLUMNS = 2**13
"""Of which eigenvectors take minutes, and half a gigabyte for the correlations."""
BLOCK_ROWS = 4096  # of the sample, in float64 at a time


class PrincipalFit(NamedTuple):
    """mean and scale [F], directions float16 [k, F], and `then`, fitted to the components."""

    mean: Tensor
    scale: Tensor
    directions: Tensor
    then: Scalar | Product


@final
@dataclass(frozen=True)
class Principal(Codec):
    ratio: float = 2
    then: Scalar | Product = field(default_factory=lambda: Scalar(bits=4))
    fitted: PrincipalFit | None = field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        number = isinstance(self.ratio, (int, float)) and not isinstance(self.ratio, bool)
        if not number or not 1 <= self.ratio < math.inf:
            raise ValueError(
                f"`ratio` must be a number of at least 1, columns to principal components (got {self.ratio!r})"
            )
        if not isinstance(self.then, (Scalar, Product)):
            raise ValueError(f"`then` must be a Scalar or a Product codec (got {self.then!r})")

    @property
    def sample_rows(self) -> int:
        return self.then.sample_rows

    @property
    def refine(self) -> bool:
        """Whether levels become means over all rows: as `then` says."""
        return not isinstance(self.then, Scalar) or self.then.refine

    def fit(self, x: Tensor) -> Principal:
        """The codec with directions fitted to x, all of it, and `then` to the components of x."""
        rows = finite_matrix(x)
        if rows.size(1) > MOST_COLUMNS:
            raise ValueError(
                f"`x` must have at most {MOST_COLUMNS} columns to find principal components of (got {rows.size(1)}); "
                f"use {self.then!r} alone"
            )
        with _one_thread():
            found = PrincipalFit(*_directions(rows, self._width(rows.size(1))), self._then())
        then = found.then.fit(_components(found, x, rows))
        return dataclasses.replace(self, fitted=found._replace(then=then))

    def encode(self, x: Tensor, seed: int | None = None) -> Codes:
        """Codes of x; a codec that was not fitted is fitted to a sample of x first. The seed is ignored."""
        rows = matrix_of(x)
        if x.numel() == 0:
            return nothing(x, TABLES[type(self.then)] + 3)
        if self.fitted is None:
            return self._fit_and_encode(x, rows)
        refuse_columns(rows.size(1), len(self.fitted.mean))
        codes = self.fitted.then.encode(_components(self.fitted, x, rows))
        return Codes((codes.tensors[0], *self.tables()), x.shape, x.dtype)

    def decode(self, codes: Codes) -> Tensor:
        if codes.shape.numel() == 0:
            return codes.tensors[0].new_empty(codes.shape, dtype=codes.dtype)
        ids = torch.arange(rows_of(codes.shape), device=codes.tensors[0].device)
        return as_dtype(self._decoded(codes, ids).view(codes.shape), codes.dtype)

    def decode_rows(
        self, codes: Codes, ids: Tensor, dtype: torch.dtype = torch.float32, out: Tensor | None = None
    ) -> Tensor:
        """Rows `ids` of a matrix, without decoding the others, as float32 or bfloat16; into `out` if given."""
        if out is None and dtype == torch.float32 and codes.shape.numel():
            ids_within("ids", ids, rows_of(codes.shape), "rows")
            return self._decoded(codes, ids)  # which is what would be copied
        return rows_into(codes, ids, dtype, out, lambda to: self._decode_into(to, codes, ids))

    def nbytes(self, shape: torch.Size | tuple[int, ...]) -> int:
        if torch.Size(shape).numel() == 0:
            return 0
        columns = columns_of(shape)
        width = self._width(columns)
        then = self._then() if self.fitted is None else self.fitted.then
        return then.nbytes((rows_of(shape), width)) + 2 * width * columns + 8 * columns

    def error_bound(self, codes: Codes) -> Tensor:
        """Infinite: what the directions leave out is lost, however large."""
        return torch.full((), torch.inf, device=codes.tensors[0].device).expand(codes.shape)

    def start_refining(self) -> Refining:
        if self.fitted is None:
            refuse_unfitted(self)
        return self.fitted.then.start_refining()

    def accumulate(self, refining: Refining, x: Tensor, codes: Codes) -> None:
        if self.fitted is None:
            refuse_unfitted(self)
        if x.numel():
            z = _components(self.fitted, x, matrix_of(x))
            self.fitted.then.accumulate(refining, z, Codes(codes.tensors[:1], z.shape, z.dtype))

    def refined(self, refining: Refining) -> Principal:
        """The codec whose `then` is refined; directions stay."""
        if self.fitted is None:
            refuse_unfitted(self)
        return dataclasses.replace(self, fitted=self.fitted._replace(then=self.fitted.then.refined(refining)))

    def tables(self) -> tuple[Tensor, ...]:
        """Those of `then`, mean, scale, directions."""
        if self.fitted is None:
            refuse_unfitted(self)
        return (*self.fitted.then.tables(), self.fitted.mean, self.fitted.scale, self.fitted.directions)

    def _width(self, columns: int) -> int:
        return math.ceil(columns / self.ratio)

    def _then(self) -> Scalar | Product:
        """`then` for components, not fitted."""
        if isinstance(self.then, Scalar):
            per = "column" if self.then.per == "auto" else self.then.per
            return dataclasses.replace(self.then, per=per, fitted=None)
        return dataclasses.replace(self.then, fitted=None)

    def _decoded(self, codes: Codes, ids: Tensor) -> Tensor:
        """mean + s (z^ B) of these rows."""
        packed, *tables, mean, scale, directions = codes.tensors
        shape = torch.Size((rows_of(codes.shape), len(directions)))
        z = self.then.decode_rows(Codes((packed, *tables), shape, torch.float32), ids)
        return row_products(z, (directions * scale).t().contiguous(), mean)

    def _decode_into(self, out: Tensor, codes: Codes, ids: Tensor) -> None:
        check_some_ids(ids, rows_of(codes.shape))
        check_out(out, ids, columns_of(codes.shape))
        wanted = (ids >= 0).nonzero().view(-1)
        if len(wanted) == len(ids) > 0:
            out.copy_(self._decoded(codes, ids))
        elif len(wanted):
            out.index_copy_(0, wanted, self._decoded(codes, ids[wanted]).to(out.dtype))

    def _fit_and_encode(self, x: Tensor, rows: Tensor) -> Codes:
        codec = fit_to_sample(self, x, rows, sample_ids(len(rows), self.sample_rows))
        codes = codec.encode(x)
        if not self.refine:
            return codes
        refining = codec.start_refining()
        codec.accumulate(refining, x, codes)
        return codes._replace(tensors=(codes.tensors[0], *codec.refined(refining).tables()))


def _components(found: PrincipalFit, x: Tensor, rows: Tensor) -> Tensor:
    """z of the rows of x, [rows, k]."""
    z = row_products((rows - found.mean) / found.scale, found.directions.float(), None)
    low, high = z.aminmax()
    if not bool((high - low).isfinite()):
        refuse_bad_row(x, first_bad_row(rows))
        refuse_too_large_sums(x, high - low)
    return z


def _directions(rows: Tensor, count: int) -> tuple[Tensor, Tensor, Tensor]:
    """mean [F] and scale [F] in float32, the first `count` directions [count, F] in float16."""
    mean = rows.mean(0, dtype=torch.float64).float()
    covariance = torch.zeros(len(mean), len(mean), dtype=torch.float64, device=rows.device)
    for block in rows.split(BLOCK_ROWS):
        centred = block.double() - mean.double()
        covariance.addmm_(centred.t(), centred)
    scale = (covariance.diagonal() / len(rows)).sqrt().float()
    scale = scale.where(scale > 0, 1)
    correlation = covariance / scale.double() / scale.double().unsqueeze(1)
    directions = torch.linalg.eigh(correlation).eigenvectors.t().flip(0)[:count]
    largest = directions.gather(1, directions.abs().argmax(1, keepdim=True))
    return mean, scale, (directions * largest.sign()).half().contiguous()


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
