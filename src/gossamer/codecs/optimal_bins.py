"""Levels between which stochastic rounding has the least variance (block-wise EXACT with variance-minimised bins).

Rounding between neighbouring levels l <= h <= u is unbiased for any levels, with variance (h - l)(u - h). A block of
length D, normalised to [0, B] with B = 2^bits - 1, is taken for a normal variable clipped at both ends, a share of 1/D
(one minimum, one maximum) at each:

    mu = B / 2      sigma = -mu / Phi^-1(1/D)      E = sum over bins of  int_l^u (h - l)(u - h) p(h) dh

Clipped mass adds nothing, because 0 and B are levels. With Q'' = p, integration by parts turns a bin's integral into

    (u - l)(Q(u) + Q(l)) - 2 int_l^u Q        Q = sigma (y Phi(y) + phi(y))        y = (h - mu) / sigma

twice the error of the trapezoidal rule: E is least where the polygon through Q's values at the levels is nearest to Q.
A level c between its neighbours a and d is best where Q has the slope of the chord over both of its bins,

    Q'(c) = Phi(y(c)) = (Q(d) - Q(a)) / (d - a)

Levels are mirrored about mu, so the lower half of these equations is solved, by Newton's method with a tridiagonal
Jacobian, from the levels that are best as they become many: of density proportional to p^(1/3), a normal of variance
3 sigma^2. Blocks of up to three numbers, and single bits, leave nothing to choose.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from statistics import NormalDist

import numpy as np

UNIT_NORMAL = NormalDist()
SMALLEST_BLOCK = 4
"""Shorter blocks have uniform levels: 1/D per end would be a half or nearly."""


@functools.cache
def levels(bits: int, block: int) -> tuple[float, ...]:
    """The 2^bits levels, from 0 to 2^bits - 1, of least expected variance for blocks of this length."""
    top = 2**bits - 1
    if bits == 1 or block < SMALLEST_BLOCK:
        return tuple(float(k) for k in range(top + 1))
    mu, sigma = top / 2, deviation(bits, block)
    lower = _solve((_many_levels(bits, block)[: 2 ** (bits - 1)] - mu) / sigma) * sigma + mu
    return (0.0, *lower[1:].tolist(), *(top - lower[:0:-1]).tolist(), float(top))


def deviation(bits: int, block: int) -> float:
    """sigma: such that a share 1/block of a normal variable lies below 0, and as much above B."""
    return -(2**bits - 1) / 2 / UNIT_NORMAL.inv_cdf(1 / block)


def expected_variance(levels: Sequence[float], bits: int, block: int) -> float:
    """E: the variance of rounding a number of a normalised block to these levels, over its range B = 2^bits - 1."""
    mu, sigma = (2**bits - 1) / 2, deviation(bits, block)
    y = (np.asarray(levels) - mu) / sigma
    q, area = _ramp(y), _ramp_area(y)
    return float(sigma**2 * (np.diff(y) * (q[1:] + q[:-1]) - 2 * np.diff(area)).sum())


def _many_levels(bits: int, block: int) -> np.ndarray:
    """The best levels as they become many: quantiles of a normal of variance 3 sigma^2 between 0 and B."""
    top = 2**bits - 1
    wide = NormalDist(top / 2, math.sqrt(3) * deviation(bits, block))
    low = wide.cdf(0)
    shares = (low + (1 - 2 * low) * k / top for k in range(1, top))
    return np.array([0.0, *map(wide.inv_cdf, shares), top])


def _solve(y: np.ndarray) -> np.ndarray:
    """Newton's method for the lower half of the levels in units of sigma about mu; y[0] stays, the rest move."""
    for _ in range(50):
        inner, left, right = y[1:], y[:-1], np.append(y[2:], -y[-1])
        below, above = _phi(inner) - _phi(left), _phi(right) - _phi(inner)
        residual = (right - left) * _phi(inner) - (_ramp(right) - _ramp(left))
        jacobian = np.diag((right - left) * _density(inner)) - np.diag(below[1:], -1) - np.diag(above[:-1], 1)
        jacobian[-1, -1] += above[-1]  # the right neighbour of the last one is its own mirror image
        step = np.linalg.solve(jacobian, residual)
        y = np.append(y[0], inner - step)
        if np.abs(step).max() < 1e-10:  # quadratic convergence: the next one would be lost in rounding
            break
    return y


@np.vectorize
def _phi(y: float) -> float:
    """The normal distribution function, exact to the last digits far below 0 too."""
    return math.erfc(-y / math.sqrt(2)) / 2


def _density(y: np.ndarray) -> np.ndarray:
    return np.exp(-(y**2) / 2) / math.sqrt(2 * math.pi)


def _ramp(y: np.ndarray) -> np.ndarray:
    """Q for sigma = 1: the integral of the distribution function."""
    return y * _phi(y) + _density(y)


def _ramp_area(y: np.ndarray) -> np.ndarray:
    """The integral of Q for sigma = 1."""
    return ((y**2 + 1) * _phi(y) + y * _density(y)) / 2
