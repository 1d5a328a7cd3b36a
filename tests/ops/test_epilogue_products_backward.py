"""The backward of an epilogue's products, which recomputes it: dW, and the gradient behind its norm."""

from __future__ import annotations

import functools

import pytest
import torch
from torch.library import opcheck

from gossamer.ops import OPS, epilogue_products_backward, norm_act
from gossamer.ops.norm_act import Over
from gossamer.ops.norm_act_backward_rows import COLUMNWISE
from support.compare import UNIT, on_baseline, same_bits
from support.epilogue import settings
from support.norm_act import inputs
from support.paths import needs_native
from support.tensors import rand, strided, unaligned

SHAPES = ((2, 1), (3, 7), (257, 17), (40, 64), (513, 40), (65, 130), (1, 33))  # rows are taken 32 at a time
RELU = 1


def given(rows, columns, over, outputs, act=RELU, p=0.0, affine=True):
    """All arguments of the op."""
    args, how = inputs(rows, columns, over, affine=affine), settings(over, act, p)
    _, *own = norm_act(*args, *how)
    gs = [rand(rows, n, seed=20 + k) for k, n in enumerate(outputs)]
    weights = [rand(n, columns, seed=30 + k) for k, n in enumerate(outputs)]
    return gs, weights, *args[:3], *(args[3:] if over == Over.FIXED else own), *how


def exact(gs, weights, x, weight, bias, mean, var, over, *rest):
    """dW_k and dz in float64 of the result as norm_act makes it, and bounds of what sums in float32 may be off by."""
    known = over if over == Over.NOTHING else Over.FIXED
    used = (None, None) if over == Over.NOTHING else (mean, var)
    eps, act, slope, p, seed = rest
    out = norm_act(x, weight, bias, *used, known, *rest)[0].double()
    z = norm_act(x, weight, bias, *used, known, eps, 0, 0.0, 0.0, 0)[0].requires_grad_()
    norm_act(z, None, None, None, None, int(Over.NOTHING), eps, act, slope, p, seed)[0].sum().backward()
    slopes = z.grad.double()
    dout = sum((g.double() @ w.double() for g, w in zip(gs, weights, strict=True)), torch.zeros_like(out))
    size = sum((g.double().abs() @ w.double().abs() for g, w in zip(gs, weights, strict=True)), torch.zeros_like(out))
    terms = 4 + sum(g.size(1) for g in gs)
    dws = [(g.double().t() @ out, (4 + len(x)) * UNIT * (g.double().abs().t() @ out.abs())) for g in gs]
    return dws, (dout * slopes, terms * UNIT * (size * slopes.abs()))


def assert_near(found, want):
    (dws, dz), (want_dws, want_dz) = found, want
    for actual, (expected, bound) in zip([*dws, dz], [*want_dws, want_dz], strict=True):
        assert actual.shape == expected.shape and actual.dtype == torch.float32
        assert ((actual.double() - expected).abs() <= bound).all()


@pytest.mark.parametrize("over", COLUMNWISE, ids=lambda o: o.name)
def test_against_float64(over, isa):
    """Every activation, with dropout and without; several products, wider than what is taken at a time."""
    for turn in range(35):
        rows, columns = SHAPES[turn % 7]
        if rows == 1 and over == Over.COLUMNS:
            continue
        outputs = [[(1, 6, 13, 48)[turn % 4]] * (1 + turn % 3), [150, 60, 200]][turn % 8 == 7]
        args = given(rows, columns, over, outputs, turn % 5, (0.0, 0.3, 1.0)[turn % 3], affine=turn % 4 != 0)
        assert_near(epilogue_products_backward(*args), exact(*args))


def test_products_of_any_widths(isa):
    args = given(700, 33, Over.COLUMNS, (1, 40, 0, 7, 192), p=0.5)
    assert_near(epilogue_products_backward(*args), exact(*args))


def test_what_does_not_count_is_zero(isa):
    """Exactly, whatever the weights: ReLU and dropout pass nothing there."""
    gs, weights, x, *rest = given(100, 40, Over.FIXED, (13,), p=0.5)
    out = norm_act(x, *rest)[0]
    weights[0][:, 3] = torch.inf
    dz = epilogue_products_backward(gs, weights, x, *rest)[1]
    assert not dz[out == 0].any() and (out == 0).double().mean() > 0.6
    assert not dz[:, 3][out[:, 3] != 0].isfinite().any() and dz[:, :3].isfinite().all()


@pytest.mark.parametrize("over", COLUMNWISE, ids=lambda o: o.name)
def test_nothing(over):
    for rows, columns, outputs in ((0, 5, 3), (4, 0, 3), (4, 5, 0)):
        if over == Over.COLUMNS and rows * columns == 0:
            continue
        (dw,), dz = epilogue_products_backward(*given(rows, columns, over, [outputs]))
        assert dw.shape == (outputs, columns) and not dw.any()
        assert dz.shape == (rows, columns) and not dz.any()
    dws, dz = epilogue_products_backward(*given(4, 5, over, []))
    assert dws == [] and not dz.any()


def everything():
    cases = [given(rows, columns, over, (13, 190), turn, 0.3)
             for turn, (over, rows, columns) in enumerate([(o, *s) for o in COLUMNWISE for s in SHAPES[2:4]])
             if turn < 5]  # fmt: skip
    return [epilogue_products_backward(*args) for args in cases]


@functools.cache
def plainest():
    return on_baseline(everything)


@needs_native
def test_same_bits_for_every_instruction_set_and_thread_count(isa, threads):
    assert same_bits(everything(), plainest())


@needs_native
def test_strides_and_alignment_change_nothing(isa):
    args = given(300, 17, Over.COLUMNS, (13,), p=0.3)
    want = epilogue_products_backward(*args)

    def change(changed, arg):
        if isinstance(arg, list):
            return [changed(tensor) for tensor in arg]
        return changed(arg) if isinstance(arg, torch.Tensor) else arg

    for changed in (strided, unaligned):
        assert same_bits(epilogue_products_backward(*(change(changed, arg) for arg in args)), want)


@pytest.mark.parametrize("act", [0, RELU])
@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_nan_and_infinity_show(bad, act, isa):
    """In the row of dW of a gradient's column, zeros of the result or not, and in the column of the result."""
    gs, *rest = given(300, 17, Over.FIXED, (13,), act)
    gs[0][200, 12] = bad
    (dw,), dz = epilogue_products_backward(gs, *rest)
    assert not dw[12].isfinite().any() and dw[:12].isfinite().all()
    counts = dz[200] != 0
    assert counts.any() and not dz[200][counts].isfinite().any() and dz[:200].isfinite().all()
    gs, weights, x, *rest = given(300, 17, Over.FIXED, (13,), act)
    x[7, 16] = torch.nan
    (dw,), _ = epilogue_products_backward(gs, weights, x, *rest)
    assert dw[:, 16].isnan().all() and dw[:, :16].isfinite().all()


def test_opcheck():
    for over in COLUMNWISE:
        args = given(8, 6, over, (3, 2), 2, 0.4)
        opcheck(OPS["epilogue_products_backward"].overload, args, test_utils=("test_schema", "test_faketensor"))


def test_it_says_that_it_has_no_gradient():
    gs, weights, x, *rest = given(8, 6, Over.COLUMNS, (3,))
    with pytest.raises(RuntimeError, match="`epilogue_products_backward` has no gradient"):
        epilogue_products_backward(gs, weights, x.requires_grad_(), *rest)[1].sum().backward()


@pytest.mark.parametrize(
    "at, value, error, message",
    [
        (0, [rand(8, 3).double()], TypeError, r"`gs\[0\]` must be float32.*float64"),
        (0, [rand(7, 3)], ValueError, r"`gs\[0\]`.*\[8, outputs\], a row for each of `x` \(got \(7, 3\)\)"),
        (0, [rand(8, 3), rand(8, 3)], ValueError, r"`gs` must be as many as `weights` \(got 2 and 1\)"),
        (1, [rand(3, 6).double()], TypeError, r"`weights\[0\]` must be float32.*float64"),
        (1, [rand(2, 6)], ValueError, r"`weights\[0\]`.*\[3, 6\], outputs of `gs\[0\]` by columns.*\(got \(2, 6\)\)"),
        (2, rand(8, 6).double(), TypeError, "`x` must be float32|`weight` must be"),
        (2, rand(6), ValueError, r"`x` must have the shape \[rows, columns\] \(got \(6,\)\)"),
        (3, rand(5), ValueError, r"`weight`.*\[6\], one number per column.*\(5,\)"),
        (5, rand(1), ValueError, r"`mean` must have the shape \[6\] \(got \(1,\)\)"),
        (6, rand(6).double(), TypeError, "`var` must be float32.*float64"),
        (7, int(Over.ROWS), ValueError, r"`over` must be one of \['NOTHING'.*got ROWS"),
        (7, 9, ValueError, "`over` must be one of.*got 9"),
        (11, 1.5, ValueError, "`p` must be a probability"),
    ],
)
def test_bad_arguments(at, value, error, message):
    args = list(given(8, 6, Over.COLUMNS, (3,)))
    args[at] = value
    with pytest.raises(error, match=message):
        epilogue_products_backward(*args)
