"""x W^T + b, the same bits by the reference, on every processor, for any number of threads and any other rows."""

from __future__ import annotations

import functools
from fractions import Fraction

import pytest
import torch
from torch.library import opcheck

from gossamer.ops import OPS, row_products
from support.compare import UNIT, on_baseline, same, same_bits
from support.tensors import rand, strided, unaligned

ROWS = (0, 1, 5, 6, 7, 95, 97, 300)  # six rows are multiplied together, and up to 96 at a time
COLUMNS = (0, 1, 7, 64, 65)
OUTPUTS = (0, 1, 7, 15, 16, 64, 65, 130)


def operands(rows, columns, outputs):
    return rand(rows, columns, seed=1), rand(outputs, columns, seed=2), rand(outputs, seed=3)


def with_zeros(x):
    """Most elements, of whole rows or of some: kernels skip them."""
    return x * (rand(*x.shape, seed=4) > 1) * (torch.arange(len(x)) % 5 > 0).unsqueeze(1)


def test_terms_are_rounded_once(isa):
    """a b + c is the float32 nearest to the exact sum; the first cases are so near the middle of two that float64
    rounds them to it."""
    near, factor, unit = 2.0**-24 * (1 - 2.0**-18), 1 + 2.0**-18, 2.0**-23
    cases = [[s * near, factor, c] for s in (1, -1, 0.5) for c in (1, -1, 1 + unit, 1 - unit)]
    cases += [[1e-30, 1e-30, 1.0], [1e-30, -1e-12, 1e-38], [1e-30, 1e-15, 0.0], [3.0, -1e-7, 3e-7]]
    cases += (rand(200, 3) * 2.0 ** torch.arange(-20, 10, 10)).tolist()
    for a, b, c in torch.tensor(cases):
        exact = Fraction(float(a)) * Fraction(float(b)) + Fraction(float(c))
        args = torch.stack([torch.ones(()), a]).view(1, 2), torch.stack([c, b]).view(1, 2), None
        for found in (row_products(*args), OPS["row_products"].reference(*args)):
            beside = [found, *(found.nextafter(torch.full((), end)) for end in (-torch.inf, torch.inf))]
            off = [abs(Fraction(float(each)) - exact) for each in beside]
            assert off[0] == min(off), (a, b, c)


@pytest.mark.parametrize("prepared", [lambda x: x, with_zeros], ids=["dense", "zeros"])
def test_equals_the_reference(prepared, isa):
    for columns in COLUMNS:
        for outputs in OUTPUTS:
            x, weight, bias = operands(ROWS[columns % len(ROWS)], columns, outputs)
            for given in (None, bias):
                got = row_products(prepared(x), weight, given)
                assert same_bits(got, OPS["row_products"].reference(prepared(x), weight, given))


def test_every_number_of_rows(isa):
    for rows in ROWS:
        args = operands(rows, 33, 18)
        assert same_bits(row_products(*args), OPS["row_products"].reference(*args))


def test_near_the_product_in_float64(isa):
    """A sum of n rounded terms is off by n units of the sum of their magnitudes."""
    for shape in ((300, 1000, 70), (97, 2500, 33)):  # several slices of k
        x, weight, bias = operands(*shape)
        want = x.double() @ weight.double().t() + bias.double()
        size = x.double().abs() @ weight.double().abs().t() + bias.double().abs()
        assert ((row_products(x, weight, bias).double() - want).abs() <= (shape[1] + 1) * UNIT * size).all()


def test_a_row_alone_has_the_bits_that_it_has_among_others(isa):
    """Also where most of the rows are zeros, and where products vanish: kernels may skip zeros for all rows or none."""
    weight, bias = rand(70, 65, seed=2), rand(70, seed=3)
    weight[3] *= 1e-30
    for x in (rand(200, 65), with_zeros(rand(200, 65)), -1e-30 * with_zeros(rand(200, 65))):
        for given in (None, bias, torch.zeros(70), -torch.zeros(70)):
            whole = row_products(x, weight, given)
            assert not (whole.view(torch.int32) == -(2**31)).any()  # -0
            for k in (0, 1, 2, 96, 199):
                assert same_bits(row_products(x[k : k + 1], weight, given), whole[k : k + 1])
            order = torch.randperm(200, generator=torch.Generator().manual_seed(0))[:150]
            assert same_bits(row_products(x[order], weight, given), whole[order])
            pieces = [row_products(part, weight, given) for part in x.split([1, 100, 99])]
            assert same_bits(torch.cat(pieces), whole)


def everything():
    wide = [row_products(*operands(*shape)) for shape in ((3000, 130, 70), (501, 16, 33), (5000, 1, 1))]
    x, weight, bias = operands(2000, 40, 16)
    return [*wide, row_products(with_zeros(x), weight, bias)]


@functools.cache
def plainest():
    return on_baseline(everything)


def test_same_bits_for_every_instruction_set_and_thread_count(isa, threads):
    assert same_bits(everything(), plainest())


def test_large_results_go_past_the_caches(isa):
    x, weight, bias = operands(70_000, 3, 128)
    assert same_bits(row_products(x, weight, bias), OPS["row_products"].reference(x, weight, bias))


def test_strides_and_alignment_change_nothing(isa):
    args = operands(100, 17, 13)
    want = row_products(*args)
    for changed in (strided, unaligned):
        assert same_bits(row_products(*map(changed, args)), want)
    assert same_bits(row_products(args[0], args[1].t().contiguous().t(), args[2]), want)


def test_nan_and_infinity_stay_visible(isa):
    for prepared in (lambda x: x, with_zeros):
        x, weight, bias = operands(30, 17, 13)
        x = prepared(x)
        x[1, 2], x[4, 16] = torch.nan, torch.inf
        weight[3, 5] = -torch.inf
        out = row_products(x, weight, bias)
        assert same(out, OPS["row_products"].reference(x, weight, bias))
        assert not out[[1, 4]].isfinite().any() and not out[:, 3].isfinite().any()
        assert out[5:, [0, 12]].isfinite().all()


def test_no_gradient():
    x, weight, bias = operands(5, 4, 3)
    with pytest.raises(RuntimeError, match="`row_products` has no gradient"):
        row_products(x.requires_grad_(), weight, bias).sum().backward()


def test_opcheck():
    opcheck(OPS["row_products"].overload, operands(5, 4, 3))
    opcheck(OPS["row_products"].overload, (*operands(5, 4, 3)[:2], None))


X, W = rand(5, 4), rand(3, 4)


@pytest.mark.parametrize(
    "error, message, args",
    [
        (TypeError, "`x` must be float32.*float64", (X.double(), W, None)),
        (ValueError, r"`x`.*\[rows, columns\].*\(4,\)", (rand(4), W, None)),
        (TypeError, "`weight` must be float32.*float16", (X, W.half(), None)),
        (ValueError, r"`weight`.*\[outputs, 4\], as many columns as x.*\(4, 3\)", (X, rand(4, 3), None)),
        (TypeError, "`bias` must be float32.*float64", (X, W, rand(3).double())),
        (ValueError, r"`bias`.*\[3\], one number per output.*\(4,\)", (X, W, rand(4))),
    ],
)
def test_bad_arguments(error, message, args):
    with pytest.raises(error, match=message):
        row_products(*args)
