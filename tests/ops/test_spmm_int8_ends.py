"""Neighbour sums of int8 rows with factors of sources, and with what is added: own rows, other rows, a bias."""

from __future__ import annotations

import functools

import pytest
import torch
from torch.library import opcheck

from gossamer.ops import OPS, dequantize_rows, quantize_rows
from support import graphs
from support.compare import UNIT, assert_sums_agree, on_baseline, random_cotangent, same_bits, with_gradients
from support.spmm import DIAGONALS, ENDS, constant, varying
from support.tensors import codes_of, rand


def with_ends(graph, op, codes, ends, scales=True, diagonal=varying, value=None):
    """`op` as a function of the row scales, and then of the bias and the rows that `ends` asks for."""
    src_scale, dst_scale = (rand(n, seed=s).abs() for n, s in ((graph.num_src, 5), (graph.num_dst, 2)))
    src_scale, dst_scale = (src_scale, dst_scale) if scales else (None, None)

    def function(scale, *given):
        named = dict(zip([name for name in ("bias", "rows") if name in ends], given, strict=True))
        own = (
            named.get("bias"),
            diagonal(min(graph.num_src, graph.num_dst)) if "diagonal" in ends else None,
            named.get("rows"),
        )
        return op(graph.rowptr, graph.col, value, src_scale, dst_scale, codes, scale, *own)

    return function


def ends_of(graph, columns, ends):
    shapes = {"bias": (columns,), "rows": (graph.num_dst, columns)}
    return [rand(graph.num_src, seed=1).abs(), *(100 * rand(*shapes[n], seed=6) for n in shapes if n in ends)]


@pytest.mark.parametrize("name", graphs.GRAPHS)
def test_equals_the_reference(name, isa):
    """Forward and the gradients of scale, bias and rows, for every combination."""
    graph = graphs.graph(name)
    terms = 2 * max(graph.max_degree, graph.t().max_degree) + 2 * max(graphs.COLUMNS) + graph.num_dst
    for turn, columns in enumerate(graphs.COLUMNS, start=graphs.GRAPHS.index(name)):
        for ends in (ENDS[turn % 8], ENDS[(turn + 3) % 8]):
            codes, given = codes_of(graph.num_src, columns), ends_of(graph, columns, ends)
            diagonal = list(DIAGONALS.values())[turn // 2 % 2]
            native, reference, sizes = (
                with_ends(graph, op, q, ends, turn % 3 > 0, own)
                for op, q, own in (
                    (OPS["spmm_int8"], codes, diagonal),
                    (OPS["spmm_int8"].reference, codes, diagonal),
                    (OPS["spmm_int8"].reference, codes.abs(), lambda nodes, d=diagonal: d(nodes).abs()),
                )
            )
            assert_sums_agree(native, reference, given, terms, magnitude=sizes)


def test_equals_spmm_of_the_decoded_rows(isa):
    graph = graphs.graph("power law")
    codes, scale = quantize_rows(rand(400, 130))
    value, src_scale, dst_scale = rand(graph.num_edges, seed=1), rand(400, seed=2), rand(400, seed=3)
    bias, rows, diagonal = rand(130, seed=4), rand(400, 130, seed=5), varying(400)

    def floats(sign, x):
        weights = [sign(t) for t in (value, src_scale, dst_scale)]
        return OPS["spmm"](graph.rowptr, graph.col, *weights, x, sign(bias), sign(diagonal), sign(rows), *[None] * 4)

    args = (graph.rowptr, graph.col, value, src_scale, dst_scale, codes, scale, bias, diagonal, rows)
    decoded = dequantize_rows(codes, scale)
    bound = 2 * (graph.max_degree + 8) * UNIT * floats(torch.abs, decoded.abs())
    assert ((OPS["spmm_int8"](*args) - floats(torch.clone, decoded)).abs() <= bound).all()


def test_every_width(isa):
    graph = graphs.graph("reversed star")  # at most one edge to a row: no order of sums
    for columns in range(1, 131):
        ends = ENDS[columns % 8]
        codes, given = codes_of(300, columns), ends_of(graph, columns, ends)
        out, want = (with_ends(graph, op, codes, ends)(*given) for op in (OPS["spmm_int8"], OPS["spmm_int8"].reference))
        assert torch.equal(out, want), columns


def test_gradient_of_weights_with_factors(isa):
    graph = graphs.graph("power law")
    codes, (scale, *_) = codes_of(400, 34), ends_of(graph, 34, set())

    def run(op, codes, diagonal=varying):
        return lambda value: with_ends(graph, op, codes, {"diagonal"}, diagonal=diagonal, value=value)(scale)

    sizes = run(OPS["spmm_int8"].reference, codes.abs(), lambda nodes: varying(nodes).abs())
    for value in (rand(graph.num_edges, seed=3), rand(graph.num_edges, 2, seed=3)):
        pair = (run(op, codes) for op in (OPS["spmm_int8"], OPS["spmm_int8"].reference))
        assert_sums_agree(*pair, [value], graph.max_degree + 34, magnitude=sizes)


@pytest.mark.parametrize("k", [-20, -1, 20])
def test_scaling_an_operand_scales_the_result_exactly(k):
    """The scales, what is added and the factor of sources; d scale stays, d bias and d rows do too."""
    graph = graphs.graph("power law")
    codes, (scale, bias, rows) = codes_of(400, 17), ends_of(graph, 17, {"bias", "rows"})
    function = with_ends(graph, OPS["spmm_int8"], codes, {"bias", "diagonal", "rows"})
    out, grads = with_gradients(function, [scale, bias, rows], random_cotangent)
    scaled, again = with_gradients(function, [t * 2.0**k for t in (scale, bias, rows)], random_cotangent)
    assert torch.equal(scaled, out * 2.0**k) and same_bits(again, grads)

    def by_source(src_scale):
        return OPS["spmm_int8"](graph.rowptr, graph.col, None, src_scale, None, codes, scale)

    assert torch.equal(by_source(rand(400, seed=5) * 2.0**k), by_source(rand(400, seed=5)) * 2.0**k)


def test_same_bits_for_every_instruction_set_and_thread_count(isa, threads):
    graph = graphs.graph("power law")
    function = with_ends(graph, OPS["spmm_int8"], codes_of(400, 130), {"bias", "diagonal", "rows"})

    def run():
        out, grads = with_gradients(function, ends_of(graph, 130, {"bias", "rows"}), random_cotangent)
        return out, *grads

    assert same_bits(run(), on_baseline(run))


def test_ends_may_have_another_float_type(isa):
    """They are added in float32, and their gradients come back in their own type."""
    graph = graphs.graph("power law")
    codes, (scale, bias, rows) = codes_of(400, 17), ends_of(graph, 17, {"bias", "rows"})
    given = [scale, bias.double(), rows.bfloat16()]
    for op in (OPS["spmm_int8"], OPS["spmm_int8"].reference):
        function = with_ends(graph, op, codes, {"bias", "rows"})
        out, (dscale, dbias, drows) = with_gradients(function, given)
        assert [t.dtype for t in (out, dscale, dbias, drows)] == [torch.float32, *(t.dtype for t in given)]
        assert torch.equal(drows, torch.ones_like(drows)) and torch.equal(dbias, torch.full_like(dbias, 400))
        torch.testing.assert_close(out, function(scale, bias, given[2].float()))


def test_nodes_without_edges_get_what_is_added(isa):
    for name in ("no edges", "isolated nodes", "one node"):
        graph = graphs.graph(name)
        codes, (scale, bias, rows) = codes_of(graph.num_src, 17), ends_of(graph, 17, {"bias", "rows"})
        out = with_ends(
            graph, OPS["spmm_int8"], codes, {"bias", "diagonal", "rows"}, diagonal=functools.partial(constant, 0.5)
        )(scale, bias, rows)
        alone = graph.degree == 0
        assert torch.equal(out[alone], (codes * (0.5 * scale).unsqueeze(1) + rows + bias)[alone])


def test_what_is_not_finite_stays_where_it_is(isa):
    graph = graphs.graph("self-loops")
    bias, rows, scale = torch.zeros(17), torch.zeros(6, 17), torch.ones(6)
    bias[3], rows[2, 4], rows[1, 16] = torch.nan, torch.inf, torch.nan
    function = with_ends(graph, OPS["spmm_int8"], codes_of(6, 17), {"bias", "diagonal", "rows"})
    out = function(scale, bias, rows)
    assert out[:, 3].isnan().all() and out[2, 4] == torch.inf and out[1, 16].isnan()
    assert int((~out.isfinite()).sum()) == 6 + 2
    scale[4] = torch.nan  # its own row alone has an edge from it
    out = function(scale, torch.zeros(17), torch.zeros(6, 17))
    assert torch.equal(out.isnan(), (torch.arange(6) == 4).unsqueeze(1).expand(6, 17))


def test_strides_and_alignment_change_nothing(isa):
    graph = graphs.graph("power law")
    args = (
        graph.rowptr, graph.col, rand(graph.num_edges, 2), rand(400, seed=1), rand(400, seed=2), codes_of(400, 34),
        rand(400, seed=3), rand(34, seed=4), rand(400, seed=6), rand(400, 34, seed=5),
    )  # fmt: skip
    strided = [torch.stack([t, t], -1)[..., 0] for t in args]
    unaligned = [torch.cat([t.flatten()[:1], t.flatten()])[1:].view(t.shape) for t in args]
    for given in (strided, unaligned):
        assert torch.equal(OPS["spmm_int8"](*given), OPS["spmm_int8"](*args))


def test_what_is_added_is_not_kept_for_backward_but_the_diagonal():
    graph = graphs.graph("power law")
    codes, (scale, bias, rows) = codes_of(400, 8), ends_of(graph, 8, {"bias", "rows"})
    held, diagonal = [], varying(400)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: held.append(t) or t, lambda t: t):
        function = with_ends(
            graph, OPS["spmm_int8"], codes, {"bias", "diagonal", "rows"}, scales=False, diagonal=lambda nodes: diagonal
        )
        function(scale.requires_grad_(), bias.requires_grad_(), rows.requires_grad_())
    own = {t.data_ptr() for t in (graph.rowptr, graph.col, scale, codes, diagonal)}
    assert {t.data_ptr() for t in held} <= own


def test_factors_of_nodes_have_no_gradient():
    """An error, never silently none."""
    graph = graphs.graph("self-loops")
    args = (graph.rowptr, graph.col, None, None, None, codes_of(6, 4), torch.ones(6), None)
    with pytest.raises(ValueError, match=r"`diagonal` must not require grad.*Detach it, or pass diagonal"):
        OPS["spmm_int8"](*args, torch.ones(6, requires_grad=True))
    graph, codes = graphs.small(), codes_of(5, 4)
    for name, place, count in (("dst_scale", 4, 4), ("src_scale", 3, 5)):
        args = [graph.rowptr, graph.col, None, None, None, codes, torch.ones(5)]
        args[place] = torch.ones(count, requires_grad=True)
        with pytest.raises(ValueError, match=f"`{name}` must not require grad.*Detach it, or use `value`"):
            OPS["spmm_int8"](*args)


def test_opcheck():
    graph = graphs.graph("self-loops")
    scale, bias, rows = (t.requires_grad_() for t in ends_of(graph, 4, {"bias", "rows"}))
    value = rand(graph.num_edges).requires_grad_()
    args = (graph.rowptr, graph.col, value, torch.rand(6), torch.rand(6), codes_of(6, 4), scale, bias, varying(6), rows)
    opcheck(OPS["spmm_int8"].overload, args)
    opcheck(OPS["spmm_int8"].overload, (*args[:3], None, *args[4:7], bias))
    opcheck(OPS["spmm_int8"].overload, (*args[:8], constant(1.5, 6), None))


G = graphs.small()  # 5 sources, 4 destinations


@pytest.mark.parametrize(
    "error, message, ends",
    [
        (ValueError, r"`src_scale`.*\[5\], one number per node.*\(4,\)", (rand(4),)),
        (TypeError, "`bias`.*float32 or float64.*int64", (None, torch.ones(3, dtype=torch.int64))),
        (ValueError, r"`bias`.*\[3\], one number per column.*\(1,\)", (None, rand(1))),
        (
            ValueError,
            r"`diagonal`.*\[4\], one number per node that is source and destination.*\(5,\)",
            (None, None, rand(5)),
        ),
        (TypeError, "`rows`.*float16", (None, None, None, rand(4, 3).half())),
        (ValueError, r"`rows`.*\(4, 3\), one row per destination.*\(5, 3\)", (None, None, None, rand(5, 3))),
    ],
)
def test_bad_arguments(error, message, ends):
    with pytest.raises(error, match=message):
        src_scale, *others = ends
        OPS["spmm_int8"](G.rowptr, G.col, None, src_scale, None, codes_of(5, 3), rand(5), *others)


@pytest.mark.parametrize(
    "error, message, diagonal",
    [
        (TypeError, "`diagonal` must be float32 .*float64", rand(6).double()),
        (ValueError, r"`diagonal`.*\[6\], one number per node.*\(1,\)", rand(1)),
        (ValueError, r"`diagonal`.*\[6\].*\(6, 1\)", rand(6, 1)),
    ],
)
def test_bad_diagonals(error, message, diagonal):
    graph = graphs.graph("self-loops")
    args = (graph.rowptr, graph.col, None, None, None, codes_of(6, 3), rand(6), None, diagonal, None)
    for call in (lambda: OPS["spmm_int8"](*args), lambda: OPS["spmm_rows"](*args, None, None)):
        with pytest.raises(error, match=message):
            call()


def test_a_zero_of_the_diagonal_adds_nothing(isa):
    """As no self-loop does: a scale that is not finite stays away from its own row."""
    graph, codes, scale, diagonal = graphs.graph("star"), codes_of(300, 130), torch.ones(300), torch.ones(300)
    scale[7], diagonal[7] = torch.nan, 0
    args = (graph.rowptr, graph.col, None, None, None, codes, scale, None)
    for op in (OPS["spmm_int8"], OPS["spmm_int8"].reference):
        assert torch.equal(op(*args, diagonal, None)[7], op(*args, None, None)[7])


def test_a_constant_diagonal_is_read_from_one_element(isa, threads):
    graph = graphs.graph("power law")
    for columns in (7, 16, 130):
        codes, (scale, *_) = codes_of(400, columns), ends_of(graph, columns, set())
        runs = [
            with_gradients(with_ends(graph, OPS["spmm_int8"], codes, {"diagonal"}, diagonal=lambda n, d=d: d), [scale])
            for d in (constant(1.7, 400), constant(1.7, 400).clone())
        ]
        assert same_bits(*((out, *grads) for out, grads in runs))
