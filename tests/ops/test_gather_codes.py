from __future__ import annotations

import pytest
import torch
from torch.library import opcheck

from gossamer.ops import OPS, gather_product, gather_product_into, gather_scalar, gather_scalar_into, pack_ids
from gossamer.ops.gather_codes import id_bits
from support.compare import on_baseline, same_bits
from support.tensors import rand

IDS = [[], [3], [2, 2, 0, 19, 0], list(range(19, -1, -1)), [(7 * k * k) % 20 for k in range(700)]]
COLUMNS = (1, 7, 15, 16, 17, 63, 64, 65, 130)


def codes_of(columns, bits, below=None, rows=20, seed=0):
    rng = torch.Generator().manual_seed(seed)
    ids = torch.randint(0, below or 2**bits, (rows, columns), generator=rng, dtype=torch.int32)
    return ids.long(), pack_ids(ids, bits)


@pytest.mark.parametrize("bits", [1, 2, 4, 8])
@pytest.mark.parametrize("per_column", [False, True])
def test_scalar_equals_gather_then_table(bits, per_column, isa):
    for columns in COLUMNS:
        codes, packed = codes_of(columns, bits)
        table = rand(2**bits, columns if per_column else 1)
        decoded = table.expand(-1, columns).gather(0, codes)
        for ids in map(torch.tensor, IDS):
            ids = ids.long()
            got = gather_scalar(packed, table, ids, columns, bits)
            assert same_bits(got, decoded[ids])
            assert same_bits(got, OPS["gather_scalar"].reference(packed, table, ids, columns, bits))
            assert same_bits(gather_scalar(packed, table, ids, columns, bits, True), decoded[ids].bfloat16())


@pytest.mark.parametrize("width, length", [(1, 2), (3, 5), (16, 256), (16, 2048), (20, 1000), (33, 65536 // 8)])
def test_product_equals_gather_then_table(width, length, isa):
    bits = id_bits(length)
    for columns in (1, 16, 33, 64, 70):
        parts = -(-columns // width)
        codes, packed = codes_of(parts, bits, length)
        books, scale = (100 * rand(columns * length)).half(), 2.0 ** torch.arange(-3, parts - 3)
        books[::5] = 0
        books[1::7] *= 2.0**-20  # below the normal float16 numbers
        starts = range(0, columns, width)
        entries = [books[c * length : min(c + width, columns) * length].view(length, -1).float() for c in starts]
        decoded = torch.cat([entries[p][codes[:, p]] * scale[p] for p in range(parts)], 1)
        for ids in map(torch.tensor, IDS):
            ids = ids.long()
            args = (packed, books, scale, ids, columns, width, length)
            assert same_bits(gather_product(*args), decoded[ids])
            assert same_bits(gather_product(*args), OPS["gather_product"].reference(*args))
            assert same_bits(gather_product(*args, True), decoded[ids].bfloat16())


def test_a_part_may_be_wider_than_the_rows(isa):
    _, packed = codes_of(1, 4)
    books, scale, ids = rand(7 * 16).half(), rand(1), torch.arange(20)
    exact = gather_product(packed, books, scale, ids, 7, 7, 16)
    for width in (8, 2**31, 2**63 - 1):
        assert same_bits(gather_product(packed, books, scale, ids, 7, width, 16), exact)
        out = torch.full((20, 7), torch.nan)
        gather_product_into(out, packed, books, scale, ids, 7, width, 16)
        assert same_bits(out, exact)


def test_large_results_go_past_the_caches(isa):
    ids = torch.arange(70_000) % 20
    codes, packed = codes_of(128, 4)
    table = rand(16, 1)
    assert same_bits(gather_scalar(packed, table, ids, 128, 4), table.expand(-1, 128).gather(0, codes)[ids])
    codes, packed = codes_of(8, 6)
    books = rand(128 * 64).half()
    entries = books.view(8, 64, 16).float()
    rows = torch.cat([entries[p][codes[:, p]] for p in range(8)], 1)
    assert same_bits(gather_product(packed, books, torch.ones(8), ids, 128, 16, 64), rows[ids])


def test_same_bits_for_any_number_of_threads(isa, threads):
    ids = torch.tensor(IDS[-1])
    _, packed = codes_of(130, 4)
    _, product = codes_of(9, 10)

    def run():
        return (
            gather_scalar(packed, rand(16, 130), ids, 130, 4),
            gather_product(product, rand(130 * 1000).half(), rand(9), ids, 130, 16, 1000),
        )

    assert same_bits(run(), on_baseline(run))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rows_are_left_out(dtype, isa):
    ids = torch.tensor([4, -1, 0, -1, 19])
    _, packed = codes_of(18, 2)
    out = torch.full((5, 18), 7.0, dtype=dtype)
    gather_scalar_into(out, packed, rand(4, 18), ids, 18, 2)
    assert (out[[1, 3]] == 7).all()
    kept = ids >= 0
    assert same_bits(out[kept], gather_scalar(packed, rand(4, 18), ids[kept], 18, 2, dtype == torch.bfloat16))
    _, packed = codes_of(5, 3)
    out.fill_(7)
    gather_product_into(out, packed, rand(18 * 8).half(), rand(5), ids, 18, 4, 8)
    assert (out[[1, 3]] == 7).all()
    args = packed, rand(18 * 8).half(), rand(5), ids[kept], 18, 4, 8, dtype == torch.bfloat16
    assert same_bits(out[kept], gather_product(*args))


def test_all_rows_are_left_out_of_no_codes(isa):
    ids, none = torch.full((40,), -1), torch.empty(0, 5, dtype=torch.uint8)
    out = torch.full((40, 18), 7.0)
    gather_scalar_into(out, none, rand(4, 18), ids, 18, 2)
    gather_product_into(out, none[:, :2], rand(18 * 8).half(), rand(5), ids, 18, 4, 8)
    assert (out == 7).all()


def test_opcheck():
    ids = torch.tensor([4, 4, 0])
    _, packed = codes_of(18, 2)
    _, product = codes_of(5, 3)
    books, scale = rand(18 * 8).half(), rand(5)
    opcheck(OPS["gather_scalar"].overload, (packed, rand(4, 18), ids, 18, 2))
    opcheck(OPS["gather_product"].overload, (product, books, scale, ids, 18, 4, 8))
    opcheck(OPS["gather_scalar_into"].overload, (torch.zeros(3, 18), packed, rand(4, 1), ids, 18, 2))
    opcheck(OPS["gather_product_into"].overload, (torch.zeros(3, 18), product, books, scale, ids, 18, 4, 8))


CODES, TABLE, ONE = torch.zeros(4, 2, dtype=torch.uint8), torch.zeros(4, 8), torch.tensor([1])


@pytest.mark.parametrize(
    "error, said, args",
    [
        (ValueError, "`columns` must be from 1 to", (CODES, TABLE, ONE, 0, 2)),
        (ValueError, r"`bits`.*got 3", (CODES, TABLE, ONE, 8, 3)),
        (ValueError, r"`codes`.*\[rows, 3\] bytes", (CODES, TABLE, ONE, 9, 2)),
        (TypeError, "`codes`.*int8", (CODES.to(torch.int8), TABLE, ONE, 8, 2)),
        (ValueError, r"`table`.*\[4, 1\] for all columns or \[4, 8\]", (CODES, TABLE[:3], ONE, 8, 2)),
        (ValueError, r"`table`.*got \(4, 7\)", (CODES, TABLE[:, :7], ONE, 8, 2)),
        (TypeError, "`table`.*float64", (CODES, TABLE.double(), ONE, 8, 2)),
        (IndexError, "`ids`.*got 4 at position 0", (CODES, TABLE, ONE * 4, 8, 2)),
        (IndexError, "`ids`.*got -1 at position 0", (CODES, TABLE, -ONE, 8, 2)),
        (TypeError, "`ids`.*int32", (CODES, TABLE, ONE.int(), 8, 2)),
    ],
)
def test_bad_scalar_tables(error, said, args):
    with pytest.raises(error, match=said):
        gather_scalar(*args)


BOOKS, SCALE = torch.zeros(8 * 16).half(), torch.zeros(2)


@pytest.mark.parametrize(
    "error, said, args",
    [
        (ValueError, "`width` must be at least 1", (CODES[:, :1], BOOKS, SCALE, ONE, 8, 0, 16)),
        (ValueError, "`length` must be from 2 to 65536", (CODES[:, :1], BOOKS, SCALE, ONE, 8, 4, 1)),
        (ValueError, r"`codes`.*\[rows, 1\] bytes", (CODES, BOOKS, SCALE, ONE, 8, 4, 16)),
        (ValueError, r"`books`.*\[128\]", (CODES[:, :1], BOOKS[:-1], SCALE, ONE, 8, 4, 16)),
        (TypeError, "`books`.*float32", (CODES[:, :1], BOOKS.float(), SCALE, ONE, 8, 4, 16)),
        (ValueError, r"`scale`.*\[2\], one number per part", (CODES[:, :1], BOOKS, SCALE[:1], ONE, 8, 4, 16)),
        (IndexError, "`ids`.*got 4", (CODES[:, :1], BOOKS, SCALE, ONE * 4, 8, 4, 16)),
    ],
)
def test_bad_books(error, said, args):
    with pytest.raises(error, match=said):
        gather_product(*args)


def test_bad_results_to_write_into():
    out = torch.zeros(1, 8)
    with pytest.raises(IndexError, match=r"`ids` must hold ids from 0 to 3, or -1 for rows to leave out.*got -2"):
        gather_scalar_into(out, CODES, TABLE, -2 * ONE, 8, 2)
    with pytest.raises(ValueError, match=r"`out` must have the shape \[1, 8\]"):
        gather_scalar_into(out[:, :7], CODES, TABLE, ONE, 8, 2)
    with pytest.raises(ValueError, match="`out` must be contiguous"):
        gather_scalar_into(torch.zeros(8, 2).t(), CODES, TABLE, torch.tensor([1, 2]), 8, 2)
    with pytest.raises(TypeError, match="`out` must be float32 or bfloat16"):
        gather_product_into(out.double(), CODES[:, :1], BOOKS, SCALE, ONE, 8, 4, 16)
