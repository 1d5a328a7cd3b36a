"""What can be made of a saved epilogue: its rows, products with them, its gradient; kernels against the definition."""

from __future__ import annotations

import functools

import pytest
import torch
from torch.library import opcheck

from gossamer.ops import OPS, norm_act, saved_codes, saved_epilogue_backward, saved_products
from gossamer.ops._structure import tensors_of
from gossamer.ops.activation import ACTIVATIONS
from gossamer.ops.dropout import kept as survivors
from gossamer.ops.norm_act import Over, rstd_of
from gossamer.ops.saved_epilogue import factor_of, hat_of, marks_alone, rows_of
from gossamer.ops.saved_epilogue_backward import gradient
from support.compare import UNIT, on_baseline, same, same_sums
from support.epilogue import cases, codec, keep, optimal, settings
from support.norm_act import OVER, inputs
from support.paths import forced
from support.tensors import rand


def epilogues(over):
    for args, how, chosen in cases(over):
        yield args, how, *keep(args, how, chosen)


def exact(over, act, p, shape=(300, 24)):
    """Eight bits of blocks of one element with float32 metadata: the codes stand for x_hat itself."""
    args, how = inputs(*shape, over), settings(over, act, p)
    return args, how, *keep(args, how, codec(8, 1, bf16_meta=False, slope_bits=8))


# Rows -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("over", OVER, ids=lambda o: o.name)
@pytest.mark.parametrize("act", [0, 1, 2])
@pytest.mark.parametrize("p", [0.0, 0.5])
def test_rows_decoded_from_exact_codes_are_the_result(over, act, p):
    """Given the marks, the result is linear in x_hat; x_hat's own rounding is all that is lost."""
    args, _, out, k, _, result = exact(over, act, p)
    got = rows_of(k, *args[1:3], result)
    torch.testing.assert_close(got, out, rtol=1e-5, atol=1e-5)
    assert torch.equal(got == 0, out == 0) or act == 0


# Products -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("over", OVER, ids=lambda o: o.name)
@forced(tile_elements=1000)
def test_products_are_sums_over_tiles_of_rows(over, isa):
    for args, _, _, k, _, result in epilogues(over):  # the second product has no outputs
        douts = [rand(k.rows, 5), rand(k.rows, 0), rand(k.rows, 3, seed=1)]
        rows = rows_of(k, *args[1:3], result)
        for dout, got in zip(douts, saved_products(douts, *k, *args[1:3], result), strict=True):
            off = (got.double() - dout.double().t() @ rows.double()).abs()
            most = dout.abs().double().t() @ rows.abs().double()
            assert (off <= (k.rows + 2) * UNIT * most).all()


# Gradients ------------------------------------------------------------------------------------------------------


def wide_gradient(dout, k, weight, var, over, eps):
    """The formula in float64 from what was saved, and how large its terms are."""
    f = factor_of(k, dout).double()
    hat = hat_of(k).double() if over != Over.NOTHING else None
    wide = [None if t is None else t.double() for t in (weight, var)]
    truth = gradient(dout.double(), hat, f, *wide, over, eps)
    g = (f * dout.double()).abs()
    if hat is None:
        return truth, (g, g.new_zeros(g.size(1)), g.new_zeros(g.size(1)))
    h, rstd = g if weight is None else g * wide[0].abs(), rstd_of(wide[1], over, eps)
    dims = {Over.COLUMNS: (0,), Over.ROWS: (1,), Over.ALL: (0, 1)}.get(over, ())
    if dims:
        stretch = (1.0 / (wide[1].sqrt() * rstd)).clamp(max=1e6) if over == Over.ALL else 1.0
        h = h + h.mean(dims, keepdim=True) + hat.abs() * (h * hat.abs()).mean(dims, keepdim=True) * stretch
    return truth, (h * (rstd.unsqueeze(1) if over == Over.ROWS else rstd), (g * hat.abs()).sum(0), g.sum(0))


@pytest.mark.parametrize("over", OVER, ids=lambda o: o.name)
def test_gradients_equal_the_formula_in_float64(over, isa):
    for args, how, _, k, var, _ in epilogues(over):
        if over == Over.ALL and k.rows * k.columns == 1:
            continue  # no variance: 0 / 0 in the formula
        dout, dx = rand(k.rows, k.columns, seed=5), torch.empty(k.rows, k.columns)
        own = saved_epilogue_backward(dx, dout, *k, args[1], var, over, how[1])
        truth, most = wide_gradient(dout, k, args[1], var, over, how[1])
        assert own[2].numel() == (0 if over in (Over.NOTHING, Over.ROWS) else k.columns)
        if own[2].numel():
            truth, most = (*truth, truth[0].sum(0)), (*most, most[0].sum(0))
        for got, want, size in zip((dx, *own), truth, most, strict=False):
            assert ((got.double() - want).abs() <= (k.rows + k.columns + 30) * UNIT * size).all()
        again = dout.clone()  # the gradient may take dout's place
        assert same((again, *saved_epilogue_backward(again, again, *k, args[1], var, over, how[1])), (dx, *own))


@pytest.mark.parametrize("over", OVER, ids=lambda o: o.name)
@pytest.mark.parametrize("act", range(5))
@pytest.mark.parametrize("p", [0.0, 0.5])
def test_gradients_from_exact_codes_are_those_of_norm_act(over, act, p):
    args, how, _, k, var, _ = exact(over, act, p)
    dout, dx = rand(300, 24, seed=5), torch.empty(300, 24)
    own = saved_epilogue_backward(dx, dout, *k, args[1], var, over, how[1])
    leaves = [a.requires_grad_() for a in args[:3] if a is not None]
    want = torch.autograd.grad(norm_act(*args, *how)[0], leaves, dout)
    # derivatives of smooth activations are saved in eight bits of a fixed range
    near = 0.02 if ACTIVATIONS[act] in ("elu", "gelu") else 1e-4
    for got, truth in zip((dx, *own), want, strict=False):
        assert (got - truth).norm() <= near * truth.norm() + 1e-6


def test_marks_alone():
    """An activation or dropout without codes: the gradient is dout times the factor, exactly."""
    dout, dx = rand(40, 16), torch.empty(40, 16)
    k = marks_alone(dout.shape, None, p=0.5, seed=3)
    saved_epilogue_backward(dx, dout, *k, None, None, 0, 0.0)
    assert torch.equal(dx, torch.where(survivors(dout, 0.5, 3), dout * 2, 0.0))
    k = marks_alone(dout.shape, torch.full((80,), 0b1010, dtype=torch.uint8), 1, merged=0.75)
    dout[0, 0] = torch.inf  # times a clear bit is zero
    saved_epilogue_backward(dx, dout, *k, None, None, 0, 0.0)
    bits = torch.tensor([0.0, 1, 0, 1, 0, 0, 0, 0]).repeat(80).view(40, 16) > 0
    assert torch.equal(dx, torch.where(bits, dout * 4, 0.0))


def test_nan_in_a_block_shows_in_the_gradient(isa):
    for over in (Over.FIXED, Over.COLUMNS, Over.ROWS):
        args, how = inputs(300, 16, over), settings(over, 1)
        args[0][7, 3] = torch.nan
        _, k, var, result = keep(args, how, codec())
        dx = torch.empty(300, 16)
        dweight, *_ = saved_epilogue_backward(dx, torch.ones(300, 16), *k, args[1], var, over, how[1])
        assert dweight[3].isnan() and (over == Over.FIXED or dx[7, 3].isnan())
        (product,) = saved_products([torch.ones(300, 2)], *k, *args[1:3], result)
        assert product[:, 3].isnan().all()


# Everywhere -----------------------------------------------------------------------------------------------------


def everything(over, act):
    args, how = inputs(700, 34, over), settings(over, act, 0.4)
    _, k, var, result = keep(args, how, codec(2, 100, levels=optimal(2, 100)))
    dx = torch.empty(700, 34)
    own = saved_epilogue_backward(dx, rand(700, 34, seed=5), *k, args[1], var, over, how[1])
    return *saved_codes(*k, *args[1:3], result), dx, *own


@functools.cache
def plainest(over, act):
    return on_baseline(lambda: everything(over, act))


@pytest.mark.parametrize("over", OVER, ids=lambda o: o.name)
def test_same_bits_for_every_instruction_set_and_thread_count(over, isa, threads):
    for act in range(len(ACTIVATIONS)):
        assert same_sums(everything(over, act), plainest(over, act))


def saved_args(over=Over.COLUMNS, act=2):
    args, how = inputs(8, 6, over), settings(over, act, 0.3)
    _, k, var, result = keep(args, how, codec(4, 7, levels=optimal(4, 100)))
    return args, how, k, var, result


def test_strides_change_nothing():
    args, how, k, var, result = saved_args()
    apart = [None if t is None else torch.stack([t, t], -1)[..., 0] for t in (*tensors_of(k), *args[1:3], var)]
    strided, (weight, bias, wide_var) = k._replace(**dict(zip(k._fields, apart[:5], strict=False))), apart[5:]
    assert same(saved_codes(*strided, weight, bias, result), saved_codes(*k, *args[1:3], result))
    dout = rand(8, 6)
    wide = torch.stack([dout, dout], -1)[..., 0]
    assert same(saved_products([wide], *strided, weight, bias, result), saved_products([dout], *k, *args[1:3], result))
    one, two = torch.empty(8, 6), torch.empty(8, 6)
    got = saved_epilogue_backward(one, wide, *strided, weight, wide_var, how[0], how[1])
    assert same((one, *got), (two, *saved_epilogue_backward(two, dout, *k, args[1], var, how[0], how[1])))


@pytest.mark.parametrize(
    "change,message",
    [
        ({"codes": torch.zeros(3, dtype=torch.uint8)}, r"`codes` must have the shape \[27\] bytes"),
        ({"zero": torch.zeros(2, dtype=torch.bfloat16)}, r"`zero` must have the shape \[7\], one number per block"),
        ({"spread": None}, r"`codes`, `zero` and `spread` must be given together"),
        ({"levels": torch.zeros(16)}, "`levels` must ascend strictly from 0 to 15"),
        ({"marks": torch.zeros(5, dtype=torch.uint8)}, r"`marks` must have the shape \[6\], 1 bit"),
        ({"marks": torch.zeros(6, dtype=torch.uint8), "act": 3}, r"`marks` must have the shape \[24\], 4 bit"),
        ({"marks": torch.zeros(6)}, r"`marks` must be uint8"),
        ({"rows": -1}, r"`rows` must be at least 0 \(got -1\)"),
        ({"bits": 3}, "`bits` must be 1, 2, 4 or 8"),
        ({"act": 5}, "`act` must be the number of one of"),
        ({"slope": torch.inf}, "`slope` must be a finite number"),
        ({"merged": 1.5}, "`merged` must be a probability between 0 and 1"),
        ({"p": -0.5}, "`p` must be a probability between 0 and 1"),
        ({"slope_bits": 3}, "`slope_bits` must be 1, 2, 4 or 8"),
    ],
)
def test_bad_saved_epilogues(change, message):
    args, how, k, var, result = saved_args()
    bad, dx = k._replace(**change), torch.empty(8, 6)
    for call in (
        lambda: saved_codes(*bad, *args[1:3], result),
        lambda: saved_products([rand(8, 2)], *bad, *args[1:3], result),
        lambda: saved_epilogue_backward(dx, dx, *bad, args[1], var, how[0], how[1]),
    ):
        with pytest.raises((ValueError, TypeError), match=message):
            call()


def test_bad_arguments():
    args, how, k, var, result = saved_args()
    none = k._replace(codes=None, zero=None, spread=None)
    dx, tail = torch.empty(8, 6), how[:2]
    for message, call in {
        "`codes` must be given where rows are to be decoded": lambda: saved_codes(*none, None, None, result),
        r"`weight` must have the shape \[6\]": lambda: saved_codes(*k, rand(5), None, result),
        r"`bias` must be float32": lambda: saved_codes(*k, None, rand(6).double(), result),
        r"`douts\[1\]` must have the shape \[8, out_features\]": lambda: saved_products(
            [rand(8, 2), rand(7, 2)], *k, *args[1:3], result
        ),
        r"`douts\[0\]` must be float32": lambda: saved_products([rand(8, 2).double()], *k, *args[1:3], result),
        "`codes` must be given": lambda: saved_epilogue_backward(dx, dx, *none, args[1], var, *tail),
        "`var` must be given where there is a norm": lambda: saved_epilogue_backward(dx, dx, *k, args[1], None, *tail),
        r"`var` must have the shape \[6\]": lambda: saved_epilogue_backward(dx, dx, *k, args[1], rand(8), *tail),
        "`over` must be one of": lambda: saved_epilogue_backward(dx, dx, *k, args[1], var, 9, 0.1),
        "`eps` must be a finite number": lambda: saved_epilogue_backward(dx, dx, *k, args[1], var, how[0], -1.0),
        r"`dout` must have the shape \(8, 6\)": lambda: saved_epilogue_backward(
            dx, rand(8, 7), *k, args[1], var, *tail
        ),
        "`dx` must be contiguous": lambda: saved_epilogue_backward(
            dx.t().contiguous().t(), dx, *k, args[1], var, *tail
        ),
    }.items():
        with pytest.raises((ValueError, TypeError), match=message):
            call()


def test_no_gradient_of_its_own():
    args, _, k, _, result = saved_args()
    with pytest.raises(RuntimeError, match="`saved_products` has no gradient"):
        saved_products([rand(8, 2)], *k, args[1].requires_grad_(), args[2], result)[0].sum().backward()


def test_opcheck():
    args, how, k, var, result = saved_args()
    tests = ("test_schema", "test_faketensor")
    opcheck(OPS["saved_products"].overload, ([rand(8, 2), rand(8, 3)], *k, *args[1:3], result), test_utils=tests)
    backward = (torch.empty(8, 6), rand(8, 6), *k, args[1], var, *how[:2])
    opcheck(OPS["saved_epilogue_backward"].overload, backward, test_utils=tests)
