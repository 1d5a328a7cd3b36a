"""`keep` in the three neighbour sums: the product with the edges from sources that are kept, bit for bit."""

from __future__ import annotations

import functools

import pytest
import torch
from torch.autograd import gradcheck
from torch.library import opcheck

from gossamer import Graph
from gossamer.ops import OPS
from support import graphs
from support.compare import assert_sums_agree, same_sums
from support.spmm import varying
from support.tensors import codes_of, rand


def mask(graph, share=0.5):
    return torch.rand(graph.num_src, generator=torch.Generator().manual_seed(1)) < share


@functools.cache
def hubs() -> Graph:
    """More rows and, in three of them, more edges than a kernel filters at a time; most sources are no destination."""
    rng = torch.Generator().manual_seed(0)
    dst = torch.cat([torch.full((6000,), 7), torch.full((4097,), 8), torch.full((5000,), 2599)])
    dst = torch.cat([dst, torch.randint(0, 2600, (9000,), generator=rng)])
    return Graph.from_edge_index(torch.stack([torch.randint(0, 2600, dst.shape, generator=rng), dst]), (2600, 2600))


def graph_of(name):
    return hubs() if name == "hubs" else graphs.graph(name)


def filtered(graph, value, keep):
    """rowptr, col and value of the edges from kept sources, by a plain filter."""
    src, dst = graph.edge_index
    stays = keep[src]
    rowptr = torch.zeros(graph.num_dst + 1, dtype=torch.int64)
    rowptr[1:] = torch.bincount(dst[stays], minlength=graph.num_dst).cumsum(0)
    return rowptr, graph.col[stays], None if value is None else value[stays]


def ends_of(graph, columns, turn):
    """Scales of sources and destinations, then bias, diagonal and rows: other ones in every turn."""
    scales = [rand(n, seed=2) if turn % 2 else None for n in (graph.num_src, graph.num_dst)]
    own = varying(min(graph.num_src, graph.num_dst)) if turn % 3 else None
    bias, rows = rand(columns, seed=3), rand(graph.num_dst, columns, seed=4)
    return scales, [bias if turn % 4 else None, own, rows if turn % 5 else None]


def weights_of(graph, columns, turn):
    heads = graphs.HEADS[columns]
    return (None, rand(graph.num_edges, seed=5), rand(graph.num_edges, heads, seed=5))[turn % 3]


def sums(name, graph, matrix, columns, turn, keep):
    """The three sums of a matrix, with or without `keep`."""
    scales, ends = ends_of(graph, columns, turn)
    codes, scale = codes_of(graph.num_src, columns), rand(graph.num_src, seed=6)
    if name == "spmm":
        return OPS[name](*matrix, *scales, rand(graph.num_src, columns), *ends, *[None] * 4, keep)
    if name == "spmm_int8":
        return OPS[name](*matrix, *scales, codes, scale, *ends, keep)
    rounding = (rand(columns, seed=7) if turn % 2 else None, turn if turn % 3 else None)
    return OPS[name](*matrix, *scales, codes, scale, *ends, *rounding, keep)


SUMS = ("spmm", "spmm_int8", "spmm_rows")


@pytest.mark.parametrize("op", SUMS)
@pytest.mark.parametrize("name", [*graphs.GRAPHS, "hubs"])
def test_equals_the_product_with_the_filtered_matrix(name, op, isa):
    """With weights, also of several heads, scales, diagonal, bias and rows."""
    graph = graph_of(name)
    for turn, columns in enumerate(graphs.COLUMNS if name != "hubs" else (1, 17, 64), start=len(name)):
        value, keep = weights_of(graph, columns, turn), mask(graph, (0.5, 0.02, 1.0, 0.0, 0.9)[turn % 5])
        got = sums(op, graph, (graph.rowptr, graph.col, value), columns, turn, keep)
        assert same_sums(got, sums(op, graph, filtered(graph, value, keep), columns, turn, None))


@pytest.mark.parametrize("op", SUMS)
def test_hubs_on_several_threads(op, threads, isa):
    graph, keep = hubs(), mask(hubs())
    value = rand(graph.num_edges, seed=5)
    got = sums(op, graph, (graph.rowptr, graph.col, value), 7, 5, keep)
    assert same_sums(got, sums(op, graph, filtered(graph, value, keep), 7, 5, None))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_other_types_of_rows(dtype, isa):
    graph, keep = graphs.graph("power law"), mask(graphs.graph("power law"))
    x, none = rand(400, 33).to(dtype), [None] * 7
    got = OPS["spmm"](graph.rowptr, graph.col, None, None, None, x, *none, keep)
    assert same_sums(got, OPS["spmm"](*filtered(graph, None, keep), None, None, x, *none))


@pytest.mark.parametrize("op", SUMS)
def test_what_is_dropped_does_not_matter(op, isa):
    """NaN and infinities of a row that is not kept, nor of its scale."""
    graph, keep = graphs.graph("power law"), mask(graphs.graph("power law"))
    clean = {"x": rand(400, 20), "scale": rand(400, seed=1)}
    spoiled = {name: t.clone() for name, t in clean.items()}
    spoiled["x"][~keep], spoiled["scale"][~keep] = torch.nan, torch.inf

    def run(x, scale):
        rows = (x,) if op == "spmm" else (codes_of(400, 20), scale)
        rest = {"spmm": [None] * 7, "spmm_int8": [None] * 3, "spmm_rows": [None] * 5}[op]
        return OPS[op](graph.rowptr, graph.col, None, None, None, *rows, *rest, keep)

    assert same_sums(run(**spoiled), run(**clean))


# Gradients ------------------------------------------------------------------------------------------------------


def sum_of(op, graph, columns, sign=lambda t: t):
    """`op` as a function of rows, or of the scales of int8 rows, of bias, of addend and of weights."""
    scales, (_, own, _) = ends_of(graph, columns, turn=1)
    scales, own = [sign(t) for t in scales], None if own is None else sign(own)
    codes = () if op.overload._schema.name.endswith("spmm") else (sign(codes_of(graph.num_src, columns)),)
    last = (*([None] * 4 if not codes else ()), mask(graph))
    return lambda x, bias, rows, value=None, by=op: by(
        graph.rowptr, graph.col, value, *scales, *codes, x, bias, own, rows, *last
    )


@pytest.mark.parametrize("name", ["spmm", "spmm_int8"])
@pytest.mark.parametrize("graph", graphs.GRAPHS)
def test_gradients_equal_those_of_the_reference(graph, name, isa):
    """Of rows, or of the scales of int8 rows, of bias, of addend and of weights."""
    turns, graph, op = enumerate((1, 7, 64), start=len(graph)), graphs.graph(graph), OPS[name]
    terms = 2 * max(graph.max_degree, graph.t().max_degree) + graph.num_dst + 130
    for turn, columns in turns:
        value = weights_of(graph, columns, turn)
        x = rand(graph.num_src, columns) if name == "spmm" else rand(graph.num_src)
        given = [x, rand(columns, seed=3), rand(graph.num_dst, columns, seed=4), *([] if value is None else [value])]
        run, size = sum_of(op, graph, columns), sum_of(op, graph, columns, torch.abs)
        plain, size = (functools.partial(f, by=op.reference) for f in (run, size))
        assert_sums_agree(run, plain, given, terms, magnitude=size)


def test_gradcheck():
    graph, keep = graphs.small(), torch.tensor([True, True, False, False, True])
    x, bias = (rand(*shape, dtype=torch.float64).requires_grad_() for shape in ((5, 2), (2,)))
    for shape in ((), (2,)):
        value = rand(graph.num_edges, *shape, seed=1, dtype=torch.float64).requires_grad_()
        assert gradcheck(
            lambda x, value, bias: OPS["spmm"](graph.rowptr, graph.col, value, None, None, x, bias, *[None] * 6, keep),
            (x, value, bias),
        )


def test_opcheck():
    graph, keep = graphs.small(), torch.tensor([True, True, False, False, True])
    value, scale = rand(7).requires_grad_(), rand(5).requires_grad_()
    matrix = (graph.rowptr, graph.col, value, None, None)
    opcheck(OPS["spmm"].overload, (*matrix, rand(5, 4).requires_grad_(), *[None] * 7, keep))
    opcheck(OPS["spmm_int8"].overload, (*matrix, codes_of(5, 4), scale, None, None, None, keep))
    fixed = (graph.rowptr, graph.col, rand(7), None, None)
    opcheck(OPS["spmm_rows"].overload, (*fixed, codes_of(5, 4), rand(5), *[None] * 5, keep))


@pytest.mark.parametrize("error, keep", [(ValueError, torch.ones(4).bool()), (TypeError, torch.ones(5))])
def test_bad_masks(error, keep):
    matrix = (graphs.small().rowptr, graphs.small().col, None, None, None)
    with pytest.raises(error, match="`keep`"):
        OPS["spmm"](*matrix, rand(5, 4), *[None] * 7, keep)
    for op, between in (("spmm_int8", 3), ("spmm_rows", 5)):
        with pytest.raises(error, match="`keep`"):
            OPS[op](*matrix, codes_of(5, 4), rand(5), *[None] * between, keep)
