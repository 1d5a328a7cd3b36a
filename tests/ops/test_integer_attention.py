"""GAT's attention in integers."""

from __future__ import annotations

import math

import pytest
import torch
from torch.library import opcheck

import gossamer as gs
from gossamer.ops import OPS, integer_attention
from gossamer.ops.integer_attention import STEP, TABLE_SIZE, attention_codes, attention_table
from gossamer.ops.requantize import Requantize
from support import graphs
from support.compare import on_baseline, same_bits
from support.integer import codes, factors, results
from support.tensors import rand

FLOATS = Requantize(bits=32)
HEADS = [(1, 16, 7), (2, 16, 16), (4, 64, 64), (8, 16, 8), (3, 32, 20), (1, 80, 80)]
"""Heads, columns stored for each, and those that count."""


def call(
    graph: gs.Graph, heads: int, stored: int, width: int, bits: int, mean: bool, to: Requantize, edge: bool = True
):
    a_src, a_dst = rand(graph.num_src, heads) * 2, rand(graph.num_dst, heads, seed=1)
    term = rand(graph.num_edges, heads, seed=2) if edge else None
    mult = factors(width if mean else heads * width, 2.0)
    x = codes(graph.num_src, heads * stored, bits)
    return graph.rowptr, graph.col, a_src, a_dst, term, 0.2, x, bits, 3, width, mean, mult, to


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("name", graphs.GRAPHS)
def test_equals_the_reference(name, bits, isa):
    graph = graphs.graph(name)
    for heads, stored, width in HEADS:
        for mean in (False, True):
            columns = width if mean else heads * width
            tos = results(graph.num_dst, columns, 8)
            for to in (tos[0], tos[1], tos[4]):
                args = call(graph, heads, stored, width, bits, mean, to)
                assert same_bits(OPS["integer_attention"](*args), OPS["integer_attention"].reference(*args))


@pytest.mark.parametrize("degree", [1, 32_768, 32_769, 70_000])
def test_hubs(degree, isa):
    graph = gs.Graph(torch.tensor([0, degree]), torch.arange(degree, dtype=torch.int32) % 50, 50)
    args = call(graph, 2, 16, 16, 8, False, FLOATS)
    assert same_bits(integer_attention(*args), OPS["integer_attention"].reference(*args))


def test_a_thousand_equal_neighbours_do_not_vanish(isa):
    graph = gs.Graph(torch.tensor([0, 1000]), torch.arange(1000, dtype=torch.int32), 1000)
    x = torch.full((1000, 16), 103, dtype=torch.uint8)
    zeros = torch.zeros(1000, 1)
    args = (graph.rowptr, graph.col, zeros, zeros[:1], None, 0.2, x, 8, 3, 16, False, torch.ones(16), FLOATS)
    assert torch.allclose(integer_attention(*args), torch.full((1, 16), 100.0), rtol=1e-6)


def test_is_near_softmax(isa):
    """Weights are off by half a code of 255, and their logarithms by half a step."""
    graph = graphs.graph("power law")
    rowptr, col, a_src, a_dst, _, leak, x, bits, zero, *_ = call(graph, 4, 16, 16, 8, False, FLOATS, False)
    got = integer_attention(rowptr, col, a_src, a_dst, None, leak, x, bits, zero, 16, False, torch.ones(64), FLOATS)
    p = gs.ops.gat_attention(graph, a_src, a_dst, None, leak)
    want = gs.ops.spmm(graph, (x.float() - zero), value=p)
    assert ((got - want).abs() <= 0.06 * 255).all()
    assert float((got - want).norm() / want.norm()) < 0.01


def test_the_table():
    table = attention_table(torch.device("cpu"))
    assert table[0] == 255 and table[-1] == 0 and (table[1:].int() <= table[:-1].int()).all()
    exact = [255 * math.exp(-t * STEP) for t in range(TABLE_SIZE)]
    assert all(abs(float(code) - e) <= 0.5 for code, e in zip(table, exact, strict=True))


def test_the_largest_neighbour_has_the_largest_code():
    graph = graphs.graph("power law")
    found = attention_codes(graph.rowptr, graph.col, rand(400, 3) * 20, None, None, 0.2)
    assert found.shape == (graph.num_edges, 3)
    tops = torch.segment_reduce(found.float(), "max", offsets=graph.rowptr, axis=0)[graph.degree > 0]
    assert (tops == 255).all()


def test_without_edges_the_result_is_the_shift(isa):
    graph = graphs.graph("isolated nodes")
    shift = rand(16)
    *rest, _ = call(graph, 1, 16, 16, 8, False, FLOATS)
    out = integer_attention(*rest, Requantize(shift=shift, bits=32))
    alone = out[graph.degree == 0]
    assert torch.equal(alone, shift.expand(len(alone), 16))


def test_columns_that_are_filled_up_hold_the_zero_point(isa):
    graph = graphs.graph("power law")
    *rest, mult, _ = call(graph, 2, 16, 5, 8, False, FLOATS)
    out = integer_attention(*rest, torch.nn.functional.pad(mult, (0, 6)), Requantize(zero=9))
    assert out.shape == (400, 16) and (out[:, 10:] == 9).all()
    assert same_bits(out[:, :10], integer_attention(*rest, mult, Requantize(zero=9)))


def test_same_bits_for_every_instruction_set_and_thread_count(isa, threads):
    graph = graphs.graph("power law")

    def run():
        return [
            integer_attention(*call(graph, heads, stored, width, bits, mean, FLOATS))
            for heads, stored, width in HEADS
            for bits in (8, 4)
            for mean in (False, True)
        ]

    assert same_bits(run(), on_baseline(run))


def test_opcheck():
    args = call(graphs.small(), 2, 16, 5, 8, False, Requantize())
    opcheck(OPS["integer_attention"].overload, OPS["integer_attention"].flatten(*args))


def test_bad_arguments():
    graph = graphs.small()
    good = call(graph, 2, 16, 16, 8, False, FLOATS)
    for place, value, message in (
        (2, rand(5, 3), r"`a_dst`.*\[4, 3\]"),
        (2, rand(4, 2), r"`a_src`.*\[5, heads\]"),
        (5, 2.0, r"`leak` must be from 0 to 1, the slope of leaky ReLU \(got 2.0\)"),
        (8, 300, r"`x_zero` must be a code of 8 bits"),
        (9, 17, r"`width` must be from 1 to 16, the columns of one head \(got 17\)"),
        (11, torch.ones(31), r"`mult` must have at least 32 numbers"),
    ):
        with pytest.raises(ValueError, match=message):
            integer_attention(*good[:place], value, *good[place + 1 :])
