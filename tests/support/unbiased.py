"""Whether a random result is right on average, judged by the variance that its draws show."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from .tensors import seeded


class Moments(NamedTuple):
    """The mean over draws, and the variance of one draw, in float64."""

    mean: Tensor
    variance: Tensor


def moments(draw: Callable[[], Sequence[Tensor]], count: int) -> list[Moments]:
    """Of each tensor that `draw` returns, over `count` draws of noise."""
    seeded()
    total: list[Tensor] = []
    squares: list[Tensor] = []
    for _ in range(count):
        found = [tensor.detach().double() for tensor in draw()]
        if not total:
            total, squares = ([torch.zeros_like(t) for t in found] for _ in range(2))
        for t, s, one in zip(total, squares, found, strict=True):
            t += one
            s += one.square()
    means = [t / count for t in total]
    return [Moments(m, (s / count - m.square()).clamp(min=0)) for m, s in zip(means, squares, strict=True)]


def assert_unbiased(draw: Callable[[], Sequence[Tensor]], truth: Sequence[Tensor], count: int = 150) -> None:
    """The mean of many draws is the truth: each element, and all together, as near as their variance says.

    A z-score per element: of 10,000 elements none is beyond 5.5 (probability 4e-8 each). Their squares sum up to the
    number of elements; errors that share a row's noise are as good as a hundred independent ones, whose mean square
    scatters by 0.14, so twice what is expected is seven standard deviations away. A bias as large as the noise of the
    mean adds as much. A tensor that shows no noise equals the truth up to float32's rounding.
    """
    noisy = False
    for (mean, variance), want in zip(moments(draw, count), truth, strict=True):
        # a number near a level may never have been rounded to its other neighbour, 2 sigma away: no variance seen
        unseen = 2 * 2 * variance.max().sqrt() / count
        rounding = 1e-6 * want.double().abs().max()
        z = (mean - want) / ((variance / count).sqrt() + unseen + rounding)
        assert float(z.abs().max()) < 5.5, f"an element is off by {float(z.abs().max()):.1f} standard deviations"
        squares = float((mean - want).square().mean() / (variance.mean() / count + rounding.square()))
        assert squares < 2, f"the mean of {count} draws is off by {squares:.2f} times its variance"
        noisy |= float(variance.sum()) > 1e-9 * float(want.double().square().sum())
    assert noisy, "without noise nothing is tested"
