"""The few-bit codec: metadata rounded outward, stochastic rounding without bias, numbers at the ends of float32."""

from __future__ import annotations

import pytest
import torch

from gossamer.ops import OPS, pack, unpack
from gossamer.ops.pack import LARGEST_BF16, TINY, bf16_down, bf16_up
from support.compare import same
from support.rounding import DRAWS, assert_stochastic_rounding, grid_levels
from support.tensors import rand

BITS = (1, 2, 4, 8)
BLOCK = 50
LARGEST = torch.finfo(torch.float32).max


def codes_of(codes, bits, numel, block=BLOCK):
    """One number per element: decoded with z = 0 and a step of 1."""
    blocks = -(-numel // block)
    return unpack(codes, torch.zeros(blocks), torch.full((blocks,), 2.0**bits - 1), numel, bits, block)


def shapes_of_data(numel=6 * BLOCK - 20):
    """What blocks may look like; the last block is short."""
    x = rand(numel)
    return {
        "normal": x,
        "after relu": x.relu(),
        "offset": x + 1000,  # 1e3 times the spread
        "negative offset": x * 1e-3 - 1,
        "large": x * 1e30,
        "small": x * 1e-30,
        "constant": torch.full((numel,), 0.1),  # which bfloat16 cannot hold
        "nearly constant": 0.1 + (x > 1) * 1e-8,
    }


def test_bf16_rounds_outward():
    x = torch.cat([rand(1000), rand(1000) * 5e37, torch.tensor([0.0, -0.0, 1e-45, -1e-45, 1e-39, LARGEST, -LARGEST])])
    down, up = bf16_down(x), bf16_up(x)
    for rounded in (down, up):
        assert torch.equal(rounded, rounded.bfloat16().float())
    inside = x.abs() <= LARGEST_BF16
    assert (down <= x)[inside].all() and (up >= x)[inside].all()
    assert down.abs().max() <= LARGEST_BF16 and up.abs().max() <= LARGEST_BF16
    exact = x == x.bfloat16().float()
    assert torch.equal(down[exact], x[exact]) and torch.equal(up[exact], x[exact])
    distance = (up - down)[inside & ~exact]
    assert (distance <= x.abs()[inside & ~exact] * 2.0**-7 + 2.0**-132).all()  # neighbours, down to the denormals


@pytest.mark.parametrize("kind", shapes_of_data())
@pytest.mark.parametrize("bf16_meta", [True, False])
def test_metadata_covers_the_block(kind, bf16_meta, isa):
    x = shapes_of_data()[kind]
    _, zero, spread = pack(x, 2, BLOCK, None, bf16_meta)
    assert zero.dtype == spread.dtype == (torch.bfloat16 if bf16_meta else torch.float32)
    for k, part in enumerate(x.split(BLOCK)):
        z, r = zero[k].double(), spread[k].double()
        ulp = max(part.max().abs().double(), r) * 2.0**-23
        assert z <= part.min() and z + r >= part.max().double() - ulp
        if bf16_meta:  # not wider than announced: r' <= (r + 2^-7 |min|) (1 + 2^-7)
            assert r <= (part.max() - part.min() + 2**-7 * part.min().abs()).double() * (1 + 2**-7) + 1e-38
        else:
            assert z == part.min() and r == (part.max() - part.min()).double()


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("kind", shapes_of_data())
def test_error_is_at_most_half_a_step_or_one(bits, kind, isa):
    x = shapes_of_data()[kind]
    for seed, most in ((None, 0.5), (1, 1.0)):
        codes, zero, spread = pack(x, bits, BLOCK, seed)
        decoded = unpack(codes, zero, spread, x.numel(), bits, BLOCK).double()
        step = (spread.double() / (2**bits - 1)).repeat_interleave(BLOCK)[: x.numel()]
        rounding = x.double().abs().max() * 2.0**-22  # of the decoded number itself
        assert ((decoded - x.double()).abs() <= step * (most + 1e-4) + rounding).all()


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("bf16_meta", [True, False])
def test_stochastic_rounding_is_unbiased(bits, bf16_meta):
    data = shapes_of_data()
    kinds = ("normal", "after relu", "offset", "negative offset") + (("constant",) if bf16_meta else ())
    x = torch.cat([data[kind][:BLOCK] for kind in kinds] + [data["normal"][BLOCK : 2 * BLOCK - 20]])
    draws = torch.stack([codes_of(pack(x, bits, BLOCK, s, bf16_meta)[0], bits, x.numel()) for s in range(DRAWS)])
    _, zero, spread = pack(x, bits, BLOCK, 0, bf16_meta)
    z, r = (meta.double().repeat_interleave(BLOCK)[: x.numel()] for meta in (zero, spread))
    step = r / (2**bits - 1)
    assert_stochastic_rounding(z + step * draws, x.double(), *grid_levels(x.double(), step, z))


def test_constant_blocks(isa):
    """A constant that bfloat16 holds comes back exactly; any other stays unbiased and near."""
    for constant in (0.0, -0.0, 1.5, -3.0, 2.0**-120, -(2.0**120)):
        x = torch.full((70,), constant)
        for seed in (None, 1):
            codes, zero, spread = pack(x, 2, BLOCK, seed)
            assert not codes.any() and not spread.any()
            assert torch.equal(unpack(codes, zero, spread, 70, 2, BLOCK), x)
    x = torch.full((70,), 0.1)
    codes, zero, spread = pack(x, 2, BLOCK, None, False)
    assert torch.equal(unpack(codes, zero, spread, 70, 2, BLOCK), x)


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("bf16_meta", [True, False])
def test_a_block_that_is_not_finite_decodes_to_nan(bad, bf16_meta, isa):
    x = rand(4 * BLOCK)
    clean = pack(x, 4, BLOCK, 1, bf16_meta)
    for at in (BLOCK, BLOCK + 20, 2 * BLOCK - 1):  # first, in a vector, in the tail
        spoiled = x.clone()
        spoiled[at] = bad
        packed = pack(spoiled, 4, BLOCK, 1, bf16_meta)
        assert same(packed, OPS["pack"].reference(spoiled, 4, BLOCK, 1, bf16_meta))
        out, want = (unpack(*p, x.numel(), 4, BLOCK).view(4, BLOCK) for p in (packed, clean))
        assert out[1].isnan().all()
        assert torch.equal(out[[0, 2, 3]], want[[0, 2, 3]])


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("bf16_meta", [True, False])
@pytest.mark.parametrize("largest", [1e38, 3e38, LARGEST, 1e-36, 1e-38, 1e-40, 1e-45])
def test_extreme_magnitudes(bits, bf16_meta, largest, isa):
    """Everything stays finite and inside the block's range; where the range itself overflows it is clamped."""
    x = torch.cat([torch.linspace(-1, 1, BLOCK), torch.linspace(0, 1, BLOCK), torch.linspace(-1, 0, BLOCK)]) * largest
    for seed in (None, 1):
        packed = pack(x, bits, BLOCK, seed, bf16_meta)
        assert same(packed, OPS["pack"].reference(x, bits, BLOCK, seed, bf16_meta))
        _, zero, spread = packed
        out = unpack(*packed, x.numel(), bits, BLOCK)
        assert out.isfinite().all()
        overflows = 2 * largest > LARGEST_BF16
        z, r = (m.double().repeat_interleave(BLOCK) for m in (zero, spread))
        error = (out.double() - x.double()).abs()
        fits = slice(BLOCK, None) if overflows else slice(None)
        allowance = largest * 2.0**-7  # metadata clamped to the largest bfloat16
        allowance += 2 * largest + 1e-40 if largest < TINY else 0.0  # ranges below TINY count as none; denormal steps
        assert (error[fits] <= r[fits] + allowance).all()
        assert (out.double() >= z - allowance).all()
