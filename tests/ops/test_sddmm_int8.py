"""Dot products of int8 rows along edges: exact in integers, scaled once."""

from __future__ import annotations

import pytest
import torch
from torch.library import opcheck

from gossamer.ops import OPS, dequantize_rows, quantize_rows, sddmm, sddmm_int8
from gossamer.ops.int8_linear import MAX_COLUMNS
from support import graphs
from support.compare import UNIT, on_baseline, same, same_bits, with_gradients
from support.tensors import codes_of, rand


def operands(graph, columns):
    return (
        graph.rowptr, graph.col, codes_of(graph.num_dst, columns, seed=1), rand(graph.num_dst, seed=2),
        codes_of(graph.num_src, columns, seed=3), rand(graph.num_src, seed=4),
    )  # fmt: skip


def exact(graph, a, b, heads):
    """The sums, in float64."""
    src, dst = graph.edge_index
    product = a.double()[dst] * b.double()[src]
    return product.view(graph.num_edges, heads, a.size(1) // heads).sum(2)


@pytest.mark.parametrize("name", graphs.GRAPHS)
def test_equals_the_reference_and_the_product_of_the_codes(name, isa):
    graph = graphs.graph(name)
    src, dst = graph.edge_index
    for columns in graphs.COLUMNS:
        rowptr, col, a, a_scale, b, b_scale = args = operands(graph, columns)
        for heads in {1, graphs.HEADS[columns]}:
            got = sddmm_int8(*args, heads)
            assert same(got, OPS["sddmm_int8"].reference(*args, heads))
            sums = exact(graph, a, b, heads)  # below 2^24, which float32 holds
            ones = sddmm_int8(rowptr, col, a, torch.ones_like(a_scale), b, torch.ones_like(b_scale), heads)
            assert torch.equal(ones.double(), sums)
            assert torch.equal(got, sums.float() * (a_scale[dst] * b_scale[src]).unsqueeze(1))


@pytest.mark.parametrize("heads", [1, 4])
def test_every_width(heads, isa):
    graph = graphs.graph("duplicate edges")
    for width in range(131):
        rowptr, col, a, _, b, _ = operands(graph, heads * width)
        got = sddmm_int8(rowptr, col, a, torch.ones(3), b, torch.ones(3), heads)
        assert torch.equal(got.double(), exact(graph, a, b, heads)), width


def test_extreme_codes(isa):
    """Also -128, which quantize_rows never gives."""
    graph = graphs.graph("self-loops")
    values = torch.tensor([-128, -127, -1, 0, 1, 127], dtype=torch.int8)
    a, b = torch.cartesian_prod(values, values).t().repeat(3, 1), values.repeat(6, 6)
    got = sddmm_int8(graph.rowptr, graph.col, a, torch.ones(6), b, torch.ones(6), 1)
    assert torch.equal(got.double(), exact(graph, a, b, 1))


@pytest.mark.parametrize("sign", [1, -1])
def test_the_longest_sum_does_not_overflow(sign, isa):
    """Two heads as wide as they may be; the reference sums in int64."""
    graph = graphs.graph("one node, one loop")
    a = torch.full((1, 2 * MAX_COLUMNS), 127, dtype=torch.int8)
    b = sign * a
    b[0, MAX_COLUMNS] = 0
    args = (graph.rowptr, graph.col, a, torch.ones(1), b, torch.ones(1), 2)
    want = sign * 127**2 * torch.tensor([[MAX_COLUMNS, MAX_COLUMNS - 1]])
    assert MAX_COLUMNS == 133_144 and int(want.abs().max()) < 2**31 <= (MAX_COLUMNS + 1) * 127**2
    assert torch.equal(sddmm_int8(*args), want.float())
    assert torch.equal(OPS["sddmm_int8"].reference(*args), want.float())


def test_longer_sums_are_refused():
    graph = graphs.graph("one node, one loop")
    wide = torch.zeros(1, MAX_COLUMNS + 1, dtype=torch.int8)
    with pytest.raises(ValueError, match=rf"`a`.*{MAX_COLUMNS} columns to a head.*got {MAX_COLUMNS + 1}\); split it"):
        sddmm_int8(graph.rowptr, graph.col, wide, torch.ones(1), wide, torch.ones(1), 1)
    assert (MAX_COLUMNS + 1) % 5 == 0
    assert not sddmm_int8(graph.rowptr, graph.col, wide, torch.ones(1), wide, torch.ones(1), 5).any()


def test_equals_sddmm_of_the_decoded_rows(isa):
    graph = graphs.graph("power law")
    (a, a_scale), (b, b_scale) = quantize_rows(rand(400, 130)), quantize_rows(rand(400, 130, seed=1))
    a_rows, b_rows = dequantize_rows(a, a_scale), dequantize_rows(b, b_scale)
    got = sddmm_int8(graph.rowptr, graph.col, a, a_scale, b, b_scale, 2)
    want = sddmm(graph, a_rows.view(400, 2, 65), b_rows.view(400, 2, 65))
    bound = 2 * (65 + 8) * UNIT * sddmm(graph, a_rows.abs().view(400, 2, 65), b_rows.abs().view(400, 2, 65))
    assert ((got - want).abs() <= bound).all()


def test_is_the_gradient_of_a_sum_for_its_weights(isa):
    """<dz_i, x_j> of a neighbour sum of decoded rows, by autograd in float64."""
    graph = graphs.graph("bipartite, few sources")
    dz, x = quantize_rows(rand(90, 33), 5), quantize_rows(rand(4, 33, seed=1))
    wide = [codes.double() * scale.double().unsqueeze(1) for codes, scale in (dz, x)]
    src, dst = graph.edge_index

    def total(value):
        return torch.zeros(90, 33, dtype=torch.float64).index_add(0, dst, value.unsqueeze(1) * wide[1][src])

    _, (want,) = with_gradients(total, [rand(graph.num_edges, dtype=torch.float64)], lambda out: wide[0])
    got = sddmm_int8(graph.rowptr, graph.col, *dz, *x, 1).squeeze(1)
    size = (wide[0][dst] * wide[1][src]).abs().sum(1)
    assert ((got.double() - want).abs() <= 4 * UNIT * size).all()  # the sum, the scales, their product, all of it


@pytest.mark.parametrize("k", [-20, -1, 20])
def test_scaling_an_operand_scales_the_result_exactly(k, isa):
    rowptr, col, a, a_scale, b, b_scale = operands(graphs.graph("power law"), 17)
    want = sddmm_int8(rowptr, col, a, a_scale, b, b_scale, 1) * 2.0**k
    assert torch.equal(sddmm_int8(rowptr, col, a, a_scale * 2.0**k, b, b_scale, 1), want)
    assert torch.equal(sddmm_int8(rowptr, col, a, a_scale, b, b_scale * 2.0**k, 1), want)


def test_same_bits_for_every_instruction_set_and_thread_count(isa, threads):
    graph = graphs.graph("power law")
    calls = [operands(graph, columns) for columns in (130, 64, 14)]

    def run():
        return [sddmm_int8(*args, 2) for args in calls]

    assert same_bits(run(), on_baseline(run))


def test_nan_scales_show_in_every_edge_that_uses_them(isa):
    graph = graphs.small()
    src, dst = graph.edge_index
    rowptr, col, a, a_scale, b, b_scale = operands(graph, 6)
    a_scale[0], b_scale[3] = torch.nan, torch.inf
    a[2], b[3] = 0, 0  # infinity times a sum of 0
    got = sddmm_int8(rowptr, col, a, a_scale, b, b_scale, 2)
    assert torch.equal(got.isnan(), ((dst == 0) | (src == 3)).unsqueeze(1).expand(-1, 2))


def test_zero_scales_are_zeros(isa):
    rowptr, col, a, a_scale, b, b_scale = operands(graphs.graph("power law"), 17)
    assert not sddmm_int8(rowptr, col, a, torch.zeros_like(a_scale), b, b_scale, 1).any()


def test_strides_and_alignment_change_nothing(isa):
    args = operands(graphs.graph("power law"), 34)
    strided = [torch.stack([t, t], -1)[..., 0] for t in args]
    unaligned = [torch.cat([t.flatten()[:1], t.flatten()])[1:].view(t.shape) for t in args]
    for given in (strided, unaligned):
        assert torch.equal(sddmm_int8(*given, 2), sddmm_int8(*args, 2))


def test_opcheck():
    opcheck(OPS["sddmm_int8"].overload, (*operands(graphs.small(), 4), 2))
    opcheck(OPS["sddmm_int8"].overload, (*operands(graphs.graph("no edges"), 3), 1))


def test_no_gradient_of_its_own():
    rowptr, col, a, a_scale, b, b_scale = operands(graphs.small(), 4)
    with pytest.raises(RuntimeError, match="`sddmm_int8` has no gradient"):
        sddmm_int8(rowptr, col, a, a_scale.requires_grad_(), b, b_scale, 1).sum().backward()


@pytest.mark.parametrize(
    "at, value, error, message",
    [
        (2, rand(4, 6), TypeError, "`a` must be int8.*float32"),
        (4, codes_of(5, 6).to(torch.uint8), TypeError, "`b` must be int8.*uint8"),
        (2, codes_of(5, 6), ValueError, r"`a`.*\[num_dst, columns\] with num_dst = 4 \(got \(5, 6\)\)"),
        (2, codes_of(4, 6)[:, 0], ValueError, r"`a`.*\[num_dst, columns\] with num_dst = 4"),
        (4, codes_of(5, 7), ValueError, r"`b`.*\[num_src, columns\] with 6 columns, those of `a`.*\(5, 7\)"),
        (4, codes_of(3, 6), ValueError, r"`b_scale`.*\[3\], one number per row"),
        (3, rand(5), ValueError, r"`a_scale`.*\[4\], one number per row \(got \(5,\)\)"),
        (5, rand(5, 1), ValueError, r"`b_scale`.*\[5\], one number per row \(got \(5, 1\)\)"),
        (3, rand(4).double(), TypeError, "`a_scale` must be float32"),
        (5, rand(5).bfloat16(), TypeError, "`b_scale` must be float32"),
        (6, 0, ValueError, r"`heads` must divide the number of columns, 6 \(got 0\)"),
        (6, -1, ValueError, r"`heads` must divide .*got -1"),
        (6, 4, ValueError, r"`heads` must divide .*got 4"),
        (1, torch.full((7,), 5, dtype=torch.int32), IndexError, "`col` must hold ids from 0 to 4.*got 5"),
        (1, torch.zeros(7, dtype=torch.int64), TypeError, "`col` must be int32"),
        (0, torch.tensor([0, 2, 3, 7, 8]), ValueError, "`rowptr` must ascend from 0 to the number of edges, 7"),
    ],
)
def test_bad_arguments(at, value, error, message):
    args = [*operands(graphs.small(), 6), 2]
    args[at] = value
    with pytest.raises(error, match=message):
        sddmm_int8(*args)
