"""Two levels of codes, and how important rows are found."""

from __future__ import annotations

import itertools

import pytest
import torch

from gossamer import Principal, Product, Scalar, TwoLevel
from gossamer.codecs import codec_of, hotness, hottest

PAIRS = [
    (Scalar(8, per="tensor"), Scalar(1, per="column")),
    (Scalar(4), Product(4, 16)),
    (Product(4, 32), Product(16, 4)),
]


def masks(rows):
    some = torch.rand(rows, generator=torch.Generator().manual_seed(rows)) < 0.3
    return [some, ~some, torch.zeros(rows, dtype=torch.bool), torch.ones(rows, dtype=torch.bool)]


@pytest.mark.parametrize("pair", PAIRS, ids=repr)
def test_each_row_has_its_code(pair, sample):
    x = sample(1300, 10)
    for mask in masks(1300):
        codec = TwoLevel(*pair)
        codes = codec.encode(x, important=mask)
        expected = torch.empty_like(x)
        for one, rows in zip(pair, (mask, ~mask), strict=True):
            if rows.any():
                expected[rows] = one.decode(one.encode(x[rows]))
        assert torch.equal(codec.decode(codes), expected)
        for ids in ([], [0], [1299, 511, 512, 513, 512], list(range(1299, -1, -7))):
            ids = torch.tensor(ids, dtype=torch.int64)
            assert torch.equal(codec.decode_rows(codes, ids), expected[ids])
            assert torch.equal(codec.decode_rows(codes, ids, torch.bfloat16), expected[ids].bfloat16())
        fitted = codec.fit(x, mask)
        assert fitted.nbytes(x.shape, int(mask.sum())) == codes.nbytes
        assert fitted.error_bound(fitted.encode(x, important=mask)).shape == x.shape


def test_bytes_of_levels():
    """A bit per row and four bytes per 512, and CR = 1 / (phi / CR_1 + (1 - phi) / CR_2)."""
    rows, columns, share = 1_024_000, 64, 0.25
    codec = TwoLevel(Scalar(4, per="tensor"), Scalar(1, per="tensor"))
    stored = codec.nbytes((rows, columns), int(share * rows))
    level_bits = rows * 1.0625 / 8
    assert stored == rows * share * 32 + rows * (1 - share) * 8 + 64 + 8 + level_bits
    ratio = 4 * columns * rows / (stored - level_bits - 72)
    assert abs(ratio - 1 / (share / 8 + (1 - share) / 32)) < 1e-9
    with pytest.raises(ValueError, match=r"`num_important` must be from 0 to 5, the number of rows \(got 6\)"):
        codec.nbytes((5, 3), 6)


@pytest.mark.parametrize("pair", PAIRS, ids=repr)
def test_chunks_are_joined(pair, sample):
    x = sample(1100, 10)
    mask = masks(1100)[0]
    codec = TwoLevel(*pair).fit(x, mask)
    refining, chunks = codec.start_refining(), []
    for rows, important in zip(x.split([3, 600, 497]), mask.split([3, 600, 497]), strict=True):
        chunks.append(codec.encode(rows, important=important))
        codec.accumulate(refining, rows, chunks[-1])
    joined = codec.refined(refining).joined(chunks)
    expected = TwoLevel(*pair).encode(x, important=mask)
    assert joined.shape == expected.shape and joined.nbytes == expected.nbytes
    assert all(map(torch.equal, joined.tensors, expected.tensors))


def test_mild_rows_are_better(sample):
    x = sample(600, 12)
    mask = masks(600)[0]
    codec = TwoLevel(Scalar(8), Scalar(1))
    error = (codec.decode(codec.encode(x, important=mask)) - x).square().mean(1)
    assert error[mask].max() < error[~mask].min()


def test_bad_settings_and_masks(sample):
    with pytest.raises(ValueError, match="`mild` must be a Scalar or a Product codec"):
        TwoLevel(mild="scalar")
    with pytest.raises(ValueError, match=r"`important` must be 'seeds' or 'hotness'.*argument of fit and encode"):
        TwoLevel(important=torch.ones(3).bool().tolist())
    for bad in (torch.ones(4), torch.ones(3, dtype=torch.bool)):
        for call in (TwoLevel().fit, lambda x, m: TwoLevel().encode(x, important=m)):
            with pytest.raises(ValueError, match="`important` must hold a truth value for each of 4 rows"):
                call(sample(4, 2), bad)


def brute_hotness(rowptr, col, seeds, fanouts, n):
    h = [1.0 if v in seeds else 0.0 for v in range(n)]
    for fanout in fanouts:
        more = list(h)
        for v in range(n):
            neighbours = col[rowptr[v] : rowptr[v + 1]]
            for u in neighbours:
                more[u] += h[v] * (1.0 if fanout == -1 else min(1.0, fanout / len(neighbours)))
        h = [min(1.0, value) for value in more]
    return torch.tensor(h, dtype=torch.float64)


def test_hotness():
    rng = torch.Generator().manual_seed(0)
    degrees = torch.randint(0, 5, (30,), generator=rng)
    rowptr = torch.cat([torch.zeros(1, dtype=torch.int64), degrees.cumsum(0)])
    col = torch.randint(0, 30, (int(degrees.sum()),), generator=rng).int()
    seeds = torch.tensor([3, 17])
    for fanouts in ([], [1], [2, 3], [-1, 1]):
        expected = brute_hotness(rowptr.tolist(), col.tolist(), {3, 17}, fanouts, 30)
        torch.testing.assert_close(hotness(rowptr, col, seeds, fanouts, 30), expected)
        mask = torch.zeros(30, dtype=torch.bool)
        mask[seeds] = True
        torch.testing.assert_close(hotness(rowptr, col, mask, fanouts, 30), expected)
    hot = hotness(rowptr, col, seeds, [1], 30)
    assert hottest(hot, 2 / 30).nonzero().view(-1).tolist() == [3, 17]
    assert int(hottest(hot, 0.5).sum()) == 15 and not hottest(hot, 0).any() and hottest(hot, 1).all()
    with pytest.raises(ValueError, match=r"`share` must be between 0 and 1 \(got 1.5\)"):
        hottest(hot, 1.5)
    with pytest.raises(ValueError, match=r"`fanouts` must be positive, or -1 for all neighbours \(got 0\)"):
        hotness(rowptr, col, seeds, [0], 30)
    with pytest.raises(IndexError, match="`seeds` must hold ids from 0 to 29"):
        hotness(rowptr, col, torch.tensor([30]), [1], 30)
    with pytest.raises(ValueError, match="`rowptr` must have 31 entries"):
        hotness(rowptr[:30], col[: rowptr[29]], seeds, [1], 30)


def test_codecs_by_name():
    assert codec_of("scalar:1") == Scalar(1)
    assert codec_of("scalar:4:log") == Scalar(4, "log")
    assert codec_of("scalar:2:optimal") == Scalar(2, "optimal")
    assert codec_of(" Scalar:8:column:uniform ") == Scalar(8, "uniform", "column")
    assert codec_of("product:16x2048") == Product(16, 2048)
    assert codec_of("product:8x256:cosine") == Product(8, 256, "cosine")
    assert codec_of("principal:2") == Principal()
    assert codec_of("principal:4:scalar:2:optimal") == Principal(4, Scalar(2, "optimal"))
    assert codec_of("principal:2.5:product:8x256") == Principal(2.5, Product(8, 256))
    assert repr(codec_of("principal:2:scalar:4")) == repr(Principal(ratio=2, then=Scalar(bits=4)))
    bad = ["principal", "principal:", "principal:0.5", "principal:x", "principal:inf", "principal:2:scalar"]
    bad += ["principal:2:principal:2", "principal:2:scalar:3", "principal:2:other:3"]
    bad += ["", "scalar", "scalar:3", "scalar:x", "scalar:4:cubic", "scalar:4:log:uniform", "product", "product:16"]
    bad += ["product:16x1", "product:16x2048:dot", "product:16x2048:cosine:x", "int8", "scalar:"]
    for text, said in itertools.product(bad, ("'scalar:BITS'", "'product:WIDTHxLENGTH'", "got ")):
        with pytest.raises(ValueError, match="`codec` must be") as caught:
            codec_of(text)
        assert said in str(caught.value) and repr(text) in str(caught.value)
