"""Symmetric int8 codec, one scale per row: the format that int8 products take as it is.

    a = max|x| over the row      scale = a / 127      q = round(x * 127 / a)      x^ = scale q

Zero is exact; |x^ - x| < scale, and half of that to nearest. A row is what the last dimension holds. Keeps one byte per
value and four per row. Rows below 2^-100 become zeros.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from ..ops.gather_rows import gather_rows_int8
from ..ops.quantize_rows import CODE_MAX, dequantize_rows, quantize_rows
from .codec import Codec, Codes, as_dtype, as_float32, refuse_non_finite, refuse_too_wide


@final
@dataclass(frozen=True)
class RowInt8(Codec):
    def encode(self, x: Tensor, seed: int | None = None) -> Codes:
        codes, scale = quantize_rows(_rows(as_float32(x)), seed)
        refuse_non_finite(x, scale)
        refuse_too_wide(-CODE_MAX * scale, CODE_MAX * scale)
        return Codes((codes, scale), x.shape, x.dtype)

    def decode(self, codes: Codes) -> Tensor:
        return as_dtype(dequantize_rows(*codes.tensors).view(codes.shape), codes.dtype)

    def decode_rows(self, codes: Codes, ids: Tensor) -> Tensor:
        """Rows `ids` of a matrix, without decoding the others."""
        return as_dtype(gather_rows_int8(*codes.tensors, ids), codes.dtype)

    def nbytes(self, shape: torch.Size | tuple[int, ...]) -> int:
        numel = torch.Size(shape).numel()
        columns = max(shape[-1], 1) if len(shape) else 1
        return numel + 4 * (numel // columns)

    def error_bound(self, codes: Codes) -> Tensor:
        scale = codes.tensors[1]
        return scale.view(*codes.shape[:-1], 1) if codes.shape.numel() and len(codes.shape) else scale.view(codes.shape)


def _rows(x: Tensor) -> Tensor:
    columns = x.size(-1) if x.dim() else 1
    return x.view(-1, columns) if x.numel() else x.new_empty(0, max(columns, 1))
