from __future__ import annotations

import pytest
import torch
from torch.library import opcheck

from gossamer.ops import OPS, dequantize_rows, quantize_rows, spmm, spmm_int8
from support import graphs
from support.compare import UNIT, assert_sums_agree, on_baseline, same_bits, with_gradients
from support.tensors import codes_of, rand


def on(graph, op, dst_scale, codes):
    """`op` as a function of the row scales and, if given, the edge weights."""
    return lambda scale, value=None: op(graph.rowptr, graph.col, value, None, dst_scale, codes, scale)


@pytest.mark.parametrize("name", graphs.GRAPHS)
def test_equals_the_reference(name, isa):
    """Forward, and the gradients of the row scales and of the weights."""
    graph = graphs.graph(name)
    terms = 2 * max(graph.max_degree, graph.t().max_degree) + 2 * max(graphs.COLUMNS)  # d scale sums twice
    for turn, columns in enumerate(graphs.COLUMNS, start=graphs.GRAPHS.index(name)):
        codes, scale = codes_of(graph.num_src, columns), rand(graph.num_src, seed=1).abs()
        dst_scale = rand(graph.num_dst, seed=2).abs() if turn % 2 else None
        one, many = rand(graph.num_edges, seed=3), rand(graph.num_edges, graphs.HEADS[columns], seed=4)
        weights = ([], [one], [many])[turn % 3]

        native = on(graph, OPS["spmm_int8"], dst_scale, codes)
        reference = on(graph, OPS["spmm_int8"].reference, dst_scale, codes)
        sizes = on(graph, OPS["spmm_int8"].reference, dst_scale, codes.abs())
        assert_sums_agree(native, reference, [scale, *weights], terms, magnitude=sizes)


def test_equals_spmm_of_the_decoded_rows(isa):
    graph = graphs.graph("power law").gcn_norm()
    codes, scale = quantize_rows(rand(graph.num_src, 130))
    rows = dequantize_rows(codes, scale)
    for reduce in ("sum", "mean"):
        out, want = spmm_int8(graph, codes, scale, reduce=reduce), spmm(graph, rows, reduce=reduce)
        # each term rounds once more or once less, the sum as before
        bound = 2 * (graph.max_degree + 8) * UNIT * spmm(graph, rows.abs(), reduce=reduce)
        assert ((out - want).abs() <= bound).all()


@pytest.mark.parametrize("k", [-20, -1, 3, 20])
def test_scaling_an_operand_scales_the_result_exactly(k):
    """A wrong or doubled scale anywhere, forward or backward, breaks this."""
    graph = graphs.graph("power law")
    codes, scale, value = codes_of(400, 17), rand(400, seed=1).abs(), rand(graph.num_edges, seed=2)

    def run(scale, value):
        return with_gradients(lambda scale, value: spmm_int8(graph, codes, scale, value), [scale, value])

    out, (dscale, dvalue) = run(scale, value)
    for by_scale, by_value in ((k, 0), (0, k), (k, k)):
        scaled, grads = run(scale * 2.0**by_scale, value * 2.0**by_value)
        assert torch.equal(scaled, out * 2.0 ** (by_scale + by_value))
        assert torch.equal(grads[0], dscale * 2.0**by_value)
        assert torch.equal(grads[1], dvalue * 2.0**by_scale)


def test_same_bits_for_every_instruction_set_and_thread_count(isa, threads):
    graph = graphs.graph("power law")
    codes, scale, value = codes_of(400, 130), rand(400, seed=1), rand(graph.num_edges, 2, seed=2)

    def run():
        function = lambda scale, value: spmm_int8(graph, codes.view(400, 2, 65), scale, value)  # noqa: E731
        out, grads = with_gradients(function, [scale, value])
        return out, *grads

    assert same_bits(run(), on_baseline(run))


def test_a_row_with_nan_scale_shows_in_every_sum_that_uses_it(isa):
    graph = graphs.small()
    x = rand(5, 17)
    x[3, 4] = torch.nan
    out = spmm_int8(graph, *quantize_rows(x))
    uses = torch.zeros(4, dtype=torch.bool)
    uses[graph.edge_index[1][graph.edge_index[0] == 3]] = True
    assert torch.equal(out.isnan(), uses.unsqueeze(1).expand(4, 17))


def test_a_scale_that_requires_grad_is_not_ignored():
    """A gradient, or an error; never silently none."""
    graph, codes = graphs.small(), codes_of(5, 4)

    def run(op):
        return with_gradients(
            lambda s: op(graph.rowptr, graph.col, None, None, s, codes, torch.ones(5)), [torch.ones(4)]
        )

    want = run(OPS["spmm_int8"].reference)
    try:
        got = run(OPS["spmm_int8"])
    except (RuntimeError, ValueError) as error:
        assert "`dst_scale`" in str(error)
    else:
        torch.testing.assert_close(got, want)


@pytest.mark.parametrize("name", graphs.GRAPHS)
def test_shapes_of_results(name):
    graph = graphs.graph(name)
    for shape in ((0,), (4,), (2, 3)):
        codes = torch.zeros(graph.num_src, *shape, dtype=torch.int8)
        out = spmm_int8(graph, codes, rand(graph.num_src))
        assert out.shape == (graph.num_dst, *shape) and not out.any()


def test_opcheck():
    graph = graphs.small()
    scale, value = rand(5).requires_grad_(), rand(graph.num_edges, 2).requires_grad_()
    opcheck(OPS["spmm_int8"].overload, (graph.rowptr, graph.col, value, None, torch.rand(4), codes_of(5, 4), scale))
    opcheck(OPS["spmm_int8"].overload, (graph.rowptr, graph.col, None, None, None, codes_of(5, 3), scale.detach()))


G = graphs.small()


@pytest.mark.parametrize(
    "error, name, codes, scale, options",
    [
        (ValueError, "`codes`.*5 source nodes", codes_of(4, 3), rand(4), {}),
        (TypeError, "`codes`.*float32", rand(5, 3), rand(5), {}),
        (TypeError, "`codes`.*uint8", codes_of(5, 3).to(torch.uint8), rand(5), {}),
        (ValueError, "`scale`", codes_of(5, 3), rand(4), {}),
        (ValueError, "`scale`", codes_of(5, 3), rand(5, 1), {}),
        (TypeError, "`scale`.*float64", codes_of(5, 3), rand(5).double(), {}),
        (ValueError, "`value`.*nnz = 7", codes_of(5, 3), rand(5), {"value": rand(8)}),
        (ValueError, "`value`.*nnz = 7", codes_of(5, 3), rand(5), {"value": torch.tensor(1.0)}),
        (ValueError, "`value`.*heads.*3 columns.*got 2", codes_of(5, 3), rand(5), {"value": rand(7, 2)}),
        (ValueError, "`reduce`.*'max'.*dequantize_rows", codes_of(5, 3), rand(5), {"reduce": "max"}),
    ],
)
def test_bad_arguments(error, name, codes, scale, options):
    with pytest.raises(error, match=name):
        spmm_int8(G, codes, scale, **options)


def test_bad_destination_scale():
    with pytest.raises(ValueError, match="`dst_scale`"):
        OPS["spmm_int8"](G.rowptr, G.col, None, None, rand(5), codes_of(5, 3), rand(5))
