from __future__ import annotations

import pytest
import torch
from torch.library import opcheck

from gossamer.ops import OPS, code_sums, encode_product, encode_scalar, pack_ids, rank_rows, unpack_ids
from gossamer.ops.rank_rows import level_bits
from support.compare import on_baseline, same_bits
from support.tensors import rand

COLUMNS = (1, 7, 15, 16, 17, 63, 64, 65, 130)


def thresholds_of(bits, columns):
    found = rand(2**bits - 1, columns, seed=bits).sort(0).values
    found[0] = found[-1] if bits == 1 else found[1]  # two that are equal
    return found


@pytest.mark.parametrize("bits", [1, 2, 4, 8])
@pytest.mark.parametrize("per_column", [False, True])
def test_scalar_equals_the_reference(bits, per_column, isa):
    for columns in COLUMNS:
        x = rand(300, columns)
        thresholds = thresholds_of(bits, columns if per_column else 1)
        x[5] = thresholds[-1]  # on a threshold
        x[6] = -0.0
        got = encode_scalar(x, thresholds, bits)
        assert same_bits(tuple(got), tuple(OPS["encode_scalar"].reference(x, thresholds, bits)))
        counts = (x.unsqueeze(0) > thresholds.unsqueeze(1)).sum(0)
        assert torch.equal(unpack_ids(got.codes, columns, bits).long(), counts)
        assert int(got.bad) == -1


@pytest.mark.parametrize("width, length", [(1, 2), (3, 5), (16, 256), (20, 1000)])
def test_product_equals_the_reference(width, length, isa):
    for columns in (1, 16, 33, 70):
        parts = -(-columns // width)
        x = rand(301, columns)
        x[7], x[8, : columns // 2 + 1], x[9] = 0, 0, 1e30
        start = rand(parts, length, seed=1).where(rand(parts, length, seed=2) < 1, -torch.inf)
        args = (x, rand(columns, length, seed=3).round(decimals=1), start.round(), 2.0 ** torch.arange(parts), width)
        got = encode_product(*args)
        assert same_bits(tuple(got), tuple(OPS["encode_product"].reference(*args)))
        nothing = encode_product(x, args[1], torch.full_like(start, -torch.inf), *args[3:])
        assert not nothing.codes.any()


def test_ties_go_to_the_lower_code(isa):
    books = torch.ones(2, 40)
    assert (
        int(unpack_ids(encode_product(torch.ones(1, 2), books, torch.zeros(1, 40), torch.ones(1), 2).codes, 1, 6)) == 0
    )
    start = torch.zeros(1, 40)
    start[0, [17, 18, 33]] = 1
    assert int(unpack_ids(encode_product(torch.ones(1, 2), books, start, torch.ones(1), 2).codes, 1, 6)) == 17


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_the_first_bad_row(bad, isa, threads):
    for rows, columns in (([0], 1), ([700, 1999], 5), ([1023, 1024], 70)):
        x = rand(2000, columns)
        x[rows, columns - 1] = bad
        assert int(encode_scalar(x, thresholds_of(2, 1), 2).bad) == rows[0]
        assert int(encode_product(x, rand(columns, 4), torch.zeros(1, 4), torch.ones(1), columns).bad) == rows[0]


def test_same_bits_for_any_number_of_threads(isa, threads):
    x = rand(2000, 37)

    def run():
        return tuple(encode_scalar(x, thresholds_of(4, 37), 4)), tuple(
            encode_product(x, rand(37, 50), rand(3, 50), torch.ones(3), 16)
        )

    assert same_bits(run(), on_baseline(run))


@pytest.mark.parametrize("bits", range(1, 17))
def test_pack_and_unpack_are_inverse(bits):
    """Of ids for every number of parts, and of scalar codes for every number of columns; the last row and part too."""
    for parts in range(1, 131 if bits in (1, 2, 4, 8) else 71):
        rng = torch.Generator().manual_seed(parts)
        ids = torch.randint(0, 2**bits, (5, parts), generator=rng, dtype=torch.int32)
        ids[-1, -1] = 2**bits - 1
        packed = pack_ids(ids, bits)
        assert packed.shape == (5, -(-parts * bits // 8))
        assert torch.equal(unpack_ids(packed, parts, bits), ids)
        if parts % 13 == 1:
            assert torch.equal(packed, OPS["pack_ids"].reference(ids, bits))
            assert torch.equal(OPS["unpack_ids"].reference(packed, parts, bits), ids)


@pytest.mark.parametrize("width, length, columns", [(1, 2, 33), (1, 256, 5), (4, 7, 18), (16, 1000, 40)])
def test_sums_by_code(width, length, columns, threads):
    parts = -(-columns // width)
    bits = (length - 1).bit_length()
    x = rand(200, columns) * 1e3
    ids = torch.randint(0, length, (200, parts), generator=torch.Generator().manual_seed(0), dtype=torch.int32)
    codes = pack_ids(ids, bits)

    def zeros():
        return torch.zeros(parts, length, width, dtype=torch.float64), torch.zeros(parts, length, dtype=torch.int64)

    whole, pieces, reference = zeros(), zeros(), zeros()
    code_sums(*whole, x, codes)
    OPS["code_sums"].reference(*reference, x, codes)
    for rows in (slice(0, 1), slice(1, 150), slice(150, 150), slice(150, 200)):
        code_sums(*pieces, x[rows], codes[rows])
    assert same_bits(whole, reference) and same_bits(whole, pieces)
    assert int(whole[1].sum()) == 200 * parts
    torch.testing.assert_close(whole[0].sum((0, 1, 2)), x.double().sum())


@pytest.mark.parametrize("rows", [1, 8, 63, 64, 65, 511, 512, 513, 1700])
def test_ranks(rows):
    for share in (0.0, 0.3, 1.0):
        important = torch.rand(rows, generator=torch.Generator().manual_seed(rows)) < share
        level, rank = level_bits(important)
        assert level.numel() == -(-rows // 8) and rank.numel() == -(-rows // 512)
        ids = torch.arange(rows).flip(0)
        first, second = rank_rows(level, rank, ids, rows)
        assert torch.equal(first.flip(0)[important], torch.arange(int(important.sum())))
        assert torch.equal(second.flip(0)[~important], torch.arange(rows - int(important.sum())))
        assert torch.equal(first.flip(0) == -1, ~important) and torch.equal(second.flip(0) == -1, important)
        reference = OPS["rank_rows"].reference(level, rank, ids, rows)
        assert same_bits((first, second), tuple(reference))


def test_opcheck():
    x = rand(6, 8)
    codes = encode_scalar(x, thresholds_of(2, 8), 2).codes
    opcheck(OPS["encode_scalar"].overload, (x, thresholds_of(2, 8), 2))
    opcheck(OPS["encode_product"].overload, (x, rand(8, 5), rand(2, 5), torch.ones(2), 4))
    opcheck(OPS["pack_ids"].overload, (torch.ones(3, 4, dtype=torch.int32), 5))
    opcheck(OPS["unpack_ids"].overload, (codes, 8, 2))
    sums = torch.zeros(8, 4, 1, dtype=torch.float64), torch.zeros(8, 4, dtype=torch.int64)
    opcheck(OPS["code_sums"].overload, (*sums, x, codes))
    opcheck(OPS["rank_rows"].overload, (*level_bits(torch.ones(9).bool()), torch.tensor([3, 8]), 9))


X = torch.zeros(2, 8)


@pytest.mark.parametrize(
    "error, said, call",
    [
        (TypeError, "`x` must be float32", lambda: encode_scalar(X.double(), X[:1], 1)),
        (ValueError, "columns of `x` must be from 1", lambda: encode_scalar(X[:, :0], X[:1, :1], 1)),
        (ValueError, r"`thresholds`.*\[3, 1\] for all columns or \[3, 8\]", lambda: encode_scalar(X, X[:1], 2)),
        (ValueError, "`thresholds` must ascend", lambda: encode_scalar(X, -torch.arange(3.0).view(3, 1), 2)),
        (ValueError, r"`books`.*\[8, length\]", lambda: encode_product(X, rand(7, 4), rand(2, 4), rand(2), 4)),
        (ValueError, r"`start`.*\[2, 4\]", lambda: encode_product(X, rand(8, 4), rand(1, 4), rand(2), 4)),
        (ValueError, r"`inverse_scale`.*\[2\]", lambda: encode_product(X, rand(8, 4), rand(2, 4), rand(3), 4)),
        (ValueError, "`bits` must be from 1 to 16", lambda: pack_ids(X.int(), 17)),
        (IndexError, "`ids`.*got 4 at position 0", lambda: pack_ids(X.int() + 4, 2)),
        (ValueError, r"`packed`.*\[rows, 2\] bytes", lambda: unpack_ids(X.to(torch.uint8), 8, 2)),
        (
            ValueError,
            r"`level`.*\[1\] bytes",
            lambda: rank_rows(*level_bits(torch.ones(9).bool()), torch.tensor([0]), 8),
        ),
        (IndexError, "`ids`.*got 9", lambda: rank_rows(*level_bits(torch.ones(9).bool()), torch.tensor([9]), 9)),
        (TypeError, "`important` must be bool", lambda: level_bits(torch.ones(9))),
    ],
)
def test_bad_arguments(error, said, call):
    with pytest.raises(error, match=said):
        call()
