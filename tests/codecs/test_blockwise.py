"""Block-wise codec: its metadata, its noise, and its bytes against the published tables."""

from __future__ import annotations

import math
from statistics import NormalDist

import pytest
import torch

from gossamer import Blockwise

ARXIV, HIDDEN = 169_343, 128


@pytest.mark.parametrize("bits", [1, 2, 4, 8])
@pytest.mark.parametrize("offset", [0.0, 1e3, -1e3, 1e-3])
@pytest.mark.parametrize("meta", ["bfloat16", "float32"])
def test_metadata_is_rounded_outward(bits, offset, meta, sample):
    """zero <= min and zero + range >= max, so that no number is clipped; offsets up to a thousand times the spread."""
    x = sample(3000) + offset
    codec = Blockwise(bits, block=70, meta=meta)
    _, zero, spread = codec.encode(x, 0).tensors
    assert zero.dtype == spread.dtype == getattr(torch, meta)
    low = torch.stack([b.min() for b in x.split(70)])
    high = torch.stack([b.max() for b in x.split(70)])
    zero, spread = zero.float(), spread.float()
    one_ulp = 2.0**-23 * high.abs().maximum(low.abs())
    assert (zero <= low).all()
    assert (zero + spread >= high - one_ulp).all()
    # no further than it must: a bfloat16 has 8 bits
    ulp = 2.0**-7 if meta == "bfloat16" else 2.0**-23
    assert (spread <= (high - low + ulp * low.abs()) * (1 + ulp)).all()


@pytest.mark.parametrize("bits", [1, 2, 4, 8])
def test_codes_use_the_whole_range_and_nothing_beyond(bits):
    """A code above 2^bits - 1 would run into its neighbour."""
    levels = 2**bits - 1
    x = torch.arange(levels + 1, dtype=torch.float32).repeat(5)
    codec = Blockwise(bits, block=len(x), meta="float32")
    for seed in (None, *range(20)):
        assert torch.equal(codec.decode(codec.encode(x, seed)), x)  # levels are exact, however they are rounded


@pytest.mark.parametrize("bits", [1, 2, 4, 8])
@pytest.mark.parametrize("block", [1, 3, 7, 16, 100, 256, 1024, None])
def test_levels_survive_any_length_and_block(bits, block):
    """Numbers that lie on levels come back exactly: packing and unpacking lose no bit."""
    draw = torch.Generator().manual_seed(bits)
    for numel in (1, 2, 3, 7, 8, 9, 63, 64, 65, 127, 255, 256, 257, 1000, 1023, 4096, 4097):
        x = torch.randint(0, 2**bits, (numel,), generator=draw).float()
        step = block or numel
        for start in range(0, numel, step):  # every block spans the whole range, so that its step is 1
            end = min(start + step, numel)
            x[start], x[end - 1] = 0.0, 2.0**bits - 1
        if step == 1:
            x.fill_(0.5)  # a single number is its own level
        codec = Blockwise(bits, step, "float32")
        assert torch.equal(codec.decode(codec.encode(x)), x)
        assert torch.equal(codec.decode(codec.encode(x, numel)), x)


@pytest.mark.parametrize("bits", [1, 2, 4, 8])
@pytest.mark.parametrize("meta", ["bfloat16", "float32"])
def test_mean_and_variance_over_ten_thousand_draws(bits, meta):
    """One block, encoded 10^4 times side by side: noise depends on the element's place, so that these are draws.

    The mean is x, and the variance step^2 f (1 - f) with f the fractional part.
    """
    draws, block = 10_000, 64
    x = torch.randn(block, generator=torch.Generator().manual_seed(bits))
    codec = Blockwise(bits, block, meta)
    codes = codec.encode(x.repeat(draws), seed=bits)
    decoded = codec.decode(codes).view(draws, block).double()
    zero, spread = codes.tensors[1][0].double(), codes.tensors[2][0].double()
    step = spread / (2**bits - 1)
    f = ((x.double() - zero) / step).frac()
    variance = step**2 * f * (1 - f)
    far = draws * f * (1 - f) > 25  # from a level, so that the mean is normal
    z = ((decoded.mean(0) - x) / (variance / draws).sqrt())[far]
    assert far.sum() > 0.8 * block
    assert abs(z.square().mean() - 1) < 4 * math.sqrt(2 / z.numel())
    assert z.abs().max() < NormalDist().inv_cdf(1 - 1e-6 / (2 * z.numel()))
    assert abs((decoded - x).square().mean() / variance.mean() - 1) < 0.02


@pytest.mark.parametrize(
    ("block", "range_in_sigma", "noise", "bits_per_value"),
    [(16, 3.53, 0.212, 4.00), (64, 4.68, 0.403, 2.50), (256, 5.67, 0.598, 2.125), (1024, 6.48, 0.786, 2.03125)],
)
def test_noise_on_gaussian_blocks(block, range_in_sigma, noise, bits_per_value):
    """The published noise of 2 bits in units of the variance; outward rounding (bfloat16) is not part of it."""
    x = torch.randn(2**20, generator=torch.Generator().manual_seed(block))
    codec = Blockwise(2, block, "float32")
    codes = codec.encode(x, 1)
    assert abs(codes.tensors[2].mean() / range_in_sigma - 1) < 0.02
    assert abs((codec.decode(codes) - x).square().mean() / noise - 1) < 0.02
    assert Blockwise(2, block).nbytes(x.shape) * 8 / x.numel() == bits_per_value


@pytest.mark.parametrize("bits", [1, 2, 4, 8])
@pytest.mark.parametrize("block", [1, 3, 7, 16, 100, 256, 1024])
def test_bytes_formula(bits, block):
    """floor(n/L) ceil(L b/8) + ceil((n mod L) b/8) + 4 ceil(n/L)"""
    for n in (0, 1, 2, 99, 100, 101, 255, 256, 257, 4097, ARXIV * HIDDEN):
        codes = n // block * math.ceil(block * bits / 8) + math.ceil(n % block * bits / 8)
        assert Blockwise(bits, block).nbytes((n,)) == codes + 4 * math.ceil(n / block)
        assert Blockwise(bits, block, "float32").nbytes((n,)) == codes + 8 * math.ceil(n / block)


@pytest.mark.parametrize(
    ("m", "expected"),
    [
        (1, 31_159_112),
        (2, 28_449_640),
        (4, 27_094_888),
        (8, 26_417_512),
        (16, 26_163_496),
        (32, 26_036_488),
        (64, 25_972_984),
    ],
)
def test_bytes_of_the_published_arxiv_model(m, expected):
    """GraphSAGE 128-128-128-40 in 2 bits: every layer keeps two tensors projected to 16 columns, every hidden one also
    its normalised tensor and two masks. Blocks are m rows long, at most 1024 numbers."""
    width = HIDDEN // 8
    projected = Blockwise(2, min(m * width, 1024)).nbytes((ARXIV, width))
    normalised = Blockwise(2, min(m * HIDDEN, 1024)).nbytes((ARXIV, HIDDEN))
    mask = ARXIV * HIDDEN // 8
    assert 3 * 2 * projected + 2 * (normalised + 2 * mask) == expected


SHARED_CHAINS = [  # nodes, width, hidden layers, MB in 4 bits, MB in 2 bits
    (ARXIV, 128, 2, 26.49, 16.15),
    (89_250, 256, 1, 14.0, 8.5),
    (232_965, 256, 1, 36.4, 22.2),
    (716_847, 512, 1, 224, 137),
    (2_449_029, 256, 2, 766, 467),
]


@pytest.mark.parametrize(("nodes", "width", "layers", "four", "two"), SHARED_CHAINS)
def test_bytes_of_shared_chains(nodes, width, layers, four, two):
    """One tensor and one bit per hidden layer, on arxiv, Flickr, Reddit2, Yelp and products."""
    for bits, published in ((4, four), (2, two)):
        kept = layers * (Blockwise(bits, 256).nbytes((nodes, width)) + nodes * width // 8)
        assert abs(kept / 2**20 / published - 1) < 0.005
        if nodes == ARXIV:
            assert kept == {4: 27_772_256, 2: 16_934_304}[bits]


def test_bytes_are_those_of_real_tensors():
    for bits, block, width in ((2, 256, 16), (4, 256, 32), (2, 1024, 16)):
        x = torch.empty(ARXIV, width).fill_(1.0)
        codes = Blockwise(bits, block).encode(x, 0)
        stored = sum(t.untyped_storage().nbytes() for t in codes.tensors)
        assert stored == codes.nbytes == Blockwise(bits, block).nbytes(x.shape)


def test_a_block_longer_than_the_tensor(sample):
    """Neither codes nor bounds grow with it."""
    codec, x = Blockwise(8, block=2**40), sample(100)
    codes = codec.encode(x)
    assert codes.nbytes == codec.nbytes((100,)) == 104
    assert ((codec.decode(codes) - x).abs() <= codec.error_bound(codes)).all()
