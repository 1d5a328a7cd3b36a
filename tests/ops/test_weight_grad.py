"""dW = g^T x: near the product in float64, and the same bits for any instruction set and number of threads."""

from __future__ import annotations

import functools

import pytest
import torch
from torch.library import opcheck

from gossamer.ops import OPS, linear
from gossamer.ops.weight_grad import weight_grad
from support.compare import UNIT, on_baseline, same_bits
from support.paths import needs_native
from support.tensors import rand, strided, unaligned

ROWS = (1, 2, 127, 128, 129, 1000)  # chunks of 128 rows
COLUMNS = (1, 7, 16, 17, 33, 64, 130)
OUTPUTS = (1, 3, 8, 13, 70)


def operands(rows, outputs, columns, dtype=torch.float32):
    return rand(rows, outputs, seed=1, dtype=dtype), rand(rows, columns, seed=2, dtype=dtype)


def assert_near(g, x):
    """A sum of n products is off by n units of the sum of their magnitudes, whatever its order."""
    dw, want, size = weight_grad(g, x), g.double().t() @ x.double(), g.double().abs().t() @ x.double().abs()
    assert dw.shape == want.shape and dw.dtype == torch.float32 and dw.is_contiguous()
    assert ((dw.double() - want).abs() <= (len(x) + 1) * UNIT * size).all(), (g.shape, x.shape)


def test_near_the_product_in_float64(isa):
    for rows in ROWS:
        for columns in COLUMNS:
            for outputs in OUTPUTS:
                assert_near(*operands(rows, outputs, columns))


def test_every_width(isa):
    for width in range(1, 131):
        assert_near(*operands(3, 5, width))
        assert_near(*operands(3, width, 5))


@pytest.mark.parametrize("shape", [(1, 1, 1), (5000, 20, 40), (300, 200, 300)])
def test_whole_numbers_are_summed_exactly(shape, isa):
    """Every row counts once, in one slab and in many."""
    g, x = (t.mul(3).round() for t in operands(*shape))
    assert torch.equal(weight_grad(g, x).double(), g.double().t() @ x.double())


@pytest.mark.parametrize("shape", [(0, 3, 4), (5, 0, 4), (5, 3, 0), (0, 0, 0)])
def test_nothing(shape):
    dw = weight_grad(*operands(*shape))
    assert dw.shape == shape[1:] and not dw.any()


SHAPES = ((5000, 70, 130), (700, 13, 17), (129, 1, 1))


def everything():
    return [weight_grad(*operands(*shape)) for shape in SHAPES]


@functools.cache
def plainest():
    return on_baseline(everything)


@needs_native
def test_same_bits_for_every_instruction_set_and_thread_count(isa, threads):
    assert same_bits(everything(), plainest())


@needs_native
def test_strides_and_alignment_change_nothing(isa):
    g, x = operands(300, 13, 17)
    want = weight_grad(g, x)
    for changed in (strided, unaligned, lambda t: t.t().contiguous().t()):
        assert same_bits(weight_grad(changed(g), changed(x)), want)


def test_float64_goes_to_the_reference():
    g, x = operands(300, 13, 17, torch.float64)
    got = weight_grad(g, x)
    assert got.dtype == torch.float64 and torch.equal(got, torch.mm(g.t(), x))


def test_nan_and_infinity_stay_visible(isa):
    """In the row of dW that is theirs, or the column, and nowhere else; also where the other factor is zero."""
    for bad in (torch.nan, torch.inf, -torch.inf):
        for row in (0, 200, 299):
            g, x = operands(300, 13, 17)
            g[row, 12] = bad
            x[row, 0] = 0.0
            dw = weight_grad(g, x)
            assert not dw[12].isfinite().any() and dw[:12].isfinite().all() and dw[12, 0].isnan()
            g, x = operands(300, 13, 17)
            x[row, 16] = bad
            dw = weight_grad(g, x)
            assert not dw[:, 16].isfinite().any() and dw[:, :16].isfinite().all()


def test_a_products_second_derivative():
    """Where its backward is differentiated, a product's dW is torch's; the op itself says that it has no gradient."""
    x, weight = (t.requires_grad_() for t in operands(50, 7, 7))
    weight = weight[:4]
    (dw,) = torch.autograd.grad(linear(x, weight).square().sum(), weight, create_graph=True)
    (found,) = torch.autograd.grad(dw.sum(), x)
    wide_x, wide = x.detach().double().requires_grad_(), weight.detach().double().requires_grad_()
    (dw,) = torch.autograd.grad((wide_x @ wide.t()).square().sum(), wide, create_graph=True)
    torch.testing.assert_close(found.double(), torch.autograd.grad(dw.sum(), wide_x)[0], rtol=1e-4, atol=1e-3)
    with pytest.raises(RuntimeError, match="`weight_grad` has no gradient"):
        weight_grad(x.detach(), x).sum().backward()


def test_opcheck():
    opcheck(OPS["weight_grad"].overload, operands(8, 5, 6), test_utils=("test_schema", "test_faketensor"))


@pytest.mark.parametrize(
    "g, x, error, message",
    [
        (rand(5, 3), rand(5, 4).long(), TypeError, "`x` must be float32 or float64.*int64"),
        (rand(5, 3), rand(5), ValueError, r"`x` must have the shape \[rows, columns\] \(got \(5,\)\)"),
        (rand(5, 3).double(), rand(5, 4), TypeError, "`g` must be float32.*float64"),
        (rand(6, 3), rand(5, 4), ValueError, r"`g`.*\[5, outputs\], a row for each of `x` \(got \(6, 3\)\)"),
        (rand(5), rand(5, 4), ValueError, r"`g`.*\[5, outputs\].*\(5,\)"),
    ],
)
def test_bad_arguments(g, x, error, message):
    with pytest.raises(error, match=message):
        weight_grad(g, x)
