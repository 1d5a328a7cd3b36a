"""What stochastic rounding adds: nothing on average, and the variance that theory gives."""

from __future__ import annotations

import pytest
import torch

from gossamer import Blockwise
from gossamer.codecs import optimal_bins
from gossamer.codecs.blockwise import needs_float32_meta
from support.rounding import assert_stochastic_rounding

DRAWS, BLOCK = 10_000, 64


def draws_of(codec, x):
    """x, one block, encoded side by side: noise depends on the element's place, so that these are draws; the levels."""
    codes = codec.encode(x.repeat(DRAWS), seed=codec.bits)
    zero, spread = codes.tensors[1][0].double(), codes.tensors[2][0].double()
    units = range(2**codec.bits) if codec.bins == "uniform" else optimal_bins.levels(codec.bits, codec.block)
    levels = zero + spread / (2**codec.bits - 1) * torch.tensor(units, dtype=torch.float64)
    decoded = codec.decode(codes._replace(dtype=torch.float32))  # what is decoded, before its dtype rounds it
    return decoded.view(DRAWS, -1).double(), levels


@pytest.mark.parametrize("bits", [1, 2, 4, 8])
@pytest.mark.parametrize("meta", ["bfloat16", "float32"])
@pytest.mark.parametrize("bins", ["uniform", "optimal"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_mean_and_variance_over_ten_thousand_draws(bits, meta, bins, dtype):
    x = torch.randn(BLOCK, generator=torch.Generator().manual_seed(bits)).to(dtype)
    decoded, levels = draws_of(Blockwise(bits, BLOCK, meta, bins), x)
    x = x.double()
    above = torch.searchsorted(levels, x).clamp(1, 2**bits - 1)
    assert_stochastic_rounding(decoded, x, levels[above - 1], levels[above])
    most = x.argmax()
    width = levels[-1] - levels[-2]
    share = (x[most] - levels[-2]) / width  # 1 but for the range's outward rounding
    assert share > (0.999999 if meta == "float32" else 0)
    deviation = width * (share * (1 - share).clamp(min=0) / DRAWS).sqrt()
    assert (decoded[:, most].mean() - x[most]).abs() <= 5 * deviation + 2.0**-22 * x[most]


@pytest.mark.parametrize("bits", [1, 2, 4, 8])
@pytest.mark.parametrize("bins", ["uniform", "optimal"])
def test_constant_blocks(bits, bins):
    """A constant that bfloat16 lacks lies between two levels, and stays right on average; others come back exactly."""
    for constant in (0.3, -1e-3, 12345.678):
        x = torch.full((BLOCK,), constant)
        decoded, levels = draws_of(Blockwise(bits, BLOCK, "bfloat16", bins), x)
        above = int(torch.searchsorted(levels, x[0].double()).clamp(1, 2**bits - 1))
        variance = (x[0].double() - levels[above - 1]) * (levels[above] - x[0].double())
        assert variance > 0 and levels[above - 1] < x[0] < levels[above]
        assert (decoded.mean() - x[0]).abs() < 5 * (variance / decoded.numel()).sqrt()  # all elements are draws of one
        rarer = decoded.numel() * variance / (levels[above] - levels[above - 1]) ** 2  # draws of the further level
        assert rarer > 500 and abs((decoded - x[0]).square().mean() / variance - 1) < 5 / rarer.sqrt()
    for constant, meta in ((0.0, "bfloat16"), (-0.375, "bfloat16"), (0.3, "float32")):
        x = torch.full((BLOCK,), constant)
        decoded, _ = draws_of(Blockwise(bits, BLOCK, meta, bins), x)
        assert torch.equal(decoded, x.double().expand_as(decoded))


@pytest.mark.parametrize(
    ("block", "range_in_sigma", "uniform", "optimal", "bits_per_value"),
    [
        (16, 3.53, 0.212, 0.206, 4.00),
        (64, 4.68, 0.403, 0.371, 2.50),
        (256, 5.67, 0.598, 0.512, 2.125),
        (1024, 6.48, 0.786, 0.622, 2.03125),
    ],
)
def test_noise_on_gaussian_blocks(block, range_in_sigma, uniform, optimal, bits_per_value):
    """The published noise of 2 bits in units of the variance; outward rounding (bfloat16) is not part of it."""
    x = torch.randn(2**20, generator=torch.Generator().manual_seed(block))
    for bins, noise in (("uniform", uniform), ("optimal", optimal)):
        codec = Blockwise(2, block, "float32", bins)
        codes = codec.encode(x, 1)
        assert abs(codes.tensors[2].mean() / range_in_sigma - 1) < 0.02
        assert abs((codec.decode(codes) - x).square().mean() / noise - 1) < 0.02
        assert Blockwise(2, block, bins=bins).nbytes(x.shape) * 8 / x.numel() == bits_per_value


def test_when_metadata_should_be_float32(sample):
    """Where offsets dwarf spreads: bfloat16's range is then wider, and the noise larger by its square."""
    x = sample(100, 256)  # one block a row, with a range of about 5.7
    assert not needs_float32_meta(x, 256)
    assert not needs_float32_meta(x + 50, 256)  # 2^-7 * 50 < 5.7 / 8
    assert needs_float32_meta(x + 200, 256)
    one, two = x.clone(), x.clone()
    one[0] += 1000
    two[:2] += 1000
    assert not needs_float32_meta(one, 256) and needs_float32_meta(two, 256)  # more than 1 % of the blocks
    assert not needs_float32_meta(torch.zeros(300), 7) and not needs_float32_meta(torch.empty(0))
    assert needs_float32_meta((x + 200).half()) and needs_float32_meta(sample(5) + 100, 2**40)

    def noise(x, meta):
        codec = Blockwise(4, 256, meta)
        return (codec.decode(codec.encode(x, 1)) - x).square().mean()

    assert noise(x + 200, "bfloat16") > 1.1 * noise(x + 200, "float32")
    assert noise(x + 1, "bfloat16") < 1.1 * noise(x + 1, "float32")
