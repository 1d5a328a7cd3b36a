"""What the tests of activations saved in few bits share."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import torch
from torch import Tensor

import gossamer as gs
from gossamer.activations.plan import Plan

from .tensors import tensors


def plan_with(codec: gs.Codec, slopes: int = 8, shared: bool = True) -> Plan:
    return Plan(codec, codec, codec, slopes, codec, shared)


@functools.cache
def _cotangent(shape: torch.Size, dtype: torch.dtype) -> Tensor:
    return tensors(shape, dtype=dtype, seed=9)[0].detach()


def dots(outs: Sequence[Tensor]) -> Tensor:
    """A scalar whose gradients are fixed random matrices."""
    return torch.stack([(out * _cotangent(out.shape, out.dtype)).sum() for out in outs]).sum()
