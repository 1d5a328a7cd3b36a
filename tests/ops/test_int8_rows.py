"""Results that leave as int8 rows: the codes of quantize_rows on the float results, bit for bit."""

from __future__ import annotations

import functools

import pytest
import torch
from torch.library import opcheck

from gossamer.ops import (
    OPS,
    epilogue_rows,
    int8_linear,
    int8_linear_rows,
    norm_act,
    quantize_rows,
    quantize_times,
    save_epilogue,
    save_epilogue_rows,
    saved_codes,
    spmm_rows,
)
from gossamer.ops.norm_act import Over
from gossamer.ops.saved_epilogue import rows_of
from support import graphs
from support.compare import on_baseline, same, same_bits, tensors_of
from support.epilogue import PLAIN, cases, codec, keep, optimal, settings
from support.int8_ops import SHAPES, WIDTHS, factor_of, factors, operands
from support.norm_act import OVER, inputs
from support.paths import forced, needs_native
from support.spmm import constant, varying
from support.tensors import SEEDS, codes_of, rand, special_rows, strided, unaligned


def rounded(floats, factor, seed):
    return quantize_rows(floats if factor is None else floats * factor, seed)


# Rows of x * factor ---------------------------------------------------------------------------------------------


def assert_times(x):
    for factor in factors(x.size(1)):
        for seed in SEEDS:
            got = quantize_times(x, factor, seed)
            assert same_bits(got, rounded(x, factor, seed)), x.shape
            assert same(got, OPS["quantize_times"].reference(x, factor, seed)), x.shape


def test_times_at_every_width(isa):
    for columns in WIDTHS:
        assert_times(rand(5, columns, seed=columns))


@pytest.mark.parametrize("shape", [(0, 5), (5, 0), (0, 0), (1, 17), (2000, 7)])
def test_times_of_any_number_of_rows(shape, isa):
    assert_times(rand(*shape))


def test_times_of_special_rows(isa):
    """Zeros, numbers below 2^-100, the largest, NaN and infinity, each in a row of its own."""
    x = special_rows()
    assert same_bits(quantize_times(x, None, 5), quantize_rows(x, 5))
    codes, scale = quantize_times(x, torch.full((37,), 0.5), None)
    assert not codes[[0, 1, 2, 3, 9]].any() and not scale[[0, 1, 2, 3, 9]].any()  # 2^-100 / 2 is flushed, too
    assert scale[5:8].isnan().all() and scale[[4, 8]].isfinite().all()
    factor = torch.ones(37)
    factor[36] = torch.inf
    assert quantize_times(rand(3, 37), factor, None)[1].isnan().all()


@pytest.mark.parametrize("k", [-20, -1, 20])
def test_scaling_by_a_power_of_two_changes_no_code(k, isa):
    x, factor = rand(20, 37), factor_of(37)
    codes, scale = quantize_times(x, factor, 3)
    for got in (quantize_times(x * 2.0**k, factor, 3), quantize_times(x, factor * 2.0**k, 3)):
        assert same(got, (codes, scale * 2.0**k))


# Rows of products and sums --------------------------------------------------------------------------------------


def assert_product(args):
    for factor in factors(args[2].size(0)):
        for seed in SEEDS:
            got = int8_linear_rows(*args, factor, seed)
            assert same_bits(got, rounded(int8_linear(*args), factor, seed))
            assert same(got, OPS["int8_linear_rows"].reference(*args, factor, seed))


@pytest.mark.parametrize("shape", SHAPES)
def test_product(shape, isa):
    *codes, bias = operands(*shape)
    assert_product((*codes, bias))
    assert_product((*codes, None))


def test_product_at_every_width(isa):
    for outputs in WIDTHS:
        assert_product(operands(7, 5, outputs))


def test_nan_scales_show_in_the_rows_of_a_product(isa):
    x, x_scale, w, w_scale, bias = operands(14, 7, 20)
    x_scale[9] = torch.nan
    _, scale = int8_linear_rows(x, x_scale, w, w_scale, bias, None, 1)
    assert torch.equal(scale.isnan(), torch.arange(14) == 9)
    w_scale[18] = torch.nan
    assert int8_linear_rows(x, x_scale, w, w_scale, bias, None, 1)[1].isnan().all()


def sum_arguments(graph, columns, turn):
    """Arguments of spmm_int8; weights, scales and what is added go round as `turn` does."""
    one, many = rand(graph.num_edges, seed=3), rand(graph.num_edges, graphs.HEADS.get(columns, 1), seed=4)
    dst_scale, src_scale = rand(graph.num_dst, seed=2), rand(graph.num_src, seed=5)
    bias, rows = rand(columns, seed=6) * 100, rand(graph.num_dst, columns, seed=7) * 100
    own = min(graph.num_src, graph.num_dst)
    diagonal = (None, constant(1.7, own), varying(own))[turn % 3]
    return (
        graph.rowptr, graph.col, (None, one, many)[turn % 3], src_scale if turn % 4 > 1 else None,
        dst_scale if turn % 2 else None, codes_of(graph.num_src, columns), rand(graph.num_src, seed=1).abs(),
        bias if turn % 5 > 2 else None, diagonal, rows if turn % 7 > 3 else None,
    )  # fmt: skip


def assert_sum(graph, columns, turn):
    args = sum_arguments(graph, columns, turn)
    floats = OPS["spmm_int8"](*args)
    for factor in factors(columns):
        for seed in SEEDS:
            assert same_bits(spmm_rows(*args, factor, seed), rounded(floats, factor, seed)), (columns, turn)


@pytest.mark.parametrize("name", graphs.GRAPHS)
def test_sum(name, isa):
    for turn, columns in enumerate(graphs.COLUMNS * 3, start=graphs.GRAPHS.index(name)):
        assert_sum(graphs.graph(name), columns, turn)


def test_sum_at_every_width(isa):
    for columns in WIDTHS:
        assert_sum(graphs.graph("duplicate edges"), columns, columns)


def test_sum_is_the_references_where_no_order_matters(isa):
    """One edge to a row."""
    graph = graphs.graph("reversed star")
    for factor in factors(33):
        for diagonal in (constant(1.5, 300), varying(300)):
            sources = (None, None, None, codes_of(300, 33), rand(300).abs())
            args = (graph.rowptr, graph.col, *sources, None, diagonal, None)
            assert same(spmm_rows(*args, factor, 4), OPS["spmm_rows"].reference(*args, factor, 4))


def test_nan_scales_show_in_the_rows_of_a_sum(isa):
    graph = graphs.graph("isolated nodes")  # 9 -> 3, 3 -> 9, 4 -> 3
    scale = torch.ones(12)
    scale[9] = torch.nan
    for diagonal, nan in ((None, [3]), (constant(1.0, 12), [3, 9])):
        args = (graph.rowptr, graph.col, None, None, None, codes_of(12, 17), scale, None, diagonal, None)
        found = spmm_rows(*args, None, None)[1]
        assert found.isnan().nonzero().flatten().tolist() == nan
        assert diagonal is not None or not found[graph.degree == 0].any()  # no edges: zeros, scale 0


# Rows of epilogues -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("over", OVER, ids=lambda o: o.name)
def test_epilogue(over, isa):
    """All activations at all shapes; dropout and weights go round."""
    for args, how, _ in cases(over):
        out, *statistics = norm_act(*args, *how)
        for seed in SEEDS:
            codes, scale, *own = epilogue_rows(*args, *how, seed)
            assert same_bits((codes, scale), quantize_rows(out, seed))
            assert same_bits(own, statistics)


@pytest.mark.parametrize("over", OVER, ids=lambda o: o.name)
def test_epilogue_at_every_width(over, isa):
    for columns in WIDTHS:
        args, how = inputs(3, columns, over), settings(over, columns % 5, 0.3 * (columns % 2))
        out, *statistics = norm_act(*args, *how)
        assert same_bits(epilogue_rows(*args, *how, 5), (*quantize_rows(out, 5), *statistics))


@pytest.mark.parametrize("over", OVER, ids=lambda o: o.name)
@forced(tile_elements=2000)
def test_saved_epilogue(over, isa):
    """A tile of rows at a time; noise is that of the row in the whole, and what is saved is save_epilogue's."""
    for args, how, chosen in cases(over):
        (out,), *kept = save_epilogue(*args, *how, *chosen, [], [])
        for seed in SEEDS:
            codes, scale, *own = save_epilogue_rows(*args, *how, *chosen, seed)
            assert same_bits((codes, scale), quantize_rows(out, seed))
            assert same_bits(own, kept)


@pytest.mark.parametrize("over", OVER, ids=lambda o: o.name)
@forced(tile_elements=2000)
def test_codes_of_a_saved_epilogue(over, isa):
    for args, how, chosen in cases(over):
        _, k, _, result = keep(args, how, chosen)
        for decoded in {result, True}:
            got = saved_codes(*k, *args[1:3], decoded)
            assert same_bits(got, quantize_rows(rows_of(k, *args[1:3], decoded)))
            assert same(got, OPS["saved_codes"].reference(*k, *args[1:3], decoded))


@pytest.mark.parametrize("over", [Over.NOTHING, Over.FIXED, Over.ROWS], ids=lambda o: o.name)
def test_nan_shows_in_its_row_of_an_epilogue(over, isa):
    for bad in (torch.nan, torch.inf):
        args, how = inputs(40, 33, over), settings(over, 2)
        args[0][7, 32] = bad
        for _, scale, *_ in (epilogue_rows(*args, *how, 1), save_epilogue_rows(*args, *how, *PLAIN, 1)):
            assert torch.equal(scale.isnan(), torch.arange(40) == 7)


@pytest.mark.parametrize("rows,columns", [(0, 5), (5, 0)])
def test_epilogues_of_nothing(rows, columns):
    args, how = inputs(rows, columns, Over.NOTHING), settings(Over.NOTHING, 1)
    for codes, scale, *rest in (epilogue_rows(*args, *how, 1), save_epilogue_rows(*args, *how, *codec(), 1)):
        assert codes.shape == (rows, columns) and torch.equal(scale, torch.zeros(rows))
        assert all(t.numel() == 0 for t in rest)
    _, k, _, result = keep(args, how, codec())
    assert same(saved_codes(*k, None, None, result), (torch.zeros(rows, columns, dtype=torch.int8), torch.zeros(rows)))


# All of them ----------------------------------------------------------------------------------------------------


def calls(over=Over.FIXED, act=2, rows=8, columns=6):
    """A call of each op: its name and arguments."""
    graph = graphs.graph("power law") if rows == 400 else graphs.graph("self-loops")
    chain = (*inputs(rows, columns, over), *settings(over, act, 0.4))
    _, k, _, result = keep(chain[:5], chain[5:], codec())
    return {
        "quantize_times": (rand(rows, columns), factor_of(columns), 3),
        "int8_linear_rows": (*operands(rows, columns, 70), factor_of(70), 3),
        "spmm_rows": (*sum_arguments(graph, columns, 19), factor_of(columns), 3),
        "epilogue_rows": (*chain, 3),
        "save_epilogue_rows": (*chain, *codec(4, 100), 3),
        "saved_codes": (*k, *chain[1:3], result),
    }


@functools.cache
def large_calls(over):
    return calls(over, OVER.index(over), 400, 130)


def everything(over):
    return {name: OPS[name](*args) for name, args in large_calls(over).items()}


@functools.cache
def plainest(over):
    return on_baseline(lambda: everything(over))


@needs_native
@pytest.mark.parametrize("over", OVER, ids=lambda o: o.name)
def test_same_bits_for_every_instruction_set_and_thread_count(over, isa, threads):
    """A kind of norm and an activation at a time; all pairs are in the tests above, on one thread."""
    want = plainest(over)
    for name, got in everything(over).items():
        assert same_bits(got, want[name]), name


@needs_native
@pytest.mark.parametrize("name", calls())
def test_strides_and_alignment_change_nothing(name, isa):
    for over in OVER if "epilogue" in name or "saved" in name else [Over.FIXED]:
        args = calls(over)[name]
        want = OPS[name](*args)
        for changed in (strided, unaligned):
            given = [changed(a) if isinstance(a, torch.Tensor) and a.numel() else a for a in args]
            assert same_bits(OPS[name](*given), want)


@pytest.mark.parametrize("name", calls())
def test_opcheck(name):
    for over in (Over.FIXED, Over.ROWS, Over.NOTHING):
        opcheck(OPS[name].overload, calls(over)[name], test_utils=("test_schema", "test_faketensor"))


@pytest.mark.parametrize("name", calls())
def test_rounding_says_that_it_has_no_gradient(name):
    args = [a.requires_grad_() if isinstance(a, torch.Tensor) and a.is_floating_point() else a for a in calls()[name]]
    with pytest.raises(RuntimeError, match=f"`{name}` has no gradient"):
        tensors_of(OPS[name](*args))[1].sum().backward()


@pytest.mark.parametrize(
    "name, at, value, error, message",
    [
        ("quantize_times", 0, rand(8, 6).double(), TypeError, "`x` must be float32.*float64"),
        ("quantize_times", 0, rand(6), ValueError, r"`x` must have the shape \[rows, columns\] \(got \(6,\)\)"),
        ("quantize_times", 1, rand(5), ValueError, r"`factor`.*\[6\], one number per column.*\(5,\)"),
        ("quantize_times", 1, rand(6).double(), TypeError, "`factor` must be float32"),
        ("int8_linear_rows", 0, rand(8, 6), TypeError, "`x` must be int8"),
        ("int8_linear_rows", 1, rand(7), ValueError, r"`x_scale`.*\[8\]"),
        ("int8_linear_rows", 2, codes_of(70, 5), ValueError, r"`w`.*\[outputs, 6\]"),
        ("int8_linear_rows", 4, rand(69), ValueError, r"`bias`.*\[70\]"),
        ("int8_linear_rows", 5, rand(6), ValueError, r"`factor`.*\[70\], one number per column"),
        ("int8_linear_rows", 5, rand(70).bfloat16(), TypeError, "`factor` must be float32"),
        ("spmm_rows", 6, rand(5), ValueError, r"`scale`.*\[6\], one number per row of `codes`"),
        ("spmm_rows", 4, rand(5), ValueError, r"`dst_scale`.*\[6\], one number per node"),
        ("spmm_rows", 5, rand(6, 6), TypeError, "`codes` must be int8"),
        ("spmm_rows", 3, rand(5), ValueError, r"`src_scale`.*\[6\], one number per node"),
        ("spmm_rows", 7, rand(5), ValueError, r"`bias`.*\[6\], one number per column"),
        ("spmm_rows", 9, rand(6, 5), ValueError, r"`rows`.*\(6, 6\), one row per destination"),
        ("spmm_rows", 10, rand(5), ValueError, r"`factor`.*\[6\], one number per column"),
        ("epilogue_rows", 0, rand(8, 6).double(), TypeError, "`(weight|x)` must be"),
        ("epilogue_rows", 3, None, ValueError, "`mean` and `var` must be given if statistics are FIXED"),
        ("epilogue_rows", 9, 2.0, ValueError, "`p` must be a probability"),
        ("save_epilogue_rows", 5, 9, ValueError, "`over` must be one of"),
        ("save_epilogue_rows", 11, 3, ValueError, r"`bits` must be 1, 2, 4 or 8 .*got 3"),
        ("save_epilogue_rows", 16, 5, ValueError, r"`slope_bits` must be 1, 2, 4 or 8 .*got 5"),
        ("saved_codes", 5, 7, ValueError, "`codes` must have the shape"),
        ("saved_codes", 15, rand(5), ValueError, r"`weight` must have the shape \[6\]"),
    ],
)
def test_bad_arguments(name, at, value, error, message):
    args = list(calls(rows=8 if name != "spmm_rows" else 6)[name])
    args[at] = value
    with pytest.raises(error, match=message):
        OPS[name](*args)


def test_epilogues_of_float64_are_refused():
    """norm_act takes them; rows of codes are made of float32."""
    args = (rand(4, 3).double(), *[None] * 4, *settings(0, 1))
    for call in (lambda: epilogue_rows(*args, None), lambda: save_epilogue_rows(*args, *PLAIN, None)):
        with pytest.raises(TypeError, match="`x` must be float32"):
            call()


def test_diagonal_of_another_length_is_refused():
    graph = graphs.small()
    args = (graph.rowptr, graph.col, None, None, None, codes_of(5, 3), rand(5), None, rand(5), None, None, None)
    with pytest.raises(ValueError, match=r"`diagonal` must have the shape \[4\], one number per node that is source"):
        spmm_rows(*args)


def test_levels_with_strides_live_as_long_as_they_are_read(isa):
    """Their contiguous copy is as small as what is made next, and would be its place if it were let go."""
    for bits in (2, 4):
        levels = optimal(bits, 256)
        for rows in range(1, 20):
            args, how = inputs(rows, 16, Over.NOTHING), settings(Over.NOTHING, 2)
            want = save_epilogue_rows(*args, *how, *codec(bits, levels=levels), 1)
            assert same_bits(save_epilogue_rows(*args, *how, *codec(bits, levels=strided(levels)), 1), want)
