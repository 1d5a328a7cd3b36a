"""Whether a random result is right on average, judged by the variance that its draws show."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from .tensors import seeded


def draws_of(draw: Callable[[], Sequence[Tensor]], count: int) -> list[Tensor]:
    """[count, ...] in float64 for each tensor that `draw` returns; noise begins as in a new process."""
    seeded()
    found = [[tensor.detach().double() for tensor in draw()] for _ in range(count)]
    return [torch.stack(each) for each in zip(*found, strict=True)]


def independent(draws: Tensor) -> float:
    """As many independent numbers of one variance would scatter, squared and summed up, as these elements do.

    (tr C)^2 / tr C^2 of their covariance C, whose eigenvalues are those of the draws' products with each other. There
    are at most as many as draws, so that this is rather too small.
    """
    off = draws - draws.mean(0)
    products = off @ off.t()  # [count, count]
    return float(products.trace().square() / products.square().sum())


def assert_unbiased(draw: Callable[[], Sequence[Tensor]], truth: Sequence[Tensor], count: int = 150) -> None:
    """The mean of many draws is the truth: each element, and all together, as near as their variance says.

    A z-score per element: of 10,000 elements none is beyond 5.5 (probability 4e-8 each). And the mean of their squares,
    over what the variance says, is 1 with a standard deviation of sqrt(2 / n) for n independent elements: six of them
    are allowed. Elements share the noise of their row, so n is measured. A bias as large as the noise of the mean adds
    as much as the noise itself. A tensor that shows no noise equals the truth up to float32's rounding.
    """
    noisy = False
    for draws, want in zip(draws_of(draw, count), truth, strict=True):
        draws, want = draws.flatten(1), want.detach().double().flatten()
        off, variance, rounding = draws.mean(0) - want, draws.var(0), 1e-6 * want.abs().max()
        # a number near a level may never have been rounded to its other neighbour, 2 sigma away: no variance seen
        unseen = 2 * 2 * variance.max().sqrt() / count
        z = float((off / ((variance / count).sqrt() + unseen + rounding)).abs().max())
        assert z < 5.5, f"an element is off by {z:.1f} standard deviations"
        if float(variance.sum()) > 1e-9 * float(want.square().sum()):
            noisy = True
            squares = float(off.square().mean() / (variance.mean() / count + rounding.square()))
            most = 1 + 6 * (2 / independent(draws)) ** 0.5
            assert squares < most, f"the mean is off by {squares:.2f} times its variance, more than {most:.2f}"
    assert noisy, "without noise nothing is tested"
