"""Variance-minimised levels: the published tables, and that nothing near them is better."""

from __future__ import annotations

import math
from statistics import NormalDist

import numpy as np
import pytest

from gossamer.codecs.optimal_bins import deviation, expected_variance, levels

PUBLISHED = [  # block, first inner level for 2 bits, variance with it, variance with uniform levels, gain in per cent
    (4, 1.0109, 0.0835, 0.0836, 0.1),
    (8, 1.0300, 0.1250, 0.1258, 0.6),
    (16, 1.0500, 0.1442, 0.1469, 1.8),
    (32, 1.0689, 0.1514, 0.1573, 3.8),
    (64, 1.0861, 0.1521, 0.1623, 6.3),
    (128, 1.1017, 0.1493, 0.1647, 9.3),
    (256, 1.1156, 0.1449, 0.1659, 12.7),
    (512, 1.1281, 0.1398, 0.1667, 16.2),
    (1024, 1.1393, 0.1345, 0.1675, 19.7),
    (2047, 1.1495, 0.1292, 0.1683, 23.2),
]
GRID = [(bits, block) for bits in (2, 4, 8) for block in (4, 5, 7, 16, 100, 256, 1024, 4096, 10**6, 2**40, 2**62)]


def gain(bits, block):
    """In per cent of the variance with uniform levels."""
    least, uniform = (expected_variance(ls, bits, block) for ls in (levels(bits, block), range(2**bits)))
    return 100 * (1 - least / uniform)


@pytest.mark.parametrize(("block", "alpha", "optimal", "uniform", "percent"), PUBLISHED)
def test_published_table_of_two_bits(block, alpha, optimal, uniform, percent):
    found = levels(2, block)
    assert found == (0.0, found[1], 3 - found[1], 3.0)
    assert abs(found[1] - alpha) < 1e-4
    assert round(expected_variance(found, 2, block), 4) == optimal
    assert round(expected_variance(range(4), 2, block), 4) == uniform
    assert round(gain(2, block), 1) == percent


def test_published_fit_of_two_bits():
    """The fit of block-wise EXACT's authors."""
    for d in range(4, 2048, 73):
        fit = 0.83162565 + 0.02993653 * math.log(116.05528511 * d) + 0.00001225 * d - 0.00171617 * math.sqrt(d)
        assert abs(levels(2, d)[1] - fit) < 2e-3


def test_four_bits():
    assert [round(gain(4, d), 1) for d in (16, 64, 128, 256, 1024)] == [3.5, 11.4, 16.4, 21.5, 31.4]
    lower = np.array([0, 1.757, 2.993, 3.995, 4.869, 5.665, 6.415, 7.141])
    assert np.abs(np.array(levels(4, 256)) - [*lower, *(15 - lower[::-1])]).max() < 1e-3


@pytest.mark.parametrize(("block", "percent"), [(16, 3.6), (64, 11.7), (128, 16.7), (256, 22.0), (1024, 32.3)])
def test_many_levels_approach_the_density_of_the_cube_root(block, percent):
    """1 - (int p^(1/3))^3 / (B^2 int p) over [0, B]: with 256 levels the gain is nearly that."""
    model = NormalDist(0, deviation(1, block))  # about the middle of a range of 1
    h = (np.arange(20_000) + 0.5) / 20_000 - 0.5
    density = np.array([model.pdf(v) for v in h])
    limit = 100 * (1 - np.cbrt(density).mean() ** 3 / density.mean())
    assert round(limit, 1) == percent
    assert gain(2, block) < gain(4, block) < gain(8, block) < limit < gain(8, block) + 0.1


@pytest.mark.parametrize(("bits", "block"), GRID)
def test_levels_ascend_and_are_mirrored(bits, block):
    found = np.array(levels(bits, block))
    assert len(found) == 2**bits and found[0] == 0 and found[-1] == 2**bits - 1
    assert (np.diff(found.astype(np.float32)) > 0).all()
    assert np.abs(found + found[::-1] - found[-1]).max() < 1e-12
    assert (np.diff(found)[: 2 ** (bits - 1)] > np.diff(found)[2 ** (bits - 1) - 1] - 1e-9).all()  # widest outside


@pytest.mark.parametrize(("bits", "block"), GRID)
def test_nothing_near_is_better(bits, block):
    """Every level moved alone, up or down, symmetrically or not, costs variance."""
    found = np.array(levels(bits, block))
    least, rng = expected_variance(found, bits, block), np.random.default_rng(0)
    for scale in (0.3, 0.1, 0.01):
        for _ in range(10):
            moved = found.copy()
            moved[1:-1] += scale * np.diff(found).min() * rng.uniform(-1, 1, len(found) - 2)
            assert expected_variance(moved, bits, block) > least


@pytest.mark.parametrize(("bits", "block"), [(1, 64), (2, 4), (2, 256), (4, 1024), (8, 100)])
def test_variance_is_the_integral(bits, block):
    """Against a sum over small steps; clipped numbers lie on levels and add nothing."""
    found = np.array(levels(bits, block))
    model = NormalDist(found[-1] / 2, deviation(bits, block))
    assert math.isclose(model.cdf(0), 1 / block, rel_tol=1e-9)
    h = (np.arange(100_000) + 0.5) * found[-1] / 100_000
    above = np.searchsorted(found, h)
    density = np.exp(-(((h - model.mean) / model.stdev) ** 2) / 2) / (model.stdev * math.sqrt(2 * math.pi))
    integral = ((h - found[above - 1]) * (found[above] - h) * density).mean() * found[-1]
    assert math.isclose(expected_variance(found, bits, block), integral, rel_tol=1e-5)


def test_nothing_to_choose():
    for bits, block in ((1, 256), (2, 1), (4, 2), (8, 3)):
        assert levels(bits, block) == tuple(float(k) for k in range(2**bits))
