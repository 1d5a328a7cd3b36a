from __future__ import annotations

import pytest
import torch
from torch.library import opcheck

from gossamer.native import library
from gossamer.ops import OPS, random_bits
from gossamer.ops.random import floor_plus
from support.compare import on_baseline, same, same_bits

SEEDS = (0, 1, -1, 12345, 2**63 - 1, -(2**63))
OFFSETS = (0, 5, 2**31 - 9, 2**32 - 40, 2**32 - 15, 2**32 - 1, 2**32, 2**33 - 7, 2**40 + 3, 2**62)


def words(seed, numel, offset=0):
    """As numbers in [0, 2^32)."""
    return random_bits(seed, numel, offset).long() & 0xFFFFFFFF


@pytest.mark.parametrize("offset", OFFSETS)
def test_equals_the_reference(offset, isa):
    like = torch.empty(0)
    for seed in SEEDS:
        for numel in (0, 1, 15, 16, 17, 100):
            assert same(random_bits(seed, numel, offset), OPS["random_bits"].reference(seed, offset, numel, like))


def test_the_hash_itself():
    """Computed by hand from the formula in ops/random.py: the noise of a stored run must never change."""

    def hashed(seed, index):
        mask, word = 2**64 - 1, 2**32 - 1
        z = (seed + 0x9E3779B97F4A7C15) & mask
        z = ((z ^ z >> 30) * 0xBF58476D1CE4E5B9) & mask
        z = ((z ^ z >> 27) * 0x94D049BB133111EB) & mask
        z ^= z >> 31
        x = (index + (z & word)) & word
        x = ((x ^ x >> 16) * 0x7FEB352D) & word
        x ^= ((index >> 32) * 0x9E3779B9 + (z >> 32)) & word
        x = ((x ^ x >> 15) * 0x846CA68B) & word
        return x ^ x >> 16

    for seed in SEEDS:
        for offset in OFFSETS:
            assert words(seed, 40, offset).tolist() == [hashed(seed, offset + k) for k in range(40)]


def test_same_bits_for_every_instruction_set_and_thread_count(isa, threads):
    def run():
        return random_bits(7, 100_003, 2**32 - 50_000)

    assert same_bits(run(), on_baseline(run))


def test_an_element_does_not_depend_on_where_the_request_starts():
    whole = random_bits(3, 1000, 2**32 - 500)
    for start in (1, 16, 499, 500, 501):
        assert torch.equal(random_bits(3, 1000 - start, 2**32 - 500 + start), whole[start:])


@pytest.mark.parametrize("seed", [0, 1, 2, 2**62])
def test_bytes_are_uniform(seed):
    """Chi-square with 255 degrees of freedom, for each of the four bytes: mean 255, deviation sqrt(510) = 22.6."""
    x = words(seed, 1_000_000)
    for shift in (0, 8, 16, 24):
        count = torch.bincount(x >> shift & 0xFF, minlength=256).double()
        chi_square = ((count - len(x) / 256).square() / (len(x) / 256)).sum()
        assert abs(chi_square - 255) < 5 * 510**0.5


def correlation(a, b):
    """In standard errors, of two sequences of words."""
    a, b = (x.double() - x.double().mean() for x in (a, b))
    return float((a * b).mean() / (a.std() * b.std())) * len(a) ** 0.5


def test_neighbours_are_uncorrelated():
    x = words(11, 200_000)
    for lag in (1, 2, 3, 4, 7, 8, 16, 64, 130, 256, 1024):
        assert abs(correlation(x[:-lag], x[lag:])) < 5


def test_words_are_distinct():
    assert len(words(5, 1_000_000, 2**32 - 500_000)[:500_000].unique()) == 500_000  # a bijection of the low 32 bits


@pytest.mark.parametrize("other", [1, 2, 3, 64, 2**32, 2**33, -1, 2**62])
def test_seeds_are_uncorrelated(other):
    a, b = words(0, 200_000), words(other, 200_000)
    assert abs(correlation(a, b)) < 5
    for bit in range(32):  # each bit agrees in half of all words: deviation sqrt(n) / 2
        agree = int(((a ^ b) >> bit & 1).sum())
        assert abs(agree - len(a) / 2) < 5 * len(a) ** 0.5 / 2


def test_one_element_over_many_seeds_is_uniform():
    """Stochastic rounding over steps draws this way."""
    x = torch.stack([words(seed, 16) for seed in range(20_000)]).double() / 2**32  # [seeds, elements]
    deviation = (1 / 12 / len(x)) ** 0.5
    assert ((x.mean(0) - 0.5).abs() < 5 * deviation).all()
    assert all(abs(correlation(x[:, 0], x[:, k])) < 5 for k in range(1, 16))
    assert abs(correlation(x[:-1, 0], x[1:, 0])) < 5


# Halves of words, for rounding ------------------------------------------------------------------------------------


def noise(seed, index):
    """The fifteen bits that round elements `index`: floor(t + u) passes 1 where t exceeds 1 - u."""
    found = torch.zeros(len(index), dtype=torch.int64)
    for bit in reversed(range(15)):  # the largest k with floor(1 - (k + 1) / 2^15 + u) = 0, by bisection
        t = 1 - (found + 2**bit).double() / 2**15
        found += floor_plus(t, seed, index).long() * 2**bit
    return found


def test_each_element_has_half_a_word():
    index = torch.arange(2**32 - 64, 2**32 + 64)
    of = words(9, 64, 2**31 - 32).view(-1, 1, 16)  # 32 k + 16 h + l has the lower or upper half of word 16 k + l
    assert torch.equal(noise(9, index), torch.cat([of & 0x7FFF, of >> 17], 1).flatten())


def test_halves_are_uniform_and_uncorrelated():
    x = noise(4, torch.arange(200_000))
    count = torch.bincount(x >> 7, minlength=256).double()
    assert abs(((count - len(x) / 256).square() / (len(x) / 256)).sum() - 255) < 5 * 510**0.5
    assert all(abs(correlation(x[:-lag], x[lag:])) < 5 for lag in (1, 2, 15, 16, 17, 32, 48, 256))
    assert abs(correlation(x, noise(5, torch.arange(200_000)))) < 5


@pytest.mark.parametrize("columns", [1, 31, 32, 64, 77, 128])
@pytest.mark.parametrize("numel", [0, 2**31, 2**32, 2**33, 2**40])
def test_rows_far_into_a_tensor_round_as_the_reference(columns, numel, isa):
    """Elements before and after each number: words, their halves and the two words of an index change there."""
    first, rows = max(0, numel // columns - 20), 40
    x = torch.rand(rows, columns, generator=torch.Generator().manual_seed(0)) + 0.1
    codes, scale = torch.empty(rows, columns, dtype=torch.int8), torch.empty(rows)
    where = (x.data_ptr(), codes.data_ptr(), scale.data_ptr(), 0, True, 6, first)
    assert library.quantize_times(*where, rows, columns, 1)
    index = torch.arange(first * columns, (first + rows) * columns).view(rows, columns)
    top = x.amax(1, keepdim=True)
    want = floor_plus(x * (torch.full_like(top, 127) / top), 6, index).clamp(-127, 127)
    assert torch.equal(codes.float(), want) and torch.equal(scale, top.squeeze(1) / 127)


# The op -----------------------------------------------------------------------------------------------------------


def test_opcheck():
    opcheck(OPS["random_bits"].overload, (3, 2**32 - 5, 20, torch.empty(0)))


@pytest.mark.parametrize("name, numel, offset", [("`numel`", -1, 0), ("`offset`", 1, -1)])
def test_bad_arguments(name, numel, offset):
    with pytest.raises(ValueError, match=name):
        random_bits(0, numel, offset)
