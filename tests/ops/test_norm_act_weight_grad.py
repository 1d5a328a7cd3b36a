"""Weight gradients of a chain's products, the chain made again: weight_grad of norm_act's result, bit for bit."""

from __future__ import annotations

import functools

import pytest
import torch
from torch.library import opcheck

from gossamer.ops import OPS, norm_act, norm_act_weight_grad
from gossamer.ops.norm_act import Over
from gossamer.ops.norm_act_backward_rows import COLUMNWISE
from gossamer.ops.weight_grad import weight_grad

from .compare import UNIT, on_baseline, same_bits, same_sums
from .test_chain_keep import settings
from .test_int8_rows import needs_native, strided, unaligned
from .test_norm_act import inputs
from .test_spmm import rand

SHAPES = ((2, 1), (3, 7), (257, 17), (40, 64), (513, 40), (65, 130), (1, 33))  # rows are taken 128 at a time


def given(rows, columns, over, act=1, p=0.0, affine=True):
    """x, weight, bias, mean, var and the settings, and the chain's result."""
    args, how = inputs(rows, columns, over, affine=affine), settings(over, act, p)
    out, *own = norm_act(*args, *how)
    return (*args[:3], *(args[3:] if over == Over.FIXED else own), *how), out


def gradients(rows, *outputs):
    return [rand(rows, n, seed=20 + k) for k, n in enumerate(outputs)]


@pytest.mark.parametrize("over", COLUMNWISE, ids=lambda o: o.name)
def test_those_of_the_result_as_it_was(over, isa):
    """Every activation, with dropout and without; the number of slabs goes by the widest gradient, here all of one."""
    for turn in range(35):
        rows, columns = SHAPES[turn % 7]
        if rows == 1 and over == Over.COLUMNS:
            continue
        args, out = given(rows, columns, over, turn % 5, (0.0, 0.3, 1.0)[turn % 3], affine=turn % 4 != 0)
        gs = gradients(rows, *[(1, 6, 13, 48)[turn % 4]] * (1 + turn % 3))
        found = norm_act_weight_grad(gs, *args)
        assert same_sums(found, [weight_grad(g, out) for g in gs]), (rows, columns, args[5:])


def test_gradients_of_any_widths(isa):
    args, out = given(700, 33, Over.COLUMNS, p=0.5)
    gs = gradients(700, 1, 40, 0, 7)
    for g, dw in zip(gs, norm_act_weight_grad(gs, *args), strict=True):
        want, size = g.double().t() @ out.double(), g.double().abs().t() @ out.double().abs()
        assert ((dw.double() - want).abs() <= 701 * UNIT * size).all()


@pytest.mark.parametrize("over", COLUMNWISE, ids=lambda o: o.name)
def test_nothing(over):
    for rows, columns, outputs in ((0, 5, 3), (4, 0, 3), (4, 5, 0)):
        if over == Over.COLUMNS and rows * columns == 0:
            continue
        (dw,) = norm_act_weight_grad(gradients(rows, outputs), *given(rows, columns, over)[0])
        assert dw.shape == (outputs, columns) and not dw.any()
    assert norm_act_weight_grad([], *given(4, 5, over)[0]) == []


def everything():
    cases = [(given(rows, columns, over, turn, 0.3)[0], gradients(rows, 13, 5))
             for turn, (over, rows, columns) in enumerate([(o, *s) for o in COLUMNWISE for s in SHAPES[2:4]])
             if turn < 5]  # fmt: skip
    return [norm_act_weight_grad(gs, *args) for args, gs in cases]


@functools.cache
def plainest():
    return on_baseline(everything)


@needs_native
def test_same_bits_for_every_instruction_set_and_thread_count(isa, threads):
    assert same_bits(everything(), plainest())


@needs_native
def test_strides_and_alignment_change_nothing(isa):
    args, _ = given(300, 17, Over.COLUMNS, p=0.3)
    gs = gradients(300, 13)
    want = norm_act_weight_grad(gs, *args)
    for changed in (strided, unaligned):
        others = (changed(a) if isinstance(a, torch.Tensor) else a for a in args)
        assert same_bits(norm_act_weight_grad([changed(g) for g in gs], *others), want)


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_nan_and_infinity_show(bad, isa):
    """In the row of dW of a gradient's column, and in the column of dW of the chain's."""
    args, _ = given(300, 17, Over.FIXED, act=0)
    (g,) = gradients(300, 13)
    g[200, 12] = bad
    (dw,) = norm_act_weight_grad([g], *args)
    assert not dw[12].isfinite().any() and dw[:12].isfinite().all()
    (g,) = gradients(300, 13)
    args[0][7, 16] = bad
    (dw,) = norm_act_weight_grad([g], *args)
    assert not dw[:, 16].isfinite().any() and dw[:, :16].isfinite().all()


def test_opcheck():
    for over in COLUMNWISE:
        args = (gradients(8, 3, 2), *given(8, 6, over, 2, 0.4)[0])
        opcheck(OPS["norm_act_weight_grad"].overload, args, test_utils=("test_schema", "test_faketensor"))


def test_it_says_that_it_has_no_gradient():
    (x, *rest), _ = given(8, 6, Over.COLUMNS)
    with pytest.raises(RuntimeError, match="`norm_act_weight_grad` has no gradient"):
        norm_act_weight_grad(gradients(8, 3), x.requires_grad_(), *rest)[0].sum().backward()


@pytest.mark.parametrize(
    "at, value, error, message",
    [
        (0, [rand(8, 3).double()], TypeError, r"`gs\[0\]` must be float32.*float64"),
        (0, [rand(8, 3), rand(7, 3)], ValueError, r"`gs\[1\]`.*\[8, outputs\], a row for each of `x` \(got \(7, 3\)\)"),
        (1, rand(8, 6).double(), TypeError, "`x` must be float32|`weight` must be"),
        (1, rand(6), ValueError, r"`x` must have the shape \[rows, columns\] \(got \(6,\)\)"),
        (2, rand(5), ValueError, r"`weight`.*\[6\], one number per column.*\(5,\)"),
        (4, rand(1), ValueError, r"`mean` must have the shape \[6\] \(got \(1,\)\)"),
        (5, rand(6).double(), TypeError, "`var` must be float32.*float64"),
        (6, int(Over.ROWS), ValueError, r"`over` must be one of \['NOTHING'.*got ROWS"),
        (6, 9, ValueError, "`over` must be one of.*got 9"),
        (10, 1.5, ValueError, "`p` must be a probability"),
    ],
)
def test_bad_arguments(at, value, error, message):
    args = [gradients(8, 3), *given(8, 6, Over.COLUMNS)[0]]
    args[at] = value
    with pytest.raises(error, match=message):
        norm_act_weight_grad(*args)
