from __future__ import annotations

import pytest
import torch
from torch.autograd import gradcheck
from torch.library import opcheck

from gossamer.ops import OPS, gather_packed_rows, gather_rows, gather_rows_int8, pack, quantize_rows, unpack
from support import graphs
from support.compare import on_baseline, random_cotangent, same, same_bits, with_gradients
from support.tensors import rand

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.uint8, torch.int64, torch.bool)
IDS = {
    "none": [],
    "one": [3],
    "repeated": [2, 2, 0, 2, 0],
    "all, backwards": list(range(19, -1, -1)),
    "many": [(7 * k * k) % 20 for k in range(700)],
}


def ids_of(name):
    return torch.tensor(IDS[name], dtype=torch.int64)


@pytest.mark.parametrize("name", IDS)
@pytest.mark.parametrize("columns", graphs.COLUMNS)
def test_equals_the_reference(name, columns, isa):
    ids, x = ids_of(name), rand(20, columns)
    for dtype in DTYPES:
        table = (100 * x).to(dtype)
        assert same(gather_rows(table, ids), OPS["gather_rows"].reference(table, ids))
    codes, scale = quantize_rows(x)
    assert same(gather_rows_int8(codes, scale, ids), OPS["gather_rows_int8"].reference(codes, scale, ids))


@pytest.mark.parametrize("shape", [(20,), (20, 3, 5), (20, 0, 5), (20, 2, 2, 2)])
def test_rows_of_any_shape(shape):
    x, ids = rand(*shape), ids_of("repeated")
    assert same(gather_rows(x, ids), x[ids])


@pytest.mark.parametrize("bits", [1, 2, 4, 8])
@pytest.mark.parametrize("bf16_meta", [True, False])
def test_packed_rows_equal_the_reference_and_unpack(bits, bf16_meta, isa):
    for columns in (1, 7, 16, 17, 63, 64, 65, 130):
        x = rand(20, columns)
        codes, zero, spread = pack(x, bits, columns, 5, bf16_meta)
        decoded = unpack(codes, zero, spread, x.numel(), bits, columns).view_as(x)
        table = (codes.view(20, -1), zero, spread)
        for name in IDS:
            ids = ids_of(name)
            rows = gather_packed_rows(*table, ids, columns, bits)
            assert same(rows, OPS["gather_packed_rows"].reference(*table, ids, columns, bits))
            assert same(rows, decoded[ids])


def test_same_bits_for_every_instruction_set_and_thread_count(isa, threads):
    x, ids = rand(20, 130), ids_of("many")
    codes, scale = quantize_rows(x)
    packed = pack(x, 2, 130)

    def run():
        return (
            gather_rows(x, ids),
            gather_rows_int8(codes, scale, ids),
            gather_packed_rows(packed[0].view(20, -1), *packed[1:], ids, 130, 2),
        )

    assert same_bits(run(), on_baseline(run))


@pytest.mark.parametrize("name", IDS)
def test_gradients_equal_those_of_the_reference(name, isa):
    ids, x = ids_of(name), rand(20, 7)
    got, want = (
        with_gradients(lambda x, op=op: op(x, ids), [x], random_cotangent)
        for op in (gather_rows, OPS["gather_rows"].reference)
    )
    torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)  # sums of up to 70 terms of size 1, in any order
    codes, scale = quantize_rows(x)
    got, want = (
        with_gradients(lambda s, op=op: op(codes, s, ids), [scale], random_cotangent)
        for op in (gather_rows_int8, OPS["gather_rows_int8"].reference)
    )
    torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-3)  # the same, with codes of up to 127


def test_gradcheck():
    x, ids = rand(6, 3, dtype=torch.float64).requires_grad_(), torch.tensor([4, 4, 0, 5])
    assert gradcheck(lambda x: gather_rows(x, ids), (x,))


def test_packed_rows_say_that_they_have_no_gradient():
    codes, zero, spread = pack(rand(4, 8), 2, 8, None, False)
    out = gather_packed_rows(codes.view(4, 2), zero.requires_grad_(), spread, torch.tensor([1]), 8, 2)
    with pytest.raises(RuntimeError, match="`gather_packed_rows` has no gradient"):
        out.sum().backward()


def test_opcheck():
    x, ids = rand(6, 8), torch.tensor([4, 4, 0])
    codes, scale = quantize_rows(x)
    packed, zero, spread = pack(x, 2, 8)
    opcheck(OPS["gather_rows"].overload, (x.clone().requires_grad_(), ids))
    opcheck(OPS["gather_rows"].overload, (rand(6).requires_grad_(), ids[:0]))
    opcheck(OPS["gather_rows_int8"].overload, (codes, scale.requires_grad_(), ids))
    opcheck(OPS["gather_packed_rows"].overload, (packed.view(6, 2), zero, spread, ids, 8, 2))


@pytest.mark.parametrize(
    "error, name, ids",
    [
        (IndexError, "`ids`.*got 20 at position 1", torch.tensor([0, 20])),
        (IndexError, "`ids`.*got -1 at position 0", torch.tensor([-1])),
        (IndexError, "`ids`", torch.tensor([2**62])),
        (TypeError, "`ids`.*int32", torch.tensor([0], dtype=torch.int32)),
        (TypeError, "`ids`.*bool", torch.ones(20, dtype=torch.bool)),
        (ValueError, "`ids`.*shape", torch.tensor([[0]])),
        (ValueError, "`ids`.*shape", torch.tensor(0)),
    ],
)
def test_bad_ids(error, name, ids):
    x = rand(20, 8)
    packed, zero, spread = pack(x, 2, 8)
    with pytest.raises(error, match=name):
        gather_rows(x, ids)
    with pytest.raises(error, match=name):
        gather_rows_int8(*quantize_rows(x), ids)
    with pytest.raises(error, match=name):
        gather_packed_rows(packed.view(20, 2), zero, spread, ids, 8, 2)


CODES, META, ONE = torch.zeros(4, 2, dtype=torch.uint8), torch.zeros(4), torch.tensor([1])


@pytest.mark.parametrize(
    "error, name, args",
    [
        (ValueError, "`columns`", (CODES, META, META, ONE, 0, 2)),
        (ValueError, "`bits`.*got 3", (CODES, META, META, ONE, 8, 3)),
        (ValueError, "`codes`.*3\\] bytes", (CODES, META, META, ONE, 9, 2)),
        (ValueError, "`codes`", (CODES.view(-1), META, META, ONE, 8, 2)),
        (TypeError, "`codes`.*int8", (CODES.to(torch.int8), META, META, ONE, 8, 2)),
        (ValueError, "`zero`", (CODES, META[:3], META, ONE, 8, 2)),
        (ValueError, "`spread`", (CODES, META, META[:3], ONE, 8, 2)),
        (TypeError, "`zero`.*float64", (CODES, META.double(), META, ONE, 8, 2)),
        (TypeError, "`spread`.*bfloat16", (CODES, META, META.bfloat16(), ONE, 8, 2)),
    ],
)
def test_bad_packed_tables(error, name, args):
    with pytest.raises(error, match=name):
        gather_packed_rows(*args)


def test_bad_tables():
    with pytest.raises(ValueError, match="`x`"):
        gather_rows(torch.tensor(1.0), ONE)
    with pytest.raises(IndexError, match=r"`ids`.*0 rows"):
        gather_rows(rand(0, 3), ONE)
    with pytest.raises(TypeError, match="`codes`"):
        gather_rows_int8(CODES, META, ONE)
    with pytest.raises(ValueError, match="`scale`"):
        gather_rows_int8(CODES.to(torch.int8), META[:3], ONE)
    with pytest.raises(TypeError, match="`scale`"):
        gather_rows_int8(CODES.to(torch.int8), META.double(), ONE)
