from __future__ import annotations

import pytest
import torch
from torch.library import opcheck

from gossamer import native
from gossamer.ops import OPS, int8_linear, int8_linear_plus, int8_linear_two
from gossamer.ops.int8_linear import MAX_COLUMNS
from support.compare import UNIT, assert_sums_agree, on_baseline, random_cotangent, same, same_bits, with_gradients
from support.int8_ops import SHAPES, operands
from support.tensors import codes_of, rand


@pytest.mark.parametrize("shape", SHAPES)
def test_equals_the_reference(shape, isa):
    *codes, bias = operands(*shape)
    for args in ((*codes, bias), (*codes, None)):
        assert same(int8_linear(*args), OPS["int8_linear"].reference(*args))


@pytest.mark.parametrize("shape", SHAPES)
def test_sums_are_exact(shape, isa):
    x, _, w, _, _ = operands(*shape)
    y = int8_linear(x, torch.ones(shape[0]), w, torch.ones(shape[2]))
    assert torch.equal(y.double(), x.double() @ w.double().t())  # below 2^24, which float32 holds


def test_extreme_codes(isa):
    """Also -128, which quantize_rows never gives: kernels that shift codes to unsigned ones must not care."""
    values = torch.tensor([-128, -127, -1, 0, 1, 127], dtype=torch.int8)
    x, w = torch.cartesian_prod(values, values, values), torch.cartesian_prod(values, values, values)
    y = int8_linear(x, torch.ones(len(x)), w, torch.ones(len(w)))
    assert torch.equal(y.double(), x.double() @ w.double().t())


@pytest.mark.parametrize("sign", [1, -1])
def test_the_longest_sum_does_not_overflow(sign, isa):
    x = torch.full((2, MAX_COLUMNS), 127, dtype=torch.int8)
    w = torch.full((3, MAX_COLUMNS), 127 * sign, dtype=torch.int8)
    w[1, ::2] *= -1
    w[2, 0] = 0
    y = int8_linear(x, torch.ones(2), w, torch.ones(3))
    assert MAX_COLUMNS == 133_144
    sums = torch.tensor([sign * MAX_COLUMNS * 127**2, 0, sign * (MAX_COLUMNS - 1) * 127**2])
    assert torch.equal(y, sums.to(torch.float32).expand(2, 3))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("columns", [1, 64, 70])
def test_two_products_at_once_are_their_sum(shape, columns, isa):
    *one, bias = operands(*shape)
    *two, bias2 = operands(shape[0], columns, shape[2])
    for a, b in ((bias, bias2), (bias, None), (None, bias2), (None, None)):
        apart = int8_linear(*one, a, int8_linear(*two, b))
        assert same(int8_linear_two(*one, a, *two, b), apart)
        assert same(OPS["int8_linear_two"].reference(*one, a, *two, b), apart)


def test_two_products_that_do_not_fit():
    *one, bias = operands(6, 4, 5)
    *two, bias2 = operands(6, 3, 5)
    with pytest.raises(ValueError, match=r"`x2` must have the shape \[6, columns\]"):
        int8_linear_two(*one, bias, two[0][:4], two[1][:4], *two[2:], bias2)
    with pytest.raises(ValueError, match=r"`w2` must have the shape \[5, columns\]"):
        int8_linear_two(*one, bias, *two[:2], two[2][:4], two[3][:4], bias2[:4])
    with pytest.raises(ValueError, match=r"`w2` must have the shape \[outputs, 3\], the columns of `x2`"):
        int8_linear_two(*one, bias, *two[:2], one[2], one[3], bias2)


RANKS = (0, 1, 2, 3, 8, 9)


def factors_of(rows, outputs, rank):
    return rand(rows, rank, seed=6) * 100, rand(rank, outputs, seed=7)


def assert_plus(product, left, right):
    """As near as a sum of `rank` terms, in any order; and to the bit, in theirs."""
    got, terms = int8_linear_plus(*product, left, right), left.unsqueeze(2) * right  # [rows, rank, outputs]
    alone, size = int8_linear(*product), terms.abs().sum(1)
    allowed = 2 * (left.size(1) + 2) * UNIT * (size + alone.abs())
    for want in (alone + left @ right, OPS["int8_linear_plus"].reference(*product, left, right)):
        assert got.shape == want.shape and ((got - want).abs() <= allowed).all()
    if native.library:
        assert same(got, int8_linear(*product, None, sum(terms.unbind(1), torch.zeros_like(size))))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("rank", RANKS)
def test_plus_a_product_of_few_columns(shape, rank, isa):
    *product, _ = operands(*shape)
    assert_plus(product, *factors_of(shape[0], shape[2], rank))


def test_plus_at_every_width(isa):
    for outputs in range(1, 131):
        *product, _ = operands(7, 5, outputs)
        left, right = factors_of(7, outputs, RANKS[outputs % 6])
        assert_plus(product, left, right)
        given = [*product, left, right]
        strided = [torch.stack([t, t], -1)[..., 0] for t in given]
        unaligned = [torch.cat([t.flatten()[:1], t.flatten()])[1:].view(t.shape) if t.numel() else t for t in given]
        want = int8_linear_plus(*given)
        assert all(same(int8_linear_plus(*other), want) for other in (strided, unaligned)), outputs


def test_plus_rows_too_many_for_the_caches(isa):
    *product, _ = operands(2**17, 1, 64)
    assert_plus(product, *factors_of(2**17, 64, 2))


def test_same_bits_with_outer_products_for_every_thread_count(isa, threads):
    *product, _ = operands(300, 130, 70)
    left, right = factors_of(300, 70, 9)
    if native.library:
        got = int8_linear_plus(*product, left, right)
        assert same_bits(got, on_baseline(lambda: int8_linear_plus(*product, left, right)))


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_what_is_not_finite_in_outer_products_stays_in_its_row_and_column(bad, isa):
    *product, _ = operands(14, 7, 20)
    left, right = factors_of(14, 20, 3)
    clean = int8_linear_plus(*product, left, right)
    left[9, 2] = bad
    hit = (torch.arange(14) == 9).unsqueeze(1).repeat(1, 20)
    for _ in range(2):
        got = int8_linear_plus(*product, left, right)
        assert torch.equal(~got.isfinite(), hit) and same_bits(got[~hit], clean[~hit])
        right[0, 18] = bad
        hit[:, 18] = True


@pytest.mark.parametrize("k", [-20, -1, 20])
def test_scaling_what_is_multiplied_scales_the_sum_exactly(k, isa):
    x, x_scale, w, w_scale, _ = operands(13, 65, 17)
    left, right = factors_of(13, 17, 3)
    want = int8_linear_plus(x, x_scale, w, w_scale, left, right) * 2.0**k
    assert same(int8_linear_plus(x, x_scale * 2.0**k, w, w_scale, left * 2.0**k, right), want)
    assert same(int8_linear_plus(x, x_scale, w, w_scale * 2.0**k, left, right * 2.0**k), want)


def test_plus_has_no_gradient():
    *product, _ = operands(6, 4, 5)
    left, right = factors_of(6, 5, 2)
    with pytest.raises(RuntimeError, match="`int8_linear_plus` has no gradient"):
        int8_linear_plus(*product, left.requires_grad_(), right).sum().backward()


@pytest.mark.parametrize(
    "at, value, error, message",
    [
        (0, rand(6, 4), TypeError, "`x` must be int8.*float32"),
        (1, rand(5), ValueError, r"`x_scale`.*\[6\] \(got \(5,\)\)"),
        (2, codes_of(5, 3), ValueError, r"`w`.*\[outputs, 4\], the columns of `x` \(got \(5, 3\)\)"),
        (3, rand(5).double(), TypeError, "`w_scale` must be float32.*float64"),
        (4, rand(6, 2).double(), TypeError, "`left` must be float32.*float64"),
        (4, rand(7, 2), ValueError, r"`left`.*\[6, rank\], a row for each of `x` \(got \(7, 2\)\)"),
        (4, rand(6), ValueError, r"`left`.*\[6, rank\], a row for each of `x` \(got \(6,\)\)"),
        (5, rand(2, 5).bfloat16(), TypeError, "`right` must be float32.*bfloat16"),
        (5, rand(3, 5), ValueError, r"`right`.*\[2, 5\], the columns of `left` by the outputs of `w` .*\(3, 5\)"),
        (5, rand(2, 4), ValueError, r"`right`.*\[2, 5\], the columns of `left` by the outputs of `w` .*\(2, 4\)"),
        (5, rand(5), ValueError, r"`right`.*\[2, 5\], the columns of `left` by the outputs of `w` .*\(5,\)"),
    ],
)
def test_outer_products_that_do_not_fit(at, value, error, message):
    *product, _ = operands(6, 4, 5)
    args = [*product, *factors_of(6, 5, 2)]
    args[at] = value
    with pytest.raises(error, match=message):
        int8_linear_plus(*args)


def test_longer_sums_are_refused():
    x = torch.zeros(1, MAX_COLUMNS + 1, dtype=torch.int8)
    with pytest.raises(ValueError, match=rf"`x`.*{MAX_COLUMNS}.*got {MAX_COLUMNS + 1}"):
        int8_linear(x, torch.ones(1), x, torch.ones(1))


def test_same_bits_for_every_instruction_set_and_thread_count(isa, threads):
    args = operands(300, 130, 70)

    def run():
        return int8_linear(*args)

    assert same_bits(run(), on_baseline(run))


@pytest.mark.parametrize("k", [-20, -1, 20])
def test_scaling_an_operand_scales_the_result_exactly(k):
    x, x_scale, w, w_scale, _ = operands(13, 65, 17)

    def run(x_scale, w_scale):
        return with_gradients(lambda a, b: int8_linear(x, a, w, b), [x_scale, w_scale])

    y, (dx_scale, dw_scale) = run(x_scale, w_scale)
    scaled, grads = run(x_scale * 2.0**k, w_scale)
    assert same((scaled, *grads), (y * 2.0**k, dx_scale, dw_scale * 2.0**k))
    scaled, grads = run(x_scale, w_scale * 2.0**k)
    assert same((scaled, *grads), (y * 2.0**k, dx_scale * 2.0**k, dw_scale))


def test_nan_scales_show(isa):
    x, x_scale, w, w_scale, bias = operands(5, 7, 20)
    x_scale[1], w_scale[18] = torch.nan, torch.nan
    y = int8_linear(x, x_scale, w, w_scale, bias)
    want = torch.zeros(5, 20, dtype=torch.bool)
    want[1], want[:, 18] = True, True
    assert torch.equal(y.isnan(), want)


@pytest.mark.parametrize("shape", [(2, 3, 5), (13, 65, 17), (0, 3, 4), (4, 0, 5)])
def test_gradients_equal_those_of_the_reference(shape, isa):
    x, x_scale, w, w_scale, bias = operands(*shape)

    def run(op, x=x, w=w):
        return lambda x_scale, w_scale: op(x, x_scale, w, w_scale, None)

    reference = OPS["int8_linear"].reference
    sizes = run(reference, x.abs(), w.abs())
    assert_sums_agree(run(OPS["int8_linear"]), run(reference), [x_scale, w_scale], sum(shape), magnitude=sizes)
    _, (dbias,) = with_gradients(lambda b: int8_linear(x, x_scale, w, w_scale, b), [bias])
    assert torch.equal(dbias, torch.full((shape[2],), float(shape[0])))


@pytest.mark.parametrize("shape", SHAPES)
def test_rows_are_added_last(shape, isa):
    *codes, bias = operands(*shape)
    rows = rand(shape[0], shape[2], seed=5) * 100
    for args in ((*codes, bias), (*codes, None)):
        y = int8_linear(*args, rows)
        assert same(y, OPS["int8_linear"].reference(*args, rows))
        assert same(y, int8_linear(*args) + rows)


def test_rows_at_every_width(isa):
    for outputs in range(1, 131):
        args, rows = operands(7, 5, outputs), rand(7, outputs, seed=5)
        strided = torch.stack([rows, rows], -1)[..., 0]
        unaligned = torch.cat([rows.flatten()[:1], rows.flatten()])[1:].view(rows.shape)
        want = OPS["int8_linear"].reference(*args, rows)
        for given in (rows, strided, unaligned):
            assert same(int8_linear(*args, given), want), outputs


def test_rows_too_many_for_the_caches(isa):
    """A result that is written past them."""
    args, rows = operands(2**17, 1, 64), rand(2**17, 64, seed=5)
    assert torch.equal(int8_linear(*args, rows), OPS["int8_linear"].reference(*args, None) + rows)


def test_same_bits_with_rows_for_every_thread_count(isa, threads):
    args, rows = operands(300, 130, 70), rand(300, 70, seed=5)
    assert same_bits(int8_linear(*args, rows), on_baseline(lambda: int8_linear(*args, rows)))


def test_what_is_not_finite_in_rows_stays_where_it_is(isa):
    args, rows = operands(5, 7, 20), torch.zeros(5, 20)
    rows[1, 18], rows[4, 0] = torch.nan, torch.inf
    y = int8_linear(*args, rows)
    assert y[1, 18].isnan() and y[4, 0] == torch.inf and int((~y.isfinite()).sum()) == 2


@pytest.mark.parametrize("shape", [(2, 3, 5), (13, 65, 17), (0, 3, 4), (4, 0, 5), (4, 5, 0)])
def test_gradients_with_rows(shape):
    """The gradient of rows is that of the result; all others are as without them."""
    x, x_scale, w, w_scale, bias = operands(*shape)
    rows = rand(shape[0], shape[2], seed=5)

    def run(a, b, c, rows=None):
        return int8_linear(x, a, w, b, c, rows)

    y, (*others, drows) = with_gradients(run, [x_scale, w_scale, bias, rows], random_cotangent)
    _, alone = with_gradients(run, [x_scale, w_scale, bias], random_cotangent)
    assert torch.equal(drows, random_cotangent(y)) and same(others, alone)


def test_result_approximates_the_float_product():
    """Both operands rounded to a step s: a term x w is off by at most (s_x |w| + s_w |x| + s_x s_w / 2) / 2."""
    from gossamer.ops import quantize_rows

    x, w = rand(20, 64), rand(30, 64, seed=1)
    (xq, xs), (wq, ws) = quantize_rows(x), quantize_rows(w)
    bound = (xs[:, None] * w.abs().sum(1) + ws * x.abs().sum(1)[:, None] + 32 * xs[:, None] * ws) / 2
    error = (int8_linear(xq, xs, wq, ws).double() - x.double() @ w.double().t()).abs()
    assert (error <= bound * (1 + 64 * UNIT)).all()


def test_opcheck():
    x, x_scale, w, w_scale, bias = operands(4, 7, 5)
    leaves = [t.requires_grad_() for t in (x_scale, w_scale, bias)]
    opcheck(OPS["int8_linear"].overload, (x, leaves[0], w, leaves[1], leaves[2]))
    opcheck(OPS["int8_linear"].overload, (x, x_scale.detach(), w, w_scale.detach(), None))
    opcheck(OPS["int8_linear"].overload, (x, *leaves[:1], w, *leaves[1:], rand(4, 5).requires_grad_()))
    for rank in (0, 3):
        args = (x, x_scale.detach(), w, w_scale.detach(), *factors_of(4, 5, rank))
        opcheck(OPS["int8_linear_plus"].overload, args, test_utils=("test_schema", "test_faketensor"))


X, W = codes_of(2, 3), codes_of(4, 3)


@pytest.mark.parametrize(
    "error, name, args",
    [
        (TypeError, "`x`.*uint8", (X.to(torch.uint8), rand(2), W, rand(4))),
        (TypeError, "`w`.*float32", (X, rand(2), W.float(), rand(4))),
        (ValueError, "`x`.*shape", (X[0], rand(2), W, rand(4))),
        (ValueError, "`w`.*\\[outputs, 3\\]", (X, rand(2), codes_of(4, 2), rand(4))),
        (ValueError, "`x_scale`.*\\[2\\]", (X, rand(3), W, rand(4))),
        (ValueError, "`w_scale`.*\\[4\\]", (X, rand(2), W, rand(4, 1))),
        (ValueError, "`bias`.*\\[4\\]", (X, rand(2), W, rand(4), rand(3))),
        (TypeError, "`x_scale`.*float64", (X, rand(2).double(), W, rand(4))),
        (TypeError, "`bias`.*bfloat16", (X, rand(2), W, rand(4), rand(4).bfloat16())),
        (TypeError, "`rows`.*float32.*float64", (X, rand(2), W, rand(4), None, rand(2, 4).double())),
        (ValueError, r"`rows`.*\[2, 4\], as the result.*\(1, 4\)", (X, rand(2), W, rand(4), None, rand(1, 4))),
        (ValueError, r"`rows`.*\[2, 4\], as the result.*\(4,\)", (X, rand(2), W, rand(4), None, rand(4))),
    ],
)
def test_bad_arguments(error, name, args):
    with pytest.raises(error, match=name):
        int8_linear(*args)
