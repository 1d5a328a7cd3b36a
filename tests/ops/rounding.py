"""Whether stochastic rounding is what it promises: unbiased, with the variance step^2 f (1 - f)."""

from __future__ import annotations

from statistics import NormalDist

from torch import Tensor

DRAWS = 4000


def assert_stochastic_rounding(decoded: Tensor, x: Tensor, step: Tensor, offset: Tensor) -> None:
    """`decoded` [draws, n] are draws of x [n], rounded to the grid offset + step * integers (all float64).

    f is the fraction of a step by which x exceeds the level below it. The z-score of each element's mean has variance
    1, so their mean square is within 4 sqrt(2 / n) of 1, and the largest stays below the bound that n normal numbers
    exceed once in a million times.
    """
    draws = decoded.size(0)
    assert ((decoded - x).abs() < step * (1 + 1e-4)).all()  # always one of the two neighbours, up to their rounding
    t = (x - offset) / step
    f = t - t.floor()
    random = f * (1 - f) > 0.01  # enough draws of the rarer neighbour for a normal mean
    variance = (step.square() * f * (1 - f))[random]
    z = (decoded.mean(0) - x)[random] / (variance / draws).sqrt()
    n = z.numel()
    assert n >= 50, "too few elements between levels to judge"
    assert abs(z.square().mean() - 1) < 4 * (2 / n) ** 0.5
    assert z.abs().max() < NormalDist().inv_cdf(1 - 1e-6 / (2 * n))
    ratio = (decoded[:, random].var(0) / variance).mean()
    assert abs(ratio - 1) < 0.02
    almost = ~random  # on a level, or so near that hardly any draw leaves it
    assert ((decoded.mean(0) - x).abs() <= 0.02 * step)[almost].all()
