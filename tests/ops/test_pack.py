"""The few-bit codec: layout, agreement of all implementations, gradient, bad input.

Rounding: test_pack_rounding.py. Levels at other than equal distances: test_pack_levels.py.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.library import opcheck

from gossamer.ops import OPS, pack, unpack
from gossamer.ops.pack import num_blocks, num_bytes
from support.compare import on_baseline, random_cotangent, same, same_bits, with_gradients
from support.tensors import rand

BITS = (1, 2, 4, 8)
NUMELS = (1, 2, 3, 7, 8, 9, 15, 16, 17, 63, 64, 65, 100, 255, 257, 1000, 1023, 1025, 2048, 4095, 4096, 4097)


def blocks_for(numel):
    return (1, 3, 7, 16, 100, 256, 1024, numel)


def starts_and_ends(numel, block):
    return [(start, min(start + block, numel)) for start in range(0, numel, block)]


@pytest.mark.parametrize("bits", BITS)
def test_codes_come_back_as_they_were(bits, isa):
    """Numbers that are codes already, with the smallest and the largest in every block: z = 0, r = 2^bits - 1."""
    top = 2**bits - 1
    for numel in NUMELS:
        for block in blocks_for(numel):
            x = torch.randint(0, top + 1, (numel,), generator=torch.Generator().manual_seed(numel)).float()
            x[::block] = 0
            x[torch.tensor([end - 1 for _, end in starts_and_ends(numel, block)])] = top
            for seed in (None, 3):
                codes, zero, spread = pack(x, bits, block, seed)
                assert codes.numel() == num_bytes(numel, block, bits) and zero.numel() == num_blocks(numel, block)
                assert torch.equal(unpack(codes, zero, spread, numel, bits, block), x)


@pytest.mark.parametrize("bits", BITS)
def test_layout(bits, isa):
    """Element e of a block occupies bits (e bits) mod 8 upward of byte e bits / 8, and blocks start on bytes."""
    for numel in (1, 9, 100, 257, 1025):
        for block in blocks_for(numel):
            packed = np.random.default_rng(numel).integers(0, 256, num_bytes(numel, block, bits), dtype=np.uint8)
            want, at = [], 0
            for start, end in starts_and_ends(numel, block):
                size = -(-(end - start) * bits // 8)
                ones = np.unpackbits(packed[at : at + size], bitorder="little")[: (end - start) * bits]
                want.append(ones.reshape(-1, bits) @ (1 << np.arange(bits)))
                at += size
            assert at == len(packed)
            zero, spread = torch.zeros(len(want)), torch.full((len(want),), 2.0**bits - 1)  # a step of 1
            out = unpack(torch.from_numpy(packed), zero, spread, numel, bits, block)
            assert np.array_equal(out.numpy(), np.concatenate(want))


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("bf16_meta", [True, False])
def test_equals_the_reference(bits, bf16_meta, isa):
    for numel in (0, *NUMELS[::2], 4097):
        x = rand(numel, seed=numel)
        for block in blocks_for(max(numel, 1)):
            for seed in (None, numel):
                args = (x, bits, block, seed, bf16_meta)
                packed = pack(*args)
                assert same(packed, OPS["pack"].reference(*args)), args[1:]
            args = (*packed, numel, bits, block)
            assert same(unpack(*args), OPS["unpack"].reference(*args)), args[3:]


@pytest.mark.parametrize("bits", BITS)
def test_every_last_bit_of_many_blocks(bits, isa):
    """A reciprocal or a product rounded differently shows in one code of a hundred thousand."""
    x = rand(300_001)
    for bf16_meta, seed in ((True, 1), (False, None), (False, 1)):
        args = (x, bits, 5, seed, bf16_meta)
        packed = pack(*args)
        assert same(packed, OPS["pack"].reference(*args))
        assert same(unpack(*packed, x.numel(), bits, 5), OPS["unpack"].reference(*packed, x.numel(), bits, 5))


def test_a_block_may_be_longer_than_the_tensor(isa):
    x = rand(70)
    want = pack(x, 2, 70)
    for block in (71, 5000, 2**40):
        packed = pack(x, 2, block)
        assert same(packed, want) and same(OPS["pack"].reference(x, 2, block, None, True), want)
        for decode in (unpack, OPS["unpack"].reference):
            assert same(decode(*packed, 70, 2, block), unpack(*want, 70, 2, 70))
    codes, zero, spread = pack(x, 2, 2**40, None, False)
    _, (dzero, _) = with_gradients(lambda zero, spread: unpack(codes, zero, spread, 70, 2, 2**40), [zero, spread])
    assert dzero.tolist() == [70]


def test_shape_and_strides_do_not_matter():
    x = rand(12, 10)
    for view in (x, x.t(), x[:, ::2], x.view(4, 3, 10)):
        assert same(pack(view, 4, 7, 1), pack(view.reshape(-1).clone(), 4, 7, 1))
        assert same(OPS["pack"](view, 4, 7, 1, True, None), OPS["pack"].reference(view, 4, 7, 1, True))


@pytest.mark.parametrize("bits", BITS)
def test_same_bits_for_every_instruction_set_and_thread_count(bits, isa, threads):
    x = rand(100_003)

    def run():
        packed = pack(x, bits, 100, 3)
        return *packed, unpack(*packed, x.numel(), bits, 100), *pack(x, bits, 256, None, False)

    assert same_bits(run(), on_baseline(run))


@pytest.mark.parametrize("bits", BITS)
def test_gradients_of_decoding_equal_those_of_the_reference(bits, isa):
    for numel, block in ((1, 1), (10, 3), (300, 64)):
        codes, *meta = pack(rand(numel), bits, block, None, False)
        layout = numel, bits, block

        def run(op, codes=codes, meta=meta, layout=layout):
            return with_gradients(lambda zero, spread: op(codes, zero, spread, *layout), meta, random_cotangent)

        got, want = run(unpack), run(OPS["unpack"].reference)
        torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)  # sums of 64 terms of size 1


def test_packing_says_that_it_has_no_gradient():
    _, zero, _ = pack(rand(8).requires_grad_(), 2, 4)
    with pytest.raises(RuntimeError, match="`pack` has no gradient"):
        zero.sum().backward()


def test_opcheck():
    x = rand(5, 7)
    opcheck(OPS["pack"].overload, (x, 2, 8, None, True, None))
    opcheck(OPS["pack"].overload, (x, 4, 35, 3, False, None))
    codes, zero, spread = pack(x, 2, 8, None, False)
    opcheck(OPS["unpack"].overload, (codes, zero.requires_grad_(), spread.requires_grad_(), 35, 2, 8, None))
    codes, zero, spread = pack(x, 8, 8)
    opcheck(OPS["unpack"].overload, (codes, zero, spread, 35, 8, 8, None))


@pytest.mark.parametrize(
    "error, name, x, bits, block",
    [
        (TypeError, "`x`.*float64", rand(3).double(), 2, 4),
        (TypeError, "`x`.*bfloat16", rand(3).bfloat16(), 2, 4),
        (ValueError, "`bits`.*got 3", rand(3), 3, 4),
        (ValueError, "`bits`.*got 0", rand(3), 0, 4),
        (ValueError, "`bits`.*got 16", rand(3), 16, 4),
        (ValueError, "`block`.*got 0", rand(3), 2, 0),
        (ValueError, "`block`.*got -4", rand(3), 2, -4),
    ],
)
def test_bad_arguments(error, name, x, bits, block):
    with pytest.raises(error, match=name):
        pack(x, bits, block)


CODES, META = torch.zeros(3, dtype=torch.uint8), torch.zeros(2)


@pytest.mark.parametrize(
    "error, name, args",
    [
        (ValueError, "`codes`.*\\[3\\] bytes", (CODES[:2], META, META, 10, 2, 8)),
        (ValueError, "`codes`", (CODES.view(1, 3), META, META, 10, 2, 8)),
        (TypeError, "`codes`.*int8", (CODES.to(torch.int8), META, META, 10, 2, 8)),
        (ValueError, "`zero`.*\\[2\\]", (CODES, META[:1], META, 10, 2, 8)),
        (ValueError, "`spread`.*\\[2\\]", (CODES, META, torch.zeros(3), 10, 2, 8)),
        (TypeError, "`zero`.*float16", (CODES, META.half(), META, 10, 2, 8)),
        (TypeError, "`spread`.*bfloat16", (CODES, META, META.bfloat16(), 10, 2, 8)),
        (ValueError, "`numel`.*got -1", (CODES, META, META, -1, 2, 8)),
        (ValueError, "`bits`.*got 5", (CODES, META, META, 10, 5, 8)),
        (ValueError, "`block`.*got 0", (CODES, META, META, 10, 2, 0)),
    ],
)
def test_bad_packed_arguments(error, name, args):
    with pytest.raises(error, match=name):
        unpack(*args)
