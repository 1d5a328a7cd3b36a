"""Sums and maxima of neighbours' codes, unweighted and by weights that are codes."""

from __future__ import annotations

import pytest
import torch
from torch.library import opcheck

import gossamer as gs
from gossamer.ops import OPS, integer_max, integer_sum, integer_weighted_sum
from gossamer.ops.requantize import Requantize, unpacked
from support import graphs
from support.compare import on_baseline, same_bits
from support.integer import codes, factors, results

COLUMNS = (0, 2, 6, 16, 18, 64, 130, 300)
FLOATS = Requantize(bits=32)


def weights_of(graph: gs.Graph, seed: int = 0) -> torch.Tensor:
    return codes(graph.num_edges, 1, seed=seed).squeeze(1)


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("name", graphs.GRAPHS)
def test_sums_equal_the_reference(name, bits, isa):
    graph = graphs.graph(name)
    square = graph.num_dst <= graph.num_src
    for turn, columns in enumerate(COLUMNS):
        x, mult = codes(graph.num_src, columns, bits), factors(columns, 0.05)
        neighbours, own = ((1, 0), (1, 1), (256, 300), (-3, -7))[turn % 4]
        for to in results(graph.num_dst, columns, bits):
            args = (graph.rowptr, graph.col, x, bits, 7, neighbours, own if square else 0, mult, to)
            assert same_bits(OPS["integer_sum"](*args), OPS["integer_sum"].reference(*args))


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("name", graphs.GRAPHS)
def test_weighted_sums_and_maxima_equal_the_reference(name, bits, isa):
    graph = graphs.graph(name)
    own = codes(graph.num_dst, 1, seed=5).squeeze(1) if graph.num_dst <= graph.num_src else None
    for columns in COLUMNS[1:]:
        x, mult = codes(graph.num_src, columns, bits), factors(columns, 1e-3)
        for k, to in enumerate(results(graph.num_dst, columns, bits)):
            args = (graph.rowptr, graph.col, weights_of(graph), own if k % 2 else None, x, bits, 3, mult, to)
            op = OPS["integer_weighted_sum"]
            assert same_bits(op(*args), op.reference(*args))
        args = (graph.rowptr, graph.col, x, bits, 3)
        assert same_bits(OPS["integer_max"](*args), OPS["integer_max"].reference(*args))


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("degree", [0, 1, 255, 256, 257, 4096, 4097, 70_000])
def test_hubs(degree, bits, isa):
    """Partial sums of sixteen bits end at 257 codes of eight bits, and at 4,369 of four."""
    graph = gs.Graph(torch.tensor([0, degree, degree]), torch.arange(degree, dtype=torch.int32) % 3, 3)
    x = torch.full((3, 16 if bits == 8 else 8), 255, dtype=torch.uint8)  # the largest codes
    for neighbours, own in ((1, 1), (256, 300), (32768, 1)):
        args = (graph.rowptr, graph.col, x, bits, 0, neighbours, own, torch.ones(16), FLOATS)
        assert same_bits(integer_sum(*args), OPS["integer_sum"].reference(*args))
    args = (graph.rowptr, graph.col, weights_of(graph) | 128, None, x, bits, 0, torch.ones(16), FLOATS)
    assert same_bits(integer_weighted_sum(*args), OPS["integer_weighted_sum"].reference(*args))


def test_sums_beyond_int32_are_exact(isa):
    """32,768 * 70,000 * 255 = 5.8e11; at the bound both ways agree."""
    graph = gs.Graph(torch.tensor([0, 70_000]), torch.zeros(70_000, dtype=torch.int32), 1)
    x = torch.full((1, 16), 255, dtype=torch.uint8)
    out = integer_sum(graph.rowptr, graph.col, x, 8, 0, 32768, 0, torch.ones(16), FLOATS)
    assert torch.equal(out, torch.full((1, 16), 32768.0 * 70_000 * 255))
    codes_out = integer_sum(graph.rowptr, graph.col, x, 8, 0, 32768, 0, torch.full((16,), 1e-10), Requantize())
    assert (codes_out == round(32768 * 70_000 * 255 * 1e-10)).all()


def test_are_the_sums_of_a_matrix(isa):
    graph = graphs.graph("power law")
    x, zero = codes(400, 64), 100
    dense = torch.zeros(400, 400, dtype=torch.float64)
    dense.index_put_(tuple(graph.edge_index.flip(0)), torch.ones(graph.num_edges, dtype=torch.float64), accumulate=True)
    want = dense @ (x.double() - zero) + (x.double() - zero)
    out = integer_sum(graph.rowptr, graph.col, x, 8, zero, 1, 1, torch.ones(64), FLOATS)
    assert torch.equal(out, want.float())


def test_the_first_columns_alone(isa):
    graph = graphs.graph("power law")
    x, mult = codes(400, 64), factors(64, 0.1)
    whole = integer_sum(graph.rowptr, graph.col, x, 8, 5, 1, 1, mult, FLOATS)
    assert torch.equal(integer_sum(graph.rowptr, graph.col, x, 8, 5, 1, 1, mult[:7], FLOATS), whole[:, :7])


def test_edges_in_any_order(isa):
    graph = graphs.graph("power law")
    back = graph.t().t()  # the same edges, sources ascending
    shuffled = gs.Graph.from_edge_index(graph.edge_index[:, torch.randperm(graph.num_edges)], 400)
    x, mult = codes(400, 64), factors(64, 0.1)
    outs = [integer_sum(g.rowptr, g.col, x, 8, 5, 1, 0, mult, Requantize()) for g in (graph, back, shuffled)]
    assert torch.equal(outs[0], outs[1]) and torch.equal(outs[0], outs[2])


def test_a_maximum_without_neighbours_is_the_zero_point(isa):
    graph = graphs.graph("isolated nodes")
    out = integer_max(graph.rowptr, graph.col, codes(12, 20), 8, 77)
    assert (out[graph.degree == 0] == 77).all()
    four = integer_max(graph.rowptr, graph.col, codes(12, 20, 4), 4, 7)
    assert (unpacked(four, 4)[graph.degree == 0] == 7).all()


def test_same_bits_for_every_instruction_set_and_thread_count(isa, threads):
    graph = graphs.graph("power law")

    def run():
        made = []
        for bits in (8, 4):
            x, mult = codes(400, 130, bits), factors(130, 0.05)
            for to in results(400, 130, bits):
                made.append(integer_sum(graph.rowptr, graph.col, x, bits, 7, 1, 1, mult, to))
                made.append(
                    integer_weighted_sum(graph.rowptr, graph.col, weights_of(graph), None, x, bits, 7, mult, to)
                )
            made.append(integer_max(graph.rowptr, graph.col, x, bits, 7))
        return made

    assert same_bits(run(), on_baseline(run))


def test_opcheck():
    graph = graphs.small()
    x, mult, own = codes(5, 8), factors(8, 0.1), codes(4, 1).squeeze(1)
    for to in results(4, 8, 8):
        args = (graph.rowptr, graph.col, x, 8, 3, 1, 1, mult, to)
        opcheck(OPS["integer_sum"].overload, OPS["integer_sum"].flatten(*args))
        args = (graph.rowptr, graph.col, weights_of(graph), own, x, 8, 3, mult, to)
        opcheck(OPS["integer_weighted_sum"].overload, OPS["integer_weighted_sum"].flatten(*args))
    opcheck(OPS["integer_max"].overload, (graph.rowptr, graph.col, x, 8, 3))


def test_bad_arguments():
    graph = graphs.small()
    x, mult = codes(5, 8), torch.ones(8)

    def run(x=x, bits=8, zero=0, neighbours=1, own=0, mult=mult, to=FLOATS, graph=graph):
        return integer_sum(graph.rowptr, graph.col, x, bits, zero, neighbours, own, mult, to)

    with pytest.raises(IndexError, match="`col` must hold ids from 0 to 2"):
        run(codes(3, 8))
    with pytest.raises(ValueError, match=r"`x_zero` must be a code of 8 bits.*got 256"):
        run(zero=256)
    with pytest.raises(ValueError, match="`neighbours` must be from -32768 to 32768"):
        run(neighbours=32769)
    with pytest.raises(ValueError, match="`mult` must have at most 8 numbers"):
        run(mult=torch.ones(9))
    wide = graphs.graph("bipartite, few sources")
    with pytest.raises(ValueError, match="`own` must be 0 where destinations are no sources"):
        run(codes(4, 8), own=1, graph=wide)
    with pytest.raises(ValueError, match=r"`weight`.*one code per edge"):
        integer_weighted_sum(graph.rowptr, graph.col, weights_of(graph)[:-1], None, x, 8, 0, mult, FLOATS)
