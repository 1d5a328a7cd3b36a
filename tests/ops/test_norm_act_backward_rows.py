"""The backward of norm, activation and dropout as int8 rows: quantize_times of norm_act_backward's dx, bit for bit."""

from __future__ import annotations

import functools

import pytest
import torch
from torch.library import opcheck

from gossamer.ops import OPS, norm_act, norm_act_backward_rows, quantize_times
from gossamer.ops.int8_rows import head_products
from gossamer.ops.norm_act import Over
from gossamer.ops.norm_act_backward_rows import COLUMNWISE
from support.compare import UNIT, on_baseline, same, same_bits, tensors_of
from support.epilogue import settings
from support.int8_ops import WIDTHS, every_width, factor_of
from support.norm_act import inputs
from support.paths import needs_native
from support.tensors import codes_of, rand, strided, unaligned

SEEDS = [5, 2**63 - 1]
CHUNK = 256  # rows whose sums are taken in float32; those of chunks are added in float64


def given(rows, columns, over, act=1, p=0.0, affine=True):
    """dout, x, weight, bias, mean, var and the settings, as norm_act_backward takes them."""
    args, how = inputs(rows, columns, over, affine=affine), settings(over, act, p)
    used = args[3:] if over == Over.FIXED else norm_act(*args, *how)[1:]
    return rand(rows, columns, seed=8), *args[:3], *used, *how


def readers(columns, turn):
    """One or two factors; with one or none of them missing."""
    factor, other = factor_of(columns), rand(columns, seed=10)
    return ([None], [factor], [None, factor], [factor, None], [factor, other])[turn % 5]


def assert_rows(args, factors, stochastic):
    seeds = SEEDS[: len(factors)]
    rows, sums, dweight, dbias, dots = norm_act_backward_rows(*args, factors, seeds, stochastic, 0, None)
    dx, *own = OPS["norm_act_backward"](*args)
    want = [quantize_times(dx, f, seed if stochastic else None) for f, seed in zip(factors, seeds, strict=True)]
    assert same_bits(rows, tensors_of(want)), (dx.shape, args[6:])
    assert same_bits((dweight, dbias), own) and dots.shape == (0,)
    off, size = (sums.double() - dx.double().sum(0)).abs(), dx.double().abs().sum(0)
    assert sums.shape == (dx.size(1),) and (off <= (min(CHUNK, len(dx)) + 2) * UNIT * size).all()


@pytest.mark.parametrize("over", COLUMNWISE, ids=lambda o: o.name)
def test_all_activations_and_readers(over, isa):
    """Every activation with every choice of factors, both roundings; shapes, dropout and weights go round."""
    for turn in range(50):
        rows, columns = ((2, 1), (3, 7), (257, 17), (40, 64), (513, 40), (65, 130), (1, 33))[turn % 7]
        if rows == 1 and over == Over.COLUMNS:
            continue
        args = given(rows, columns, over, turn // 5 % 5, (0.0, 0.3, 1.0)[turn % 3], affine=turn % 4 != 0)
        assert_rows(args, readers(columns, turn), stochastic=turn >= 25)


@pytest.mark.parametrize("over", COLUMNWISE, ids=lambda o: o.name)
def test_every_width(over, isa):
    for columns in WIDTHS:
        args = given(3, columns, over, columns % 5, 0.3 * (columns % 2))
        assert_rows(args, readers(columns, columns % 4 + 1), stochastic=columns % 3 > 0)


def assert_dots(args, factors, stochastic, heads, origin):
    """Products of the first reader's rows, as they are written, with x: a sum of `width` terms, in any order."""
    x, seeds = args[1], SEEDS[: len(factors)]
    *without, none = norm_act_backward_rows(*args, factors, seeds, stochastic, 0, origin)
    *results, dots = norm_act_backward_rows(*args, factors, seeds, stochastic, heads, origin)
    assert same_bits(results, without) and none.shape == (0,)
    by, (codes, scale, *_) = x if origin is None else x - origin, results[0]
    want, size = head_products(codes, scale, by, heads), head_products(codes.abs(), scale, by.abs(), heads)
    assert dots.shape == (len(x), heads)
    assert ((dots - want).abs() <= 2 * (x.size(1) // heads + 8) * UNIT * size).all(), (x.shape, heads)


@pytest.mark.parametrize("over", COLUMNWISE, ids=lambda o: o.name)
def test_products_by_head(over, isa):
    """All heads and widths with and without an origin; activations, readers and roundings go round."""
    for turn, (heads, width) in enumerate(every_width()):
        args = given(3, heads * width, over, turn % 5, 0.3 * (turn % 2))
        origin = None if turn % 3 == 0 else 2 * rand(heads * width, seed=12)
        assert_dots(args, readers(heads * width, turn), turn % 4 > 1, heads, origin)
    assert_dots(given(700, 130, over), [None], True, 2, rand(130, seed=12))


def test_products_by_head_are_the_references_where_codes_are(isa):
    """Of powers of two alone: dx is dout, and sums are exact."""
    args = list(given(9, 24, Over.NOTHING, act=0))
    args[0], args[1] = codes_of(9, 24).float(), codes_of(9, 24, seed=1).float()
    args[0][:, 0] = 127.0  # so that steps are 1
    for origin in (None, codes_of(1, 24, seed=2)[0].float()):
        for heads in (1, 3, 4, 24):
            ends = ([None], [1], False, heads, origin)
            got, want = norm_act_backward_rows(*args, *ends), OPS["norm_act_backward_rows"].reference(*args, *ends)
            assert same((got[0], got[4]), (want[0], want[4]))


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_what_is_not_finite_in_the_origin_stays_in_its_head(bad, isa):
    origin = torch.zeros(33)
    origin[20] = bad
    args = given(40, 33, Over.COLUMNS)
    want = norm_act_backward_rows(*args, [None], [1], True, 3, None)
    *others, dots = norm_act_backward_rows(*args, [None], [1], True, 3, origin)
    assert same_bits(others, want[:4]) and not dots[:, 1].isfinite().any()
    assert same_bits(dots[:, [0, 2]], want[4][:, [0, 2]])


@pytest.mark.parametrize("shape", [(0, 5), (5, 0), (0, 0)])
def test_nothing(shape):
    args = given(*shape, Over.FIXED)
    for heads in (0, 5):
        rows, *sums, dots = norm_act_backward_rows(*args, [None, None], SEEDS, True, heads, None)
        assert [tuple(t.shape) for t in rows] == [shape, shape[:1]] * 2
        assert same(sums, [torch.zeros(shape[1])] * 3) and not any(t.any() for t in rows)
        assert same(dots, torch.zeros(shape[0], 5) if heads else torch.zeros(0))


def everything(over):
    return norm_act_backward_rows(*large(over), [None, factor_of(130)], SEEDS, True, 5, rand(130, seed=12))


@functools.cache
def large(over):
    return on_baseline(lambda: given(700, 130, over, 3, 0.4))  # elu: exponentials; three chunks


@functools.cache
def plainest(over):
    return on_baseline(lambda: everything(over))


@needs_native
@pytest.mark.parametrize("over", COLUMNWISE, ids=lambda o: o.name)
def test_same_bits_for_every_instruction_set_and_thread_count(over, isa, threads):
    assert same_bits(everything(over), plainest(over))


@needs_native
@pytest.mark.parametrize("over", COLUMNWISE, ids=lambda o: o.name)
def test_strides_and_alignment_change_nothing(over, isa):
    args, factor, origin = given(40, 34, over, 2, 0.4), factor_of(34), rand(34, seed=12)
    want = norm_act_backward_rows(*args, [None, factor], SEEDS, True, 2, origin)
    for changed in (strided, unaligned):
        others = (changed(a) if isinstance(a, torch.Tensor) and a.numel() else a for a in args)
        ends = ([None, changed(factor)], SEEDS, True, 2, changed(origin))
        assert same_bits(norm_act_backward_rows(*others, *ends), want)


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_nan_and_infinity_show_in_their_row_and_in_all_that_shares_statistics(bad, isa):
    for over in COLUMNWISE:
        args = given(300, 33, over)
        args[0][7, 32], args[1][7, 32] = bad, 100.0  # large enough to be beyond the ReLU's kink
        args = (*args[:2], *(None if t is None else t.abs() for t in args[2:4]), *args[4:])
        (_, scale), sums, *_, dots = norm_act_backward_rows(*args, [None], [1], True, 3, None)
        rows = torch.full((300,), True) if over == Over.COLUMNS else torch.arange(300) == 7
        assert torch.equal(scale.isnan(), rows) and torch.equal(dots.isnan(), rows.unsqueeze(1).expand(-1, 3))
        assert torch.equal(~sums.isfinite(), torch.arange(33) == 32)


def test_rounded_stochastically_rows_are_right_on_average():
    args = given(20, 17, Over.COLUMNS)
    dx = OPS["norm_act_backward"](*args)[0].double()
    draws = [norm_act_backward_rows(*args, [None], [seed], True, 0, None)[0] for seed in range(400)]
    step = draws[0][1].double().unsqueeze(1)
    mean = torch.stack([codes.double() for codes, _ in draws]).mean(0) * step
    # Of 340 means of 400 draws, each with a deviation of half a step or less, none is six deviations off.
    assert ((mean - dx).abs() <= 6 * 0.5 / 400**0.5 * step).all()


def test_opcheck():
    for over in COLUMNWISE:
        for factors in ([None], [factor_of(6), None]):
            for ends in ((0, None), (3, None), (2, rand(6))):
                args = (*given(8, 6, over, 2, 0.4), factors, SEEDS[: len(factors)], True, *ends)
                opcheck(OPS["norm_act_backward_rows"].overload, args, test_utils=("test_schema", "test_faketensor"))


def test_it_says_that_it_has_no_gradient():
    dout, x, *rest = given(8, 6, Over.COLUMNS)
    with pytest.raises(RuntimeError, match="`norm_act_backward_rows` has no gradient"):
        norm_act_backward_rows(dout.requires_grad_(), x, *rest, [None], [1], True, 0, None)[1].sum().backward()
    with pytest.raises(RuntimeError, match="`norm_act_backward_rows` has no gradient"):
        args = (dout.detach(), x, *rest, [None], [1], True)
        norm_act_backward_rows(*args, 2, rand(6).requires_grad_())[4].sum().backward()


@pytest.mark.parametrize(
    "at, value, error, message",
    [
        (0, rand(8, 6).double(), TypeError, "`dout` must be float32.*float64"),
        (0, rand(7, 6), ValueError, r"`dout` must have the shape of x, \(8, 6\) \(got \(7, 6\)\)"),
        (1, rand(6), ValueError, r"`x` must have the shape \[rows, columns\] \(got \(6,\)\)"),
        (2, rand(5), ValueError, r"`weight`.*\[6\], one number per column.*\(5,\)"),
        (4, rand(6).double(), TypeError, "`mean` must be float32.*float64"),
        (4, rand(1), ValueError, r"`mean` must have the shape \[6\] \(got \(1,\)\)"),
        (5, rand(7), ValueError, r"`var` must have the shape \[6\] \(got \(7,\)\)"),
        (6, 9, ValueError, "`over` must be one of.*got 9"),
        (10, 1.5, ValueError, "`p` must be a probability"),
        (12, [], ValueError, r"`factors` must be one or two, with a seed each \(got 0 factors, 1 seeds\)"),
        (12, [None] * 3, ValueError, r"`factors` must be one or two.*got 3 factors"),
        (12, [rand(5)], ValueError, r"`factors\[0\]`.*\[6\], one number per column.*\(5,\)"),
        (12, [rand(6).double()], TypeError, r"`factors\[0\]` must be float32"),
        (13, [1, 2], ValueError, r"`factors` must be one or two.*got 1 factors, 2 seeds"),
        (15, 4, ValueError, r"`heads` must be 0 or divide the number of columns, 6 \(got 4\)"),
        (15, 12, ValueError, r"`heads` must be 0 or divide .*got 12"),
        (15, -2, ValueError, r"`heads` must be 0 or divide .*got -2"),
        (16, rand(5), ValueError, r"`origin`.*\[6\], one number per column \(got \(5,\)\)"),
        (16, rand(8, 6), ValueError, r"`origin`.*\[6\], one number per column \(got \(8, 6\)\)"),
        (16, rand(6).double(), TypeError, "`origin` must be float32.*float64"),
    ],
)
def test_bad_arguments(at, value, error, message):
    args = [*given(8, 6, Over.COLUMNS), [None], [1], True, 2, None]
    args[at] = value
    with pytest.raises(error, match=message):
        norm_act_backward_rows(*args)


def test_what_it_cannot_do_is_refused():
    """norm_act_backward takes float64, and statistics of rows."""
    with pytest.raises(TypeError, match="`x` must be float32"):
        wide = [a.double() if isinstance(a, torch.Tensor) else a for a in given(8, 6, Over.COLUMNS)]
        norm_act_backward_rows(*wide, [None], [1], True, 0, None)
    for over in (Over.ROWS, Over.ALL):
        with pytest.raises(ValueError, match=rf"`over` must be one of \['NOTHING'.*got {over.name}"):
            norm_act_backward_rows(*given(8, 6, over), [None], [1], True, 0, None)
