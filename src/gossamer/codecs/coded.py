"""Rows of features that stay codes until a layer reads them.

A loader with `decode=False` puts them in place of `batch.x`. The first layer sums neighbours' rows straight from the
codes where it can (ops/spmm_scalar.py), and decodes them where it cannot: the result is the same. They have what layers
ask of a tensor that needs no gradient; everything else takes `decode()`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

import torch
from torch import Tensor

from .codec import Codes
from .scalar import Scalar


@final
@dataclass(frozen=True, eq=False, repr=False)
class CodedRows:
    codec: Scalar
    codes: Codes
    """Of these rows alone, [rows, bytes], and the codec's table."""
    requires_grad: ClassVar[bool] = False

    @property
    def shape(self) -> torch.Size:
        return self.codes.shape

    @property
    def dtype(self) -> torch.dtype:
        """In which rows are decoded."""
        return self.codes.dtype

    @property
    def device(self) -> torch.device:
        return self.codes.tensors[0].device

    @property
    def nbytes(self) -> int:
        """Bytes of codes and table."""
        return self.codes.nbytes

    def dim(self) -> int:
        return len(self.shape)

    def size(self, dim: int) -> int:
        return self.shape[dim]

    def decode(self) -> Tensor:
        """The rows, [rows, features]."""
        return self.codec.decode(self.codes)

    def first(self, count: int) -> CodedRows:
        """The first `count` rows: in a mini-batch those of a layer's destinations."""
        rows, *tables = self.codes.tensors
        few = rows[:count]
        return CodedRows(self.codec, Codes((few, *tables), torch.Size((len(few), self.size(1))), self.dtype))

    def __len__(self) -> int:
        return self.size(0)

    def __repr__(self) -> str:
        return f"CodedRows({self.size(0)} x {self.size(1)}, {self.codec!r})"
