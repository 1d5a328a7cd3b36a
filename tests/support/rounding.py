"""Whether stochastic rounding is what it promises: to a neighbouring level, unbiased, with the variance of theory."""

from __future__ import annotations

from statistics import NormalDist

from torch import Tensor

DRAWS = 4000


def assert_stochastic_rounding(decoded: Tensor, x: Tensor, low: Tensor, high: Tensor) -> None:
    """`decoded` [draws, n] are draws of x [n], each rounded to one of the levels next to x, low or high (all float64).

    The variance is (x - low)(high - x). The z-score of each element's mean has variance 1, so their mean square is
    within 4 sqrt(2 / n) of 1, and the largest stays below the bound that n normal numbers exceed once in a million
    times.
    """
    draws, step = decoded.size(0), high - low
    assert ((decoded - x).abs() < step * (1 + 1e-4)).all()  # always one of the two neighbours, up to their rounding
    variance = ((x - low) * (high - x)).clamp(min=0)
    random = draws * variance > 25 * step.square()  # enough draws of the rarer neighbour for a normal mean
    z = (decoded.mean(0) - x)[random] / (variance[random] / draws).sqrt()
    n = z.numel()
    assert n >= 48, "too few elements between levels to judge"
    assert abs(z.square().mean() - 1) < 4 * (2 / n) ** 0.5
    assert z.abs().max() < NormalDist().inv_cdf(1 - 1e-6 / (2 * n))
    ratio = (decoded[:, random].var(0) / variance[random]).mean()
    assert abs(ratio - 1) < 0.02
    almost = ~random  # on a level, or so near that hardly any draw leaves it
    assert ((decoded.mean(0) - x).abs() <= 0.02 * step)[almost].all()


def grid_levels(x: Tensor, step: Tensor, offset: Tensor) -> tuple[Tensor, Tensor]:
    """The levels next to x on the grid offset + step * integers."""
    low = offset + step * ((x - offset) / step).floor()
    return low, low + step
