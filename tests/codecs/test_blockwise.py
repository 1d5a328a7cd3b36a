"""Block-wise codec: its metadata and its levels. Noise: test_noise.py; bytes: test_bytes.py."""

from __future__ import annotations

import pytest
import torch

from gossamer import Blockwise


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


def test_a_block_longer_than_the_tensor(sample):
    """Neither codes nor bounds grow with it."""
    codec, x = Blockwise(8, block=2**40), sample(100)
    codes = codec.encode(x)
    assert codes.nbytes == codec.nbytes((100,)) == 104
    assert ((codec.decode(codes) - x).abs() <= codec.error_bound(codes)).all()
