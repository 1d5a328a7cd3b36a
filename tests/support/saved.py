"""What the tests of activations saved in few bits share."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import pytest
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


def assert_one_derivative(loss: Tensor, leaves: Sequence[Tensor]) -> None:
    """Backward can be run again with the same result; differentiating it is an error that names the way out."""
    first, again = (torch.autograd.grad(loss, leaves, retain_graph=True) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    grads = torch.autograd.grad(loss, leaves, create_graph=True)
    assert all(torch.equal(a, b) for a, b in zip(first, grads, strict=True))
    with pytest.raises(RuntimeError, match=r"allow one derivative.*activations=gs.Keep\(\)"):
        grads[0].square().sum().backward()
