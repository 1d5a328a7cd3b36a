"""Rows that count: which are not zero, which are best for their cost, and the edges from them."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.library import opcheck

from gossamer.ops import OPS
from support import graphs
from support.compare import UNIT, same
from support.tensors import codes_of, rand, special_rows, strided, unaligned

NONZERO, NORMS, TOP, FILTER = (OPS[n] for n in ("nonzero_rows", "row_norms_int8", "top_rows", "filter_edges"))
FLOAT_NORMS = OPS["row_norms"]
DENORMAL = 2.0**-149


def top(key, cost, budget):
    """The rows that are kept, by the kernel and by the reference."""
    args = torch.tensor(key, dtype=torch.float32), torch.tensor(cost, dtype=torch.int64), budget
    keep = TOP(*args)
    assert torch.equal(keep, TOP.reference(*args))
    return keep.nonzero().squeeze(1).tolist()


# nonzero_rows ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("columns", [0, 1, 15, 16, 17, 64])
def test_rows_that_are_not_zero(columns, isa, threads):
    """One element at any place is enough, be it a denormal, NaN or an infinity; -0.0 is zero."""
    x = torch.zeros(5 * columns + 3, columns)
    x[0] = -0.0
    for k, value in enumerate((1.0, -DENORMAL, math.nan, math.inf, -1e30)):
        x[3 + k * columns :][range(columns), range(columns)] = value
    want = torch.arange(len(x)) >= 3
    for given_x in (x, strided(x), unaligned(x), x.double(), x.bfloat16()):
        assert torch.equal(NONZERO(given_x), NONZERO.reference(given_x))
    assert torch.equal(NONZERO(x), want)


def test_many_rows_for_many_threads(threads):
    x = rand(30_000, 3) * (rand(30_000, 1, seed=1) > 1)
    assert torch.equal(NONZERO(x), (x != 0).any(1))


# row_norms ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("columns", [0, 1, 15, 16, 17, 64, 130, 5000])
def test_norms_of_float_rows(columns, isa, threads):
    """Sixteen sums and then one: a relative error of at most a rounding per sixteen columns, plus the last few."""
    x = rand(40, columns)
    x[0] = 0
    for given_x in (x, strided(x), unaligned(x), x.double(), x.bfloat16()):
        got, want = FLOAT_NORMS(given_x), FLOAT_NORMS.reference(given_x)
        torch.testing.assert_close(got, want, rtol=(columns / 16 + 8) * UNIT, atol=0)
    assert FLOAT_NORMS(x)[0] == 0
    if columns:
        x[1, -1], x[2, 0] = math.nan, -math.inf
        assert FLOAT_NORMS(x)[1].isnan() and FLOAT_NORMS(x)[2].isinf()


# row_norms_int8 -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("columns", [0, 1, 15, 16, 17, 64, 130])
def test_norms_of_int8_rows(columns, isa, threads):
    """Sums of integers; the root, where torch may be off by one place, and the scale round. A NaN stays."""
    codes, scale = codes_of(40, columns), rand(40, seed=1).abs()
    codes[0], scale[1], scale[2], scale[3] = 0, 0.0, math.nan, math.inf
    got, want = NORMS(codes, scale), NORMS.reference(codes, scale)
    torch.testing.assert_close(got, want, rtol=4 * UNIT, atol=0, equal_nan=True)
    exact = torch.linalg.vector_norm(codes.double() * scale.double().unsqueeze(1), dim=1)
    finite = got.isfinite()
    torch.testing.assert_close(got.double()[finite], exact[finite], rtol=4 * UNIT, atol=0)
    assert got[2].isnan() and not got[finite][:2].any()


def test_norms_of_the_largest_codes(isa):
    codes = torch.full((3, 70_000), -127, dtype=torch.int8)  # their squares sum up to more than 2^30
    exact = torch.full((3,), 127 * 70_000**0.5)
    torch.testing.assert_close(NORMS(codes, torch.ones(3)), exact, rtol=4 * UNIT, atol=0)


# top_rows -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "key, cost, budget, kept",
    [
        ([], [], 5, []),
        ([1, 2, 3], [1, 1, 1], 2, [1, 2]),
        ([2, 2, 2, 2], [1, 1, 1, 1], 2, [0, 1]),  # ties by ascending row
        ([2, 2, 2, 2], [1, 3, 1, 1], 3, [0]),  # the second does not fit, so none after it counts
        ([0.0, -0.0, 1, 0], [0, 0, 1, 0], 9, [2]),  # zeros never
        ([5, 3, 2], [10, 1, 1], 9, [1, 2]),  # what alone exceeds the budget is passed over
        ([math.nan, 1, math.inf, 2], [50, 1, 50, 1], 5, [0, 2]),  # kept whatever they cost, and they use up the rest
        ([math.nan, 1, math.inf, 2], [2, 1, 2, 1], 5, [0, 2, 3]),
        ([-math.inf, 1], [1, 1], 1, [0]),
        ([3, 2, 1], [1, 1, 1], 0, []),
        ([3, 2, 1], [0, 0, 1], 0, [0, 1]),  # costs nothing
        ([3, 2, 1], [1, 1, 1], 2**62, [0, 1, 2]),
        ([DENORMAL, 2 * DENORMAL, 0], [1, 1, 1], 1, [1]),
        ([3e38, 1e-38, 1.0], [1, 1, 1], 2, [0, 2]),
        ([1 + k * 2.0**-23 for k in (3, 1, 4, 1, 5)], [1] * 5, 3, [0, 2, 4]),  # equal in their highest 16 bits
    ],
)
def test_the_best_rows(key, cost, budget, kept, isa):
    assert top(key, cost, budget) == kept


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 1.0])
def test_the_best_of_many_rows(share, threads):
    """Enough rows for several threads to look at a part each; many keys are equal."""
    key, cost = (rand(200_000).abs() * 64).round() / 64, codes_of(1, 200_000)[0].abs().long()
    key[150_000], key[70] = math.inf, math.nan
    budget = int(share * int(cost.sum()))
    assert torch.equal(TOP(key, cost, budget), TOP.reference(key, cost, budget))


KEYS = st.sampled_from([0.0, DENORMAL, 0.5, 1.0, 1 + 2**-23, 1 + 2**-9, 2.0, 3e38]) | st.floats(0, 10, width=32)


@settings(max_examples=300, deadline=None)
@given(rows=st.lists(st.tuples(KEYS, st.integers(0, 6)), max_size=40), budget=st.integers(0, 60))
def test_the_longest_run_of_the_best_within_the_budget(rows, budget):
    keep = top([key for key, _ in rows], [cost for _, cost in rows], budget)
    order = sorted((-key, k) for k, (key, cost) in enumerate(rows) if key > 0 and cost <= budget)
    spent = sum(rows[k][1] for k in keep)
    assert sorted(k for _, k in order[: len(keep)]) == keep and spent <= budget
    assert len(keep) == len(order) or spent + rows[order[len(keep)][1]][1] > budget


@pytest.mark.parametrize("budget", [0, 1, 777, 50_000, 10**9])
def test_many_rows(budget, isa, threads):
    """Of random keys, and of keys in one bin: what is kept does not depend on how the partition goes."""
    cost = codes_of(5000, 1).squeeze(1).abs().long()
    for key in (rand(5000).abs(), 1 + 2**-9 * rand(5000).abs().clamp(max=1), torch.ones(5000)):
        assert torch.equal(TOP(key, cost, budget), TOP.reference(key, cost, budget))


def test_strided_keys_and_costs():
    key, cost = rand(50).abs(), codes_of(50, 1).squeeze(1).abs().long()
    assert torch.equal(TOP(strided(key), strided(cost), 900), TOP(key, cost, 900))


# filter_edges ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("share", [0.0, 0.1, 0.7, 1.0])
@pytest.mark.parametrize("name", graphs.GRAPHS)
def test_filtered_edges_are_those_of_a_naive_filter_in_their_order(name, share, threads):
    graph = graphs.graph(name)
    keep = torch.rand(graph.num_src, generator=torch.Generator().manual_seed(1)) < share
    src, dst = graph.edge_index
    at = [edge for edge, source in enumerate(src.tolist()) if keep[source]]
    for value in (None, rand(graph.num_edges), rand(graph.num_edges, 2), rand(graph.num_edges).double()):
        rowptr, col, kept = found = FILTER(graph.rowptr, graph.col, value, keep)
        assert torch.equal(col.long(), src[at]) and torch.equal(
            torch.arange(graph.num_dst).repeat_interleave(rowptr.diff()), dst[at]
        )
        assert torch.equal(kept, torch.empty(0) if value is None else value[at])
        assert same(found, FILTER.reference(graph.rowptr, graph.col, value, keep))


# Both sides of the border ---------------------------------------------------------------------------------------


def test_opcheck():
    graph = graphs.small()
    keep = torch.tensor([True, False, False, True, True])
    opcheck(NONZERO.overload, (special_rows(),))
    opcheck(NORMS.overload, (codes_of(4, 7), torch.rand(4)))
    opcheck(TOP.overload, (torch.tensor([1.0, math.nan, 0.0]), torch.tensor([1, 2, 3]), 4))
    for value in (None, rand(7), rand(7, 2)):
        opcheck(FILTER.overload, (graph.rowptr, graph.col, value, keep))


KEY, COST, MASK, GRAPH = torch.ones(3), torch.ones(3, dtype=torch.int64), torch.ones(5).bool(), graphs.small()


@pytest.mark.parametrize(
    "op, args, error, message",
    [
        (NONZERO, [rand(3)], ValueError, r"`x`.*\[rows, columns\]"),
        (NONZERO, [rand(3, 2).half()], TypeError, "`x`.*float16"),
        (NORMS, [rand(3, 2), rand(3)], TypeError, "`codes`.*float32"),
        (NORMS, [codes_of(3, 2), rand(2)], ValueError, "`scale`.*one number per row"),
        (NORMS, [codes_of(3, 2), rand(3).double()], TypeError, "`scale`.*float64"),
        (NORMS, [codes_of(1, 2**18), rand(1)], ValueError, "`codes` must have at most .* columns.*got 262144.*split"),
        (TOP, [KEY.double(), COST, 1], TypeError, "`key`.*float64"),
        (TOP, [KEY.unsqueeze(1), COST, 1], ValueError, r"`key`.*\[rows\]"),
        (TOP, [KEY, COST.int(), 1], TypeError, "`cost`.*int32"),
        (TOP, [KEY, COST[:2], 1], ValueError, "`cost`.*one for each `key`"),
        (TOP, [KEY, COST, -1], ValueError, r"`budget` must be at least 0 \(got -1\)"),
        (TOP, [KEY, -COST, 1], ValueError, r"`cost` must hold no negative number \(got -1\)"),
        (TOP, [KEY, COST * 2**62, 1], ValueError, "`cost` must hold numbers up to .*overflow.*got 4611686018427387904"),
        (FILTER, [GRAPH.rowptr, GRAPH.col, None, MASK[:3]], IndexError, "`col`"),
        (FILTER, [GRAPH.rowptr, GRAPH.col, None, MASK.int()], TypeError, "`keep`.*int32"),
        (FILTER, [GRAPH.rowptr, GRAPH.col, None, MASK.view(1, 5)], ValueError, "`keep`.*one truth value per source"),
        (FILTER, [GRAPH.rowptr, GRAPH.col, rand(6), MASK], ValueError, "`value`.*nnz = 7"),
        (FILTER, [GRAPH.rowptr, GRAPH.col, COST, MASK], TypeError, "`value`.*int64"),
    ],
)
def test_bad_arguments(op, args, error, message):
    with pytest.raises(error, match=message):
        op(*args)
