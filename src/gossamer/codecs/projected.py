"""Rows projected to fewer columns, then another codec (EXACT).

    R = ceil(D / ratio)      S: D x R, entries +-1/sqrt(R)      P = x S      x^ = P^ S^T      P^: P through `then`

E[S S^T] = I, so E[x^] = x over seeds if `then` is unbiased. A row of D columns gets the noise energy

    (D - 1)/R ||x||^2 + (D / R) times that of `then`        of one element Var = (||x||^2 - x_i^2) / R + ...

S is shared by all rows: a weight gradient dout^T x^ has the relative noise energy (D - 1)/R however many rows it sums
over, which averages over steps, never over nodes. Its signs are one hash bit each of (seed, entry): S is not
stored, but recomputed from the seed, which is stored with the codes (8 bytes). Products need no rows of D columns,

    dout^T x^ = (dout^T P^) S^T

Without a seed S is that of seed 0 and `then` rounds to nearest. Never project the input of elementwise functions
(norms, activations). Bytes: those of `then` for R columns, and 8.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import final

import torch
from torch import Tensor

from ..ops.random import key_of, random_bits
from .blockwise import Blockwise
from .codec import Codec, Codes, as_dtype, as_float32, refuse_too_large_sums

LARGEST_MATRIX = 2**28
"""Entries of S, 1 GB: a long vector is no row."""


@final
@dataclass(frozen=True)
class Projected(Codec):
    ratio: float = 8
    then: Codec = field(default_factory=Blockwise)

    def __post_init__(self) -> None:
        number = isinstance(self.ratio, (int, float)) and not isinstance(self.ratio, bool)
        if not number or not 1 < self.ratio < math.inf:
            raise ValueError(
                f"`ratio` must be a number greater than 1, columns before to columns after (got {self.ratio!r}); "
                f"to keep all columns use {self.then!r} alone"
            )
        if not isinstance(self.then, Codec):
            raise ValueError(f"`then` must be a codec such as Blockwise() (got {self.then!r})")

    def encode(self, x: Tensor, seed: int | None = None) -> Codes:
        rows, key = as_float32(x), 0 if seed is None else seed
        projected = self.project(rows, key)
        if projected.numel():
            low, high = projected.aminmax()  # x^ sums R numbers of P^ / sqrt(R), which may exceed those of P a little
            refuse_too_large_sums(x, torch.maximum(-low, high) * (2 * math.sqrt(projected.size(-1))))
        codes = self.then.encode(projected, None if seed is None else _rounding_seed(seed))
        kept = torch.full((min(x.numel(), 1),), key, dtype=torch.int64, device=x.device)
        return Codes((*codes.tensors, kept), x.shape, x.dtype)

    def decode(self, codes: Codes) -> Tensor:
        if codes.shape.numel() == 0:
            return codes.tensors[0].new_empty(codes.shape, dtype=codes.dtype)
        projected = self.decode_projected(codes)
        rows = projected.view(-1, projected.size(-1)) @ self._matrix_of(codes).t()
        return as_dtype(rows.view(codes.shape), codes.dtype)

    def matrix(self, columns: int, seed: int, device: torch.device | str = "cpu") -> Tensor:
        """S, [columns, R]: the same for the same seed, wherever and whenever."""
        width = self._width(columns)
        if columns * width > LARGEST_MATRIX:
            raise ValueError(
                f"`x` must have rows short enough for a projection (got {columns} columns, for which S alone would "
                f"take {columns * width * 4 / 2**30:.1f} GB); give it as a matrix of rows, or use {self.then!r} alone"
            )
        negative = random_bits(seed, columns * width, device=device) < 0  # the words' highest bits
        scale = 1 / math.sqrt(max(width, 1))
        return torch.where(negative, -scale, scale).to(torch.float32).view(columns, width)

    def project(self, x: Tensor, seed: int) -> Tensor:
        """P = x S in float32, [..., R]."""
        columns = x.size(-1) if x.dim() else 1
        rows = as_float32(x).view(-1, columns) if x.numel() else x.new_empty(0, columns, dtype=torch.float32)
        return (rows @ self.matrix(columns, seed, x.device)).view(self._shape(x.shape))

    def decode_projected(self, codes: Codes) -> Tensor:
        """P^ in float32, [..., R]."""
        return self.then.decode(Codes(codes.tensors[:-1], self._shape(codes.shape), torch.float32))

    def grad_weight(self, dout: Tensor, codes: Codes) -> Tensor:
        """dout^T x^, [out, D], of dout [..., out] and the x [..., D] that the codes stand for; no x^ is made."""
        if dout.dim() == 0 or dout.dim() != len(codes.shape) or dout.shape[:-1] != codes.shape[:-1]:
            expected = ", ".join(map(str, (*codes.shape[:-1], "out")))
            raise ValueError(f"`dout` must have the shape [{expected}], as many rows as x (got {tuple(dout.shape)})")
        rows, projected = codes.shape[:-1].numel(), self.decode_projected(codes)
        by_row = dout.to(torch.float32).reshape(rows, dout.size(-1))
        product = by_row.t() @ projected.view(rows, projected.size(-1))  # [out, R]
        return (product @ self._matrix_of(codes).t()).to(dout.dtype)

    def nbytes(self, shape: torch.Size | tuple[int, ...]) -> int:
        return self.then.nbytes(self._shape(shape)) + (8 if torch.Size(shape).numel() else 0)

    def error_bound(self, codes: Codes) -> Tensor:
        """Infinite: a component of x that is orthogonal to S is lost, however large. `then` bounds |P^ - P|."""
        return torch.full((), math.inf, device=codes.tensors[0].device).expand(codes.shape)

    def _width(self, columns: int) -> int:
        return math.ceil(columns / self.ratio)

    def _shape(self, shape: torch.Size | tuple[int, ...]) -> torch.Size:
        return torch.Size((*shape[:-1], self._width(shape[-1])) if len(shape) else (1,))

    def _matrix_of(self, codes: Codes) -> Tensor:
        columns = codes.shape[-1] if len(codes.shape) else 1
        seed = int(codes.tensors[-1]) if codes.tensors[-1].numel() else 0
        return self.matrix(columns, seed, codes.tensors[-1].device)


def _rounding_seed(seed: int) -> int:
    """Another seed, made of this one: noise that shared the words of S's signs would not be independent of them."""
    low, high = key_of(seed)
    word = low | high << 32
    return word - 2**64 if word >= 2**63 else word
