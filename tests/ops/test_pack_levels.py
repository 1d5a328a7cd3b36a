"""The few-bit codec with levels at other than equal distances: all implementations agree, rounding, bad input."""

from __future__ import annotations

import pytest
import torch
from torch.library import opcheck

from gossamer.codecs import optimal_bins
from gossamer.ops import OPS, pack, unpack
from support.compare import on_baseline, random_cotangent, same, same_bits, with_gradients
from support.tensors import rand

BITS = (1, 2, 4, 8)


def from_widths(widths):
    inner = widths.cumsum(0)[:-1] / widths.sum() * len(widths)
    return torch.cat([torch.zeros(1), inner, torch.tensor([float(len(widths))])])


def kinds_of_levels(bits):
    widths = torch.rand(2**bits - 1, generator=torch.Generator().manual_seed(bits))
    return {
        "optimal": torch.tensor(optimal_bins.levels(bits, 256)),
        "any": from_widths(widths + 0.05),
        "very unequal": from_widths(10.0 ** (-4 * widths)),
    }


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("kind", kinds_of_levels(2))
@pytest.mark.parametrize("bf16_meta", [True, False])
def test_equals_the_reference(bits, kind, bf16_meta, isa):
    levels = kinds_of_levels(bits)[kind]
    for numel, block in ((0, 5), (1, 1), (7, 7), (65, 64), (257, 100), (1000, 3), (1025, 2048), (4097, 256)):
        x = rand(numel, seed=numel)
        for seed in (None, numel):
            args = (x, bits, block, seed, bf16_meta, levels)
            packed = pack(*args)
            assert same(packed, OPS["pack"].reference(*args)), (numel, block, seed)
        args = (*packed, numel, bits, block, levels)
        assert same(unpack(*args), OPS["unpack"].reference(*args)), (numel, block)


@pytest.mark.parametrize("bits", BITS)
def test_every_last_bit_of_many_blocks(bits, isa):
    """Sums in another order, or products and sums in one rounding, would show."""
    x, levels = rand(30_001 if bits == 8 else 100_001), kinds_of_levels(bits)["any"]
    packed = pack(x, bits, 37, 1, True, levels)
    assert same(packed, OPS["pack"].reference(x, bits, 37, 1, True, levels))
    args = (*packed, x.numel(), bits, 37, levels)
    assert same(unpack(*args), OPS["unpack"].reference(*args))


@pytest.mark.parametrize("bits", BITS)
def test_same_bits_for_every_instruction_set_and_thread_count(bits, isa, threads):
    x, levels = rand(50_003), kinds_of_levels(bits)["optimal"]

    def run():
        packed = pack(x, bits, 100, 3, True, levels)
        return *packed, unpack(*packed, x.numel(), bits, 100, levels)

    assert same_bits(run(), on_baseline(run))


@pytest.mark.parametrize("bits", BITS)
def test_levels_at_equal_distances_are_as_none(bits):
    levels = torch.arange(2.0**bits)
    for x in (rand(1000), rand(1000) * 1e-20 + 1, rand(1000).relu()):
        for seed in (None, 3):
            packed = pack(x, bits, 70, seed)
            assert same(pack(x, bits, 70, seed, True, levels), packed)
            assert same(unpack(*packed, 1000, bits, 70, levels), unpack(*packed, 1000, bits, 70))


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("kind", kinds_of_levels(2))
def test_numbers_on_levels_come_back(bits, kind, isa):
    levels = kinds_of_levels(bits)[kind]
    x = levels.repeat(3)[torch.randperm(3 * len(levels), generator=torch.Generator().manual_seed(0))]
    for seed in (None, 1):
        packed = pack(x, bits, len(x), seed, False, levels)
        assert torch.equal(unpack(*packed, len(x), bits, len(x), levels), x)


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("kind", kinds_of_levels(2))
def test_one_of_the_two_levels_next_to_the_number(bits, kind, isa):
    """The nearer one without a seed."""
    x, levels = rand(3000), kinds_of_levels(bits)[kind]
    for seed, share in ((None, 0.5), (1, 1.0)):
        codes, zero, spread = pack(x, bits, 300, seed, True, levels)
        decoded = unpack(codes, zero, spread, 3000, bits, 300, levels).double().view(10, 300)
        step = spread.double().unsqueeze(1) / (2**bits - 1)
        h = (x.view(10, 300).double() - zero.double().unsqueeze(1)) / step
        above = torch.searchsorted(levels.double(), h).clamp(1, 2**bits - 1)
        width = (levels[above] - levels[above - 1]).double()
        rounding = 1e-4 * step  # of h in float32: 255 steps, a few operations
        assert ((decoded - x.view(10, 300)).abs() <= share * width * step + rounding).all()


def test_blocks_that_are_constant_or_not_finite(isa):
    levels = kinds_of_levels(4)["optimal"]
    x = torch.cat([torch.full((50,), 0.5), torch.zeros(50), rand(50), rand(50)])
    x[120], x[199] = torch.nan, -torch.inf
    for seed in (None, 1):
        packed = pack(x, 4, 50, seed, True, levels)
        assert same(packed, OPS["pack"].reference(x, 4, 50, seed, True, levels))
        assert not packed[0].any()
        out = unpack(*packed, 200, 4, 50, levels)
        assert torch.equal(out[:100], x[:100]) and out[100:].isnan().all()


@pytest.mark.parametrize("bits", BITS)
def test_gradients_of_decoding_equal_those_of_the_reference(bits, isa):
    levels = kinds_of_levels(bits)["any"]
    for numel, block in ((1, 1), (10, 3), (300, 64)):
        codes, *meta = pack(rand(numel), bits, block, None, False, levels)
        layout = numel, bits, block, levels

        def run(op, codes=codes, meta=meta, layout=layout):
            return with_gradients(lambda zero, spread: op(codes, zero, spread, *layout), meta, random_cotangent)

        got, want = run(unpack), run(OPS["unpack"].reference)
        torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)  # sums of 64 terms of size 1


def test_opcheck():
    x, levels = rand(5, 7), kinds_of_levels(2)["any"]
    opcheck(OPS["pack"].overload, (x, 2, 8, 1, False, levels))
    codes, zero, spread = pack(x, 2, 8, None, False, levels)
    opcheck(OPS["unpack"].overload, (codes, zero.requires_grad_(), spread.requires_grad_(), 35, 2, 8, levels))


@pytest.mark.parametrize(
    "error, message, levels",
    [
        (TypeError, "`levels` must be float32.*float64", torch.arange(4.0, dtype=torch.float64)),
        (ValueError, r"`levels` must have the shape \[4\], one number per code of 2 bits.*\(3,\)", torch.arange(3.0)),
        (ValueError, "`levels` must have the shape", torch.arange(4.0).view(2, 2)),
        (ValueError, r"`levels` must ascend strictly from 0 to 3 \(got 1 \.\. 3\)", torch.tensor([1.0, 1.5, 2, 3])),
        (ValueError, r"`levels` must ascend.*got 0 \.\. 4\); gossamer", torch.tensor([0.0, 1, 2, 4])),
        (ValueError, "`levels` must ascend.*not ascending", torch.tensor([0.0, 1, 1, 3])),
        (ValueError, "`levels` must ascend.*not ascending", torch.tensor([0.0, 2, 1, 3])),
        (ValueError, "`levels` must ascend.*not ascending", torch.tensor([0.0, torch.nan, 1, 3])),
    ],
)
def test_bad_levels(error, message, levels):
    with pytest.raises(error, match=message):
        pack(rand(9), 2, 4, levels=levels)
    packed = pack(rand(9), 2, 4)
    with pytest.raises(error, match=message):
        unpack(*packed, 9, 2, 4, levels)


def test_levels_on_another_device():
    with pytest.raises(ValueError, match=r"`levels` must be on the same device as the tensor, cpu \(got meta\)"):
        OPS["pack"].check(rand(9), 2, 4, None, True, torch.empty(4, device="meta"))
