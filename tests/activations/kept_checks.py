"""What the tests of compressed activations share: a codec that loses nothing, and how noise is judged."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

import gossamer as gs
from gossamer.activations import noise
from gossamer.activations.plan import Plan


@final
@dataclass(frozen=True)
class Identity(gs.Codec):
    """Keeps everything."""

    def encode(self, x, seed=None):
        assert seed is not None
        return gs.Codes((x.detach().clone(),), x.shape, x.dtype)

    def decode(self, codes):
        return codes.tensors[0]

    def nbytes(self, shape):
        return 4 * torch.Size(shape).numel()

    def error_bound(self, codes):
        return torch.zeros(())


EXACT = gs.Blockwise(bits=8, block=1, meta="float32")
"""Blocks of one element, which decode to their zero: a codec that the kernels know and that loses nothing."""


def plan_with(codec: gs.Codec, slopes: int = 8, shared: bool = True) -> Plan:
    return Plan(codec, codec, codec, slopes, codec, shared)


def seeded(seed: int = 0) -> None:
    """The generator's state of `seed`, and noise as in a new process: asked for the same twice, it would differ."""
    torch.manual_seed(seed)
    noise.stream.reset()


def tensors(*shapes, dtype=torch.float32, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(s, generator=generator, dtype=torch.float64).to(dtype).requires_grad_() for s in shapes]


@functools.cache
def _cotangent(shape: torch.Size, dtype: torch.dtype) -> Tensor:
    return tensors(shape, dtype=dtype, seed=9)[0].detach()


def dots(outs: Sequence[Tensor]) -> Tensor:
    """A scalar whose gradients are fixed random matrices."""
    return torch.stack([(out * _cotangent(out.shape, out.dtype)).sum() for out in outs]).sum()


def trials(draw: Callable[[], Sequence[Tensor]], count: int) -> list[tuple[Tensor, Tensor]]:
    """The mean of each tensor over many draws of noise, and the variance of one draw."""
    total, squares = None, None
    for k in range(count):
        torch.manual_seed(k)
        found = [tensor.detach().double() for tensor in draw()]
        total = total or [torch.zeros_like(t) for t in found]
        squares = squares or [torch.zeros_like(t) for t in found]
        for t, s, one in zip(total, squares, found, strict=True):
            t += one
            s += one.square()
    means = [t / count for t in total]
    return [(m, (s / count - m.square()).clamp(min=0)) for m, s in zip(means, squares, strict=True)]


def assert_unbiased(draw: Callable[[], Sequence[Tensor]], exact: Sequence[Tensor], count: int = 300) -> None:
    """The mean of many draws is the exact tensor, each element and all together, as near as their variance says."""
    noisy = False
    for (mean, variance), truth in zip(trials(draw, count), exact, strict=True):
        # a number near a level may never have been rounded to its other neighbour, 2 sigma away: no variance seen
        unseen = 2 * 2 * float(variance.max().sqrt()) / count
        off, error = mean - truth, (variance / count).sqrt() + unseen + 1e-6 * float(truth.abs().max())
        assert float((off / error).abs().max()) < 5.5
        # the squared distance of the mean is what the variances say, far from what a bias would add
        assert float(off.square().sum()) < 2.5 * float(error.square().sum())
        noisy |= float(variance.sum()) > 1e-9 * float(truth.square().sum())
    assert noisy  # else nothing was tested
