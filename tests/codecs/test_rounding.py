"""How far a decoded number may lie from the encoded one, and that it is right on average."""

from __future__ import annotations

import itertools
import math
from statistics import NormalDist

import pytest
import torch

SINGLE_NUMBERS = "block=1,"

DATA = {
    "normal": lambda n: n,
    "heavy tails": lambda n: 10 * n**5,
    "relu": lambda n: n.relu(),
    "offset a thousand times the spread": lambda n: 1000 + n,
    "rows of other scales": lambda n: n * torch.logspace(-6, 6, n.size(0)).unsqueeze(1),
    "large": lambda n: n * 1e36,
    "small": lambda n: n * 1e-20,
    "constant rows": lambda n: n[:, :1].expand_as(n),
    "zeros": lambda n: n * 0,
    "one for all": lambda n: n * 0 - 0.3,
}


def slack(x: torch.Tensor, bound: torch.Tensor) -> torch.Tensor:
    """Rounding in float32: four operations on t <= 255 steps (255 * 4 * 2^-24 < 1e-4 steps), and two on x itself."""
    return 1e-4 * bound + 2.0**-22 * x.abs()


@pytest.mark.parametrize("name", DATA)
def test_errors_stay_within_the_bound(rounding_codec, name, sample):
    shapes, roundings = [(37, 19), (3, 257), (40, 1)], [(None, 0.5), (0, 1.0), (1, 1.0)]
    for shape, (seed, share) in itertools.product(shapes, roundings):
        x = DATA[name](sample(*shape)).contiguous()
        codes = rounding_codec.encode(x, seed)
        bound = rounding_codec.error_bound(codes).broadcast_to(shape)
        error = (rounding_codec.decode(codes) - x).abs()
        assert (bound >= 0).all()
        assert (error <= share * bound + slack(x, bound)).all()


def test_the_bound_is_reached(coarse_codec, sample):
    """A bound that is far too large would pass the test above."""
    x = sample(64, 64)
    nearest, random = coarse_codec.encode(x), coarse_codec.encode(x, 0)
    reached = [
        (coarse_codec.decode(c) - x).abs() / coarse_codec.error_bound(c).clamp(min=1e-30) for c in (nearest, random)
    ]
    assert reached[0].max() > 0.45
    assert reached[1].max() > 0.9


@pytest.mark.parametrize("value", [0.0, 1.0, -2.5, 0.1, -1e-8, 12345.678])
def test_a_single_number_comes_back(codec, value):
    for x in (torch.tensor([value]), torch.tensor(value), torch.tensor([[[value]]])):
        codes = codec.encode(x)
        # a single number is a constant block: exact, but for the metadata's rounding to at worst 8 bits
        torch.testing.assert_close(codec.decode(codes), x, rtol=2.0**-8, atol=0)


def test_zeros_come_back_exactly(codec):
    for seed in (None, 1, 2):
        assert torch.equal(codec.decode(codec.encode(torch.zeros(5, 70), seed)), torch.zeros(5, 70))


def test_tiny_numbers_lose_nothing_that_matters(codec):
    """Below 2^-100, ranges or their reciprocals are not normal floats; an error of that size is allowed."""
    for exponent in (-20, -30, -36, -38, -40, -44):
        x = torch.linspace(-1, 3, 40).view(2, 20) * 10.0**exponent
        for seed in (None, 0):
            codes = codec.encode(x, seed)
            error = (codec.decode(codes) - x).abs()
            bound = codec.error_bound(codes)
            assert (error <= bound + slack(x, bound) + 2.0**-100).all()


def known_rows() -> torch.Tensor:
    """Rows with all that could go wrong: constants that bfloat16 has and has not, zeros, an extreme, an offset."""
    x = torch.randn(8, 12, generator=torch.Generator().manual_seed(0))
    x[1], x[2], x[3] = 0.3, 0.5, 0.0
    x[4].relu_()
    x[5, 3] = 20
    x[6] += 100
    x[7] = torch.linspace(-1, 1, 12)
    return x


def test_stochastic_rounding_is_unbiased(rounding_codec):
    """Every element's mean over 2000 seeds is the element, for float32; other dtypes give the same codes.

    An element takes one of two values, so that its variance is known: (x - low)(high - x). The z-scores of the means
    are then standard normal.
    """
    x, draws = known_rows(), 2000
    codes = [rounding_codec.encode(x, seed) for seed in range(draws)]
    decoded = torch.stack([rounding_codec.decode(c) for c in codes]).double()
    bound = rounding_codec.error_bound(codes[0]).broadcast_to(x.shape).double()
    x = x.double()
    low, high, error = decoded.amin(0), decoded.amax(0), decoded.mean(0) - x
    assert (high - low <= bound * (1 + 1e-4) + 2.0**-22 * x.abs()).all()
    # Elements close to a level: an event of fewer than 25 expected occurrences is not normal. Poisson bounds it.
    expected = draws * (x - low) * (high - x) / (high - low).clamp(min=1e-30) ** 2
    rare = expected < 25
    assert (error[rare].abs() <= (60 / draws * bound + slack(x, bound))[rare]).all()
    z = (error / ((x - low) * (high - x) / draws).sqrt())[~rare]
    if SINGLE_NUMBERS in repr(rounding_codec):
        return  # nearly everything lies on a level
    assert z.numel() >= 30
    assert abs(z.square().mean() - 1) < 4 * math.sqrt(2 / z.numel())
    assert z.abs().max() < NormalDist().inv_cdf(1 - 1e-6 / (2 * z.numel()))
