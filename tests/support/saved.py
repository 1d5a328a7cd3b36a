"""What the tests of activations saved in few bits share."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import torch
from torch import Tensor

import gossamer as gs
from gossamer.engine.saved.policy import Saving

from .tensors import tensors


def saving_by(codec: gs.Codec, slopes: int = 8) -> Saving:
    """One codec for all that is saved."""
    return Saving(codec, codec, codec, slopes, codec)


@functools.cache
def _cotangent(shape: torch.Size, dtype: torch.dtype) -> Tensor:
    return tensors(shape, dtype=dtype, seed=9)[0].detach()


def dots(outs: Sequence[Tensor]) -> Tensor:
    """A scalar whose gradients are fixed random matrices."""
    return torch.stack([(out * _cotangent(out.shape, out.dtype)).sum() for out in outs]).sum()
