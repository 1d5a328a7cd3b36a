"""The interface of codecs: encode a float tensor in few bits, and decode it.

A codec is a frozen dataclass: its fields are its settings, its `repr` is the experiment log. Codes are plain tensors in
a NamedTuple together with the shape and dtype they stand for, so they can be saved, moved and counted by anyone.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

from ..ops.pack import LARGEST_BF16

Self = TypeVar("Self", bound="Codec")


class Codes(NamedTuple):
    """An encoded tensor. The codec that made it defines what its tensors mean."""

    tensors: tuple[Tensor, ...]
    shape: torch.Size
    dtype: torch.dtype

    @property
    def nbytes(self) -> int:
        """Bytes that are really stored."""
        return sum(t.numel() * t.element_size() for t in self.tensors)


class Codec(ABC):
    """encode, decode, fit, nbytes."""

    @abstractmethod
    def encode(self, x: Tensor, seed: int | None = None) -> Codes:
        """Quantise x: stochastic rounding with a seed (unbiased), rounding to nearest without.

        Codecs of features (codecs/rows.py) always round to nearest, and are fitted to x first if they are not yet.

        float32, float64, float16 and bfloat16 of any shape; raises ValueError on NaN or infinity.
        """

    @abstractmethod
    def decode(self, codes: Codes) -> Tensor:
        """The tensor that the codes stand for, in its shape and dtype."""

    @abstractmethod
    def nbytes(self, shape: torch.Size | tuple[int, ...]) -> int:
        """Bytes that `encode` of such a tensor stores, exactly; ValueError if they depend on data not fitted to yet."""

    @abstractmethod
    def error_bound(self, codes: Codes) -> Tensor:
        """Largest |decoded - x| per element with stochastic rounding, broadcastable to the shape; half to nearest.

        Of codecs that never round stochastically the largest itself. Infinite where codes do not bound it (projection,
        clipped features).
        """

    def fit(self: Self, x: Tensor) -> Self:
        """The codec with parameters fitted to x; most codecs have none and return themselves."""
        return self


def as_float32(x: Tensor) -> Tensor:
    """The contiguous float32 tensor that codecs work on, detached."""
    if not isinstance(x, Tensor) or not x.is_floating_point():
        kind = x.dtype if isinstance(x, Tensor) else type(x).__name__
        raise TypeError(f"`x` must be a floating-point tensor (got {kind}); convert it with `.float()`")
    y = x.detach().to(torch.float32).contiguous()
    if x.dtype == torch.float64 and bool((y.isinf() & x.isfinite()).any()):
        raise ValueError("`x` must lie within the range of float32 (some float64 values overflow it); scale it down")
    return y


def refuse_non_finite(x: Tensor, metadata: Tensor) -> None:
    """Raise if the metadata shows that x holds NaN or infinity; only then is x itself looked at."""
    if metadata.numel() == 0 or not bool(metadata.isnan().any()):
        return
    nans, infinities = int(x.isnan().sum()), int(x.isinf().sum())
    raise ValueError(
        f"`x` must be finite to be encoded (got {nans} NaN and {infinities} infinite of {x.numel()} elements); "
        "clean it with torch.nan_to_num, or look for the step that diverged"
    )


def refuse_too_large_sums(x: Tensor, largest: Tensor) -> None:
    """Raise if the largest of the sums over x's numbers is not finite: because x is not, or because they overflow."""
    if bool(largest.isfinite()):
        return
    if not bool(x.isfinite().all()):
        refuse_non_finite(x, torch.full_like(largest, torch.nan))
    raise ValueError(f"`x` must span less than {LARGEST_BF16:.4g}, its numbers' sums included; scale it down")


def refuse_too_wide(zero: Tensor, spread: Tensor) -> None:
    """Raise if a block's range does not fit its metadata: it would decode to other numbers, or to infinity."""
    low, width = zero.float(), spread.float()
    if bool(((low <= -LARGEST_BF16) | (width >= LARGEST_BF16) | (low + width >= LARGEST_BF16)).any()):
        raise ValueError(f"`x` must span less than {LARGEST_BF16:.4g}, within as much of zero; scale it down")


def as_dtype(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Decoded x in the dtype it had. Ranges are rounded outward: half precision must not end in infinity for that."""
    if dtype in (torch.float16, torch.bfloat16):
        limit = torch.finfo(dtype).max
        x = x.clamp(-limit, limit)
    return x.to(dtype)
