from __future__ import annotations

import pytest
import torch
from torch.library import opcheck

from gossamer.ops import OPS, gather_scalar, spmm_scalar
from gossamer.ops.csr import Sparse
from gossamer.ops.pack_ids import row_bytes
from gossamer.ops.spmm import row_sums
from support import graphs
from support.compare import on_baseline, same_bits, same_sums
from support.spmm import DIAGONALS
from support.tensors import rand

COLUMNS = (1, 7, 16, 17, 64, 130, 260)


def codes_of(rows, columns, bits):
    rng = torch.Generator().manual_seed(bits)
    return torch.randint(0, 256, (rows, row_bytes(columns, bits)), generator=rng, dtype=torch.uint8)


def matrix(graph, weighted, scaled):
    return Sparse(
        graph.rowptr,
        graph.col,
        rand(graph.num_edges, seed=1) if weighted else None,
        rand(graph.num_src, seed=2) if scaled else None,
        rand(graph.num_dst, seed=3) if scaled else None,
    )


@pytest.mark.parametrize("name", graphs.GRAPHS)
@pytest.mark.parametrize("bits", [1, 2, 4, 8])
def test_equals_decoding_first(name, bits, isa):
    """To the bit: the same products in the same order. The reference sums in the order of torch."""
    graph, turn = graphs.graph(name), graphs.GRAPHS.index(name)
    for columns in COLUMNS:
        turn += 1
        table = rand(2**bits, columns if turn % 2 else 1)
        own = min(graph.num_src, graph.num_dst)
        diagonal = [None, *(make(own) for make in DIAGONALS.values())][turn % 3]
        a, codes = matrix(graph, turn % 4 < 2, turn % 5 < 3), codes_of(graph.num_src, columns, bits)
        got = spmm_scalar(a, codes, table, diagonal, columns, bits)
        x = gather_scalar(codes, table, torch.arange(graph.num_src), columns, bits)
        assert same_sums(got, row_sums(a, x, diagonal))
        want = OPS["spmm_scalar"].reference(*a, codes, table, diagonal, columns, bits)
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)  # at most 400 terms of size 1 in any order


@pytest.mark.parametrize("per_column", [False, True])
def test_same_bits_for_every_instruction_set_and_thread_count(per_column, isa, threads):
    graph = graphs.graph("power law")

    def run():
        return [
            spmm_scalar(matrix(graph, True, True), codes_of(400, 130, bits), table, rand(400), 130, bits)
            for bits in (1, 2, 4, 8)
            for table in [rand(2**bits, 130 if per_column else 1)]
        ]

    assert same_bits(run(), on_baseline(run))


def test_large_results_go_past_the_caches(isa):
    """70,000 destinations: rows are written by non-temporal stores."""
    rowptr, col = torch.arange(0, 140_001, 2), (torch.arange(140_000) * 7 % 20).int()
    codes, table = codes_of(20, 128, 1), rand(2, 1)
    got = spmm_scalar(rowptr, col, None, None, None, codes, table, None, 128, 1)
    x = gather_scalar(codes, table, torch.arange(20), 128, 1)
    assert torch.equal(got, x[col[::2].long()] + x[col[1::2].long()])


def test_nothing_but_the_codes_is_read(isa):
    """A row's last codes share no byte with what follows: other rows around them change nothing."""
    graph = graphs.graph("isolated nodes")
    for bits in (1, 2, 4, 8):
        codes = codes_of(14, 19, bits)
        a, table = matrix(graph, False, False), rand(2**bits, 19)
        got = spmm_scalar(a, codes[1:13], table, None, 19, bits)
        assert same_bits(got, spmm_scalar(a, codes[1:13].clone(), table, None, 19, bits))


def test_opcheck():
    graph = graphs.small()
    codes, table = codes_of(5, 18, 2), rand(4, 18)
    opcheck(OPS["spmm_scalar"].overload, (*matrix(graph, True, True), codes, table, rand(4), 18, 2))


def test_no_gradient_is_an_error_that_says_so():
    graph = graphs.small()
    a = matrix(graph, True, False)
    a.value.requires_grad_()
    with pytest.raises((RuntimeError, NotImplementedError), match="spmm_scalar"):
        spmm_scalar(a, codes_of(5, 18, 2), rand(4, 1), None, 18, 2).sum().backward()


ROWPTR, COL = torch.tensor([0, 2, 3]), torch.tensor([0, 1, 2], dtype=torch.int32)
CODES, TABLE = torch.zeros(3, 2, dtype=torch.uint8), torch.zeros(4, 8)


@pytest.mark.parametrize(
    "error, said, changed",
    [
        (ValueError, "`columns` must be from 1 to", {"columns": 0}),
        (ValueError, r"`bits`.*got 3", {"bits": 3}),
        (ValueError, r"`codes`.*\[rows, 3\] bytes", {"columns": 9}),
        (TypeError, "`codes`.*int8", {"codes": CODES.to(torch.int8)}),
        (ValueError, r"`table`.*\[4, 1\] for all columns or \[4, 8\]", {"table": TABLE[:3]}),
        (IndexError, r"`col`.*got 2", {"codes": CODES[:2]}),
        (ValueError, r"`value`.*\[3\], one number per edge", {"value": torch.ones(3, 2)}),
        (TypeError, "`value`.*int64", {"value": torch.ones(3).long()}),
        (ValueError, r"`src_scale`.*\[3\], one number per node", {"src_scale": torch.ones(2)}),
        (ValueError, r"`dst_scale`.*\[2\], one number per node", {"dst_scale": torch.ones(3)}),
        (ValueError, r"`diagonal`.*\[2\]", {"diagonal": torch.ones(3)}),
        (TypeError, "`diagonal`.*float64", {"diagonal": torch.ones(2).double()}),
    ],
)
def test_bad_arguments(error, said, changed):
    given = {
        "rowptr": ROWPTR, "col": COL, "value": None, "src_scale": None, "dst_scale": None, "codes": CODES,
        "table": TABLE, "diagonal": None, "columns": 8, "bits": 2,
    }  # fmt: skip
    with pytest.raises(error, match=said):
        spmm_scalar(*(given | changed).values())
