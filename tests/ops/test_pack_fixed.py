"""Few-bit codes in a range known beforehand: layout, agreement of all implementations, rounding, bad input."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.library import opcheck

from gossamer.ops import OPS, pack_fixed, unpack_fixed
from support.compare import on_baseline, same_bits
from support.rounding import DRAWS, assert_stochastic_rounding, grid_levels
from support.tensors import rand

BITS = (1, 2, 4, 8)
RANGES = [(0.0, 1.0), (-0.129, 1.129), (-0.0999, 1.0999), (0.0, 0.25), (-3.0, -1.0), (1000.0, 1000.1), (-1e30, 1e30)]
NUMELS = (0, 1, 2, 3, 7, 8, 9, 15, 16, 17, 63, 64, 65, 100, 257, 1000, 4097)


def spread_over(low, high, numel, seed=0):
    """Numbers all over the range, its ends among them, and a few outside."""
    return low + (high - low) * (1.1 * torch.rand(numel, generator=torch.Generator().manual_seed(seed)) - 0.05).float()


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("low, high", RANGES)
def test_equals_the_reference(bits, low, high, isa):
    for numel in NUMELS:
        x = spread_over(low, high, numel, seed=numel)
        for seed in (None, -5):
            codes = pack_fixed(x, bits, low, high, seed)
            assert torch.equal(codes, OPS["pack_fixed"].reference(x, bits, low, high, seed)), (numel, seed)
        assert codes.numel() == -(-numel * bits // 8)
        args = (codes, numel, bits, low, high)
        assert same_bits(unpack_fixed(*args), OPS["unpack_fixed"].reference(*args)), numel


@pytest.mark.parametrize("bits", BITS)
def test_layout(bits, isa):
    """Element e occupies bits (e bits) mod 8 upward of byte e bits / 8; what is left of the last byte is 0."""
    for numel in (1, 9, 100, 257, 1025):
        want = np.random.default_rng(numel).integers(0, 2**bits, numel)
        codes = pack_fixed(torch.from_numpy(want).float(), bits, 0.0, 2.0**bits - 1)
        ones = np.unpackbits(codes.numpy(), bitorder="little")
        assert np.array_equal(ones[: numel * bits].reshape(-1, bits) @ (1 << np.arange(bits)), want)
        assert not ones[numel * bits :].any()
        assert np.array_equal(unpack_fixed(codes, numel, bits, 0.0, 2.0**bits - 1).numpy(), want)


@pytest.mark.parametrize("bits", BITS)
def test_same_bits_for_every_instruction_set_and_thread_count(bits, isa, threads):
    x = spread_over(-0.129, 1.129, 100_003)

    def run():
        codes = pack_fixed(x, bits, -0.129, 1.129, 3)
        return codes, unpack_fixed(codes, x.numel(), bits, -0.129, 1.129), pack_fixed(x, bits, 0.0, 1.0)

    assert same_bits(run(), on_baseline(run))


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("low, high", RANGES)
def test_error_is_at_most_half_a_step_or_one(bits, low, high, isa):
    x = spread_over(low, high, 2000).clamp(low, high)
    step = (high - low) / (2**bits - 1)
    rounding = 2.0**-22 * max(abs(low), abs(high))
    for seed, most in ((None, 0.5), (1, 1.0)):
        decoded = unpack_fixed(pack_fixed(x, bits, low, high, seed), 2000, bits, low, high)
        assert ((decoded.double() - x.double()).abs() <= step * (most + 1e-4) + rounding).all()


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("low, high", [(0.0, 1.0), (-0.129, 1.129)])
def test_stochastic_rounding_is_unbiased(bits, low, high):
    x = spread_over(low, high, 300).clamp(low, high)
    codes = [pack_fixed(x, bits, low, high, seed) for seed in range(DRAWS)]
    draws = torch.stack([unpack_fixed(c, 300, bits, low, high) for c in codes])
    step = torch.full((300,), (high - low) / (2**bits - 1), dtype=torch.float64)
    levels = grid_levels(x.double(), step, torch.full_like(step, low))
    assert_stochastic_rounding(draws.double(), x.double(), *levels)


@pytest.mark.parametrize("bits", BITS)
def test_numbers_outside_take_the_nearer_end_and_nan_takes_code_0(bits, isa):
    x = torch.tensor([-9.0, 2.0, torch.inf, -torch.inf, torch.nan, 1e38, -1e38]).repeat(10)
    want = torch.tensor([0.0, 1, 1, 0, 0, 1, 0]).repeat(10)
    for seed in (None, 1):
        assert torch.equal(unpack_fixed(pack_fixed(x, bits, 0.0, 1.0, seed), 70, bits, 0.0, 1.0), want)


def test_shape_and_strides_do_not_matter():
    x = rand(12, 10)
    for view in (x, x.t(), x[:, ::2], x.view(4, 3, 10)):
        want = pack_fixed(view.reshape(-1).clone(), 4, -1.0, 1.0, 1)
        assert torch.equal(pack_fixed(view, 4, -1.0, 1.0, 1), want)
        assert torch.equal(OPS["pack_fixed"](view, 4, -1.0, 1.0, 1), want)


def test_no_gradient_flows_through_codes():
    codes = pack_fixed(rand(8).requires_grad_(), 2, -1.0, 1.0)
    assert not codes.requires_grad and not unpack_fixed(codes, 8, 2, -1.0, 1.0).requires_grad


def test_opcheck():
    x = rand(5, 7)
    opcheck(OPS["pack_fixed"].overload, (x, 2, -1.0, 1.0, None))
    opcheck(OPS["pack_fixed"].overload, (x, 4, -1.0, 1.0, 3))
    opcheck(OPS["unpack_fixed"].overload, (pack_fixed(x, 4, -1.0, 1.0), 35, 4, -1.0, 1.0))


@pytest.mark.parametrize(
    "error, message, args",
    [
        (TypeError, "`x` must be float32.*float64", (rand(3).double(), 2, 0.0, 1.0)),
        (TypeError, "`x` must be float32.*bfloat16", (rand(3).bfloat16(), 2, 0.0, 1.0)),
        (ValueError, "`bits` must be 1, 2, 4 or 8.*got 3", (rand(3), 3, 0.0, 1.0)),
        (ValueError, "`low` and `high` must be finite, with `high` above `low`.*got 1.0 and", (rand(3), 2, 1.0, 1.0)),
        (ValueError, "`low` and `high`.*got 1.0 and 0.0", (rand(3), 2, 1.0, 0.0)),
        (ValueError, "`low` and `high`.*got nan and 1.0", (rand(3), 2, torch.nan, 1.0)),
        (ValueError, "`low` and `high`.*got 0.0 and inf", (rand(3), 2, 0.0, torch.inf)),
        (ValueError, "`low` and `high`.*got 0.0 and 1e-40", (rand(3), 2, 0.0, 1e-40)),
        (ValueError, "`low` and `high`.*got -3e[+]38 and 3e[+]38", (rand(3), 2, -3e38, 3e38)),
    ],
)  # fmt: skip
def test_bad_arguments(error, message, args):
    with pytest.raises(error, match=message):
        pack_fixed(*args)


CODES = torch.zeros(3, dtype=torch.uint8)


@pytest.mark.parametrize(
    "error, message, args",
    [
        (ValueError, r"`codes`.*\[3\] bytes, 10 codes of 2 bits.*\(2,\)", (CODES[:2], 10, 2, 0.0, 1.0)),
        (ValueError, "`codes`", (CODES.view(1, 3), 10, 2, 0.0, 1.0)),
        (TypeError, "`codes` must be uint8.*int8", (CODES.to(torch.int8), 10, 2, 0.0, 1.0)),
        (ValueError, "`numel` must be at least 0.*got -1", (CODES, -1, 2, 0.0, 1.0)),
        (ValueError, "`bits` must be.*got 5", (CODES, 10, 5, 0.0, 1.0)),
        (ValueError, "`low` and `high`.*got 2.0 and 1.0", (CODES, 10, 2, 2.0, 1.0)),
    ],
)  # fmt: skip
def test_bad_packed_arguments(error, message, args):
    with pytest.raises(error, match=message):
        unpack_fixed(*args)
