"""Epilogues (norm, activation, dropout) that save few bits, with and without the products behind them."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.autograd import gradcheck
from torch.multiprocessing.reductions import StorageWeakRef

import gossamer as gs
from gossamer import measure, ops
from gossamer.engine.saved import epilogue as epilogues
from gossamer.engine.saved import products as saved_products
from gossamer.engine.saved.source import source_of
from gossamer.ops.activation import ACTIVATIONS
from gossamer.ops.norm_act import Over
from support.codecs import EXACT, Identity
from support.epilogue import Settings
from support.saved import assert_one_derivative, dots, saving_by
from support.tensors import seeded, tensors
from support.unbiased import assert_unbiased, draws_of

ROWS, COLUMNS, OUT = 90, 24, 5
SLOPES = (0.0, 0.0, 0.2, 1.3, 0.0)  # of each activation
FEW = saving_by(gs.Blockwise(bits=2, bins="optimal"), slopes=4)
KNOWN = (FEW, saving_by(gs.Uniform(bits=4)), saving_by(gs.RowInt8()))
LINEAR = range(3)  # identity, relu, leaky_relu: linear given a bit
OVERS = pytest.mark.parametrize("over", list(Over), ids=lambda o: o.name)
ACTS = pytest.mark.parametrize("act", range(5), ids=lambda a: ACTIVATIONS[a])


def settings_of(over, act=1, p=0.0, eps=1e-5):
    return Settings(int(over), eps, act, SLOPES[act], p, 7)


def inputs(over, shape=(ROWS, COLUMNS), dtype=torch.float32):
    """x, weight, bias, mean, var, as the norm takes them."""
    x, weight, bias, mean, var = tensors(shape, *[(shape[1],)] * 4, dtype=dtype)
    fixed = (mean.detach(), var.detach().abs() + 0.1) if over == Over.FIXED else (None, None)
    return [x, *((None, None) if over == Over.NOTHING else (weight, bias)), *fixed]


def epilogue(x, weight, bias, mean, var, settings, saving):
    return epilogues.run_epilogue(x, settings.on(weight, bias, mean, var), saving)


def published(x, weight, bias, mean, var, settings, saving):
    """As published: x itself is saved, and normalised again in backward."""
    return epilogues.plain_epilogue(x, settings.on(weight, bias, mean, var), saving, raw=True)


def epilogue_products(x, weight, bias, mean, var, settings, saving, weights, biases):
    return epilogues.epilogue_products(x, settings.on(weight, bias, mean, var), saving, weights, biases)


def products(x, weights, biases, saving):
    return saved_products.products(x, weights, biases, source_of(x, saving))


PATHS = {
    "kernels": (epilogue, FEW),
    "formulas": (epilogue, saving_by(gs.RowInt8())),
    "published": (published, saving_by(gs.Uniform(bits=4, meta="bfloat16"))),
}


@pytest.fixture(params=PATHS)
def path(request):
    return PATHS[request.param]


def leaves_of(args):
    return [a for a in args[:3] if a is not None]


def gradients(out, leaves):
    return torch.autograd.grad(dots([out]), leaves)


# Exactness ------------------------------------------------------------------------------------------------------


def result(function, leaves, args, settings):
    """Of `function` on other leaves, by a codec that loses nothing."""
    return function(*leaves, *args[len(leaves) :], settings, saving_by(Identity()))[0]


@OVERS
@ACTS
def test_gradcheck(over, act):
    args = inputs(over, (6, 4), torch.float64)
    for p in (0.0, 0.4):
        settings = settings_of(over, act, p, eps=0.01)
        assert gradcheck(lambda *a, s=settings: result(epilogue, a, args, s), leaves_of(args))


@OVERS
def test_gradcheck_as_published(over):
    args, settings = inputs(over, (6, 4), torch.float64), settings_of(over, 0, eps=0.01)
    assert gradcheck(lambda *a: result(published, a, args, settings), leaves_of(args))


@OVERS
@ACTS
def test_results_are_the_same_bits(over, act):
    for function, saving in (*((epilogue, saving) for saving in KNOWN), (published, saving_by(Identity()))):
        for p in (0.0, 0.5):
            args, settings = inputs(over), settings_of(over, act, p)
            for got, want in zip(function(*args, settings, saving), ops.norm_act(*args, *settings), strict=True):
                assert torch.equal(got, want)


@OVERS
@ACTS
@pytest.mark.parametrize("p", [0.0, 0.5])
def test_gradients_from_codes_that_lose_nothing(over, act, p):
    """By the kernels: only the derivatives of smooth activations are rounded, to eight bits."""
    args, settings = inputs(over), settings_of(over, act, p)
    exact = gradients(ops.norm_act(*args, *settings)[0], leaves_of(args))
    got = gradients(epilogue(*args, settings, saving_by(EXACT))[0], leaves_of(args))
    near = 1e-5 if act in LINEAR else 0.02
    for grad, truth in zip(got, exact, strict=True):
        assert float((grad - truth).norm()) <= near * float(truth.norm()) + 1e-6


@OVERS
@pytest.mark.parametrize("act", LINEAR)
@pytest.mark.parametrize("p", [0.0, 0.5])
def test_products_from_codes_that_lose_nothing(over, act, p):
    """Made together, made one after the other, and plainly: the same results and gradients."""
    args, settings = inputs(over), settings_of(over, act, p)
    w1, w2, bias = tensors((OUT, COLUMNS), (3, COLUMNS), (OUT,), seed=3)
    leaves, saving = [*leaves_of(args), w1, w2, bias], saving_by(EXACT)
    out = ops.norm_act(*args, *settings)[0]
    exact = torch.autograd.grad(dots(plain := (ops.linear(out, w1, bias), ops.linear(out, w2))), leaves)
    together = epilogue_products(*args, settings, saving, [w1, w2], [bias, None])[:2]
    apart = products(epilogue(*args, settings, saving)[0], [w1, w2], [bias, None], saving)
    for outs in (together, apart):
        torch.testing.assert_close(outs, plain, rtol=1e-5, atol=1e-5)  # tiles may sum in another order
        for grad, truth in zip(torch.autograd.grad(dots(outs), leaves), exact, strict=True):
            assert float((grad - truth).norm()) <= 1e-5 * float(truth.norm()) + 1e-6


def test_statistics_follow_from_products_too():
    args, settings = inputs(Over.COLUMNS), settings_of(Over.COLUMNS)
    (weight,) = tensors((OUT, COLUMNS))
    _, mean, var = epilogue_products(*args, settings, FEW, [weight], [None])
    _, want_mean, want_var = ops.norm_act(*args, *settings)
    assert torch.equal(mean, want_mean) and torch.equal(var, want_var)
    assert not mean.requires_grad and not var.requires_grad


# Noise ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("over", [Over.NOTHING, Over.FIXED], ids=lambda o: o.name)
@ACTS
def test_unbiased(over, act):
    """Without statistics of x nothing is quadratic in what is saved."""
    args, settings = inputs(over), settings_of(over, act)  # with dropout, another draw of noise would be another mask
    exact = gradients(ops.norm_act(*args, *settings)[0], leaves_of(args))
    if over == Over.NOTHING and act in LINEAR:  # bits alone
        assert torch.equal(gradients(epilogue(*args, settings, FEW)[0], leaves_of(args))[0], exact[0])
    else:
        assert_unbiased(lambda: gradients(epilogue(*args, settings, FEW)[0], leaves_of(args)), exact, 150)


@pytest.mark.parametrize("over", [Over.NOTHING, Over.COLUMNS, Over.ROWS], ids=lambda o: o.name)
@pytest.mark.parametrize("act", LINEAR)
def test_weight_gradients_from_codes_that_products_share_are_unbiased(over, act):
    args, settings = inputs(over), settings_of(over, act)
    w1, w2 = leaves = tensors((OUT, COLUMNS), (3, COLUMNS), seed=3)
    out = ops.norm_act(*args, *settings)[0].detach()
    exact = torch.autograd.grad(dots((out @ w1.t(), out @ w2.t())), leaves)

    def draw():
        return torch.autograd.grad(dots(epilogue_products(*args, settings, FEW, leaves, [None, None])[:2]), leaves)

    assert_unbiased(draw, exact, 150)


def rounding_variance(hat, bits, block):
    """step^2 f (1 - f) of each element, f its place between two levels."""
    _, zero, spread = ops.pack(hat, bits, block, 0, False)
    low, step = (t.repeat_interleave(block)[: hat.numel()].view_as(hat) for t in (zero, spread / (2**bits - 1)))
    f = ((hat - low) / step).frac()
    return step.square() * f * (1 - f)


@pytest.mark.parametrize("over", [Over.COLUMNS, Over.ROWS], ids=lambda o: o.name)
@pytest.mark.parametrize("kernels", [True, False])
def test_the_bias_of_norms_is_the_documented_one(over, kernels):
    """-(weight rstd / n) g Var, n the number of elements that share statistics: all of the bias there is."""
    shape, codec = (8, 16) if over == Over.COLUMNS else (16, 8), gs.Blockwise(bits=2, block=16, meta="float32")
    args, settings = inputs(over, shape), settings_of(over, 1)
    x, weight, bias, *_ = args
    out, mean, var = ops.norm_act(*args, *settings)
    (exact,) = gradients(out, [x])
    with torch.no_grad():
        rstd = (var + settings.eps).rsqrt()
        hat = (x - mean) * rstd if over == Over.COLUMNS else (x - mean[:, None]) * rstd[:, None]
        rstd = rstd if over == Over.COLUMNS else rstd[:, None]
        g = tensors(shape, seed=9)[0] * (hat * weight + bias > 0)
        documented = -(weight * rstd / 8) * g * rounding_variance(hat, 2, 16)
    saving = saving_by(codec)
    function = epilogues.run_epilogue if kernels else epilogues.plain_epilogue
    count = 500
    (draws,) = draws_of(lambda: gradients(function(x, settings.on(*args[1:]), saving)[0], [x]), count)
    found, error = draws.mean(0), (draws.var(0) / count).sqrt() + 1e-6
    assert float(((found - exact - documented) / error).abs().max()) < 4.5  # the largest of 128
    # along the documented bias, which is thus told from none at all
    direction = documented / documented.norm()
    share = float(((found - exact) * direction).sum() / documented.norm())
    deviation = float(((direction * error).square().sum()).sqrt() / documented.norm())
    assert deviation < 0.1 and abs(share - 1) < 4 * deviation


# What is saved --------------------------------------------------------------------------------------------------


def saved_by(function):
    with measure.kept() as account:
        out = function()
    assert any(t.requires_grad for t in (out if isinstance(out, tuple) else (out,)))
    return sum(t.bytes for t in account.tensors if t.dtype != torch.float32 or t.bytes > 4 * ROWS)


def parameters(over):
    return [nn.Parameter(a.detach()) if k < 3 and a is not None else a for k, a in enumerate(inputs(over))]


@OVERS
@ACTS
@pytest.mark.parametrize("p", [0.0, 0.5])
def test_bytes(over, act, p):
    """Codes of x_hat where there is a norm, and a bit per element, or four of the derivative; statistics apart."""
    args, settings = parameters(over), settings_of(over, act, p)
    codes = FEW.values.nbytes((ROWS, COLUMNS)) if over != Over.NOTHING else 0
    marks = (0, 1, 1, 4, 4)[act] * ROWS * COLUMNS // 8
    assert saved_by(lambda: epilogue(args[0] * 1, *args[1:], settings, FEW)) == codes + marks
    if act in LINEAR:
        weights = [nn.Parameter(t) for t in tensors((OUT, COLUMNS), (OUT, COLUMNS))]
        codes = FEW.values.nbytes((ROWS, COLUMNS))
        found = saved_by(lambda: epilogue_products(args[0] * 1, *args[1:], settings, FEW, weights, [None, None]))
        assert found == codes + marks


@OVERS
@ACTS
def test_rows_die_after_forward(over, act):
    for function, saving in PATHS.values():
        args, settings = inputs(over), settings_of(over, act, 0.5)
        h = args[0] * 2
        out = function(h, *args[1:], settings, saving)[0]
        held = StorageWeakRef(h.untyped_storage()), StorageWeakRef(out.untyped_storage())
        node = out.grad_fn
        del h, out
        assert all(ref.expired() for ref in held) and node is not None


@pytest.mark.parametrize("act", LINEAR)
def test_rows_die_behind_products(act):
    args, settings = inputs(Over.COLUMNS), settings_of(Over.COLUMNS, act, 0.5)
    h = args[0] * 2
    held = StorageWeakRef(h.untyped_storage())
    outs = epilogue_products(h, *args[1:], settings, FEW, tensors((OUT, COLUMNS)), [None])
    del h
    assert held.expired() and outs[0].requires_grad


# One after the other --------------------------------------------------------------------------------------------


def steps(x, args, act, p, saving):
    """Norm, activation and dropout by separate calls."""
    h = epilogue(x, *args[1:], settings_of(Over.COLUMNS, 0), saving)[0]
    if act == 1:
        h = epilogues.relu_dropout(h, 0.0, 0)
    elif act:
        h = epilogue(h, *[None] * 4, settings_of(Over.NOTHING, act), saving)[0]
    return epilogues.dropout(h, p, 7) if p else h


@pytest.mark.parametrize("act", LINEAR)
@pytest.mark.parametrize("p", [0.0, 0.5])
def test_separate_calls_share_what_is_saved(act, p):
    args, (weight,) = parameters(Over.COLUMNS), map(nn.Parameter, tensors((OUT, COLUMNS), seed=3))
    leaves, settings = [*args[:3], weight], settings_of(Over.COLUMNS, act, p)
    bits = ROWS * COLUMNS // 8 if act else 0
    found = saved_by(lambda: products(steps(args[0] * 1, args, act, p, FEW), [weight], [None], FEW)[0])
    assert found == FEW.values.nbytes((ROWS, COLUMNS)) + bits
    exact = torch.autograd.grad(dots([ops.linear(ops.norm_act(*args, *settings)[0], weight)]), leaves)
    saving = saving_by(EXACT)
    outs = products(steps(args[0], args, act, p, saving), [weight], [None], saving)
    for grad, truth in zip(torch.autograd.grad(dots(outs), leaves), exact, strict=True):
        assert float((grad - truth).norm()) <= 1e-5 * float(truth.norm()) + 1e-6


def saved_behind(function):
    """The bytes that a product adds to those that `function` saves."""
    (weight,) = map(nn.Parameter, tensors((OUT, COLUMNS)))
    both = saved_by(lambda: products(function(), [weight], [None], FEW))
    return both - saved_by(function)


def test_products_behind_what_is_not_linear_in_the_codes_save_their_own_rows():
    """Two activations, two dropouts, smooth activations, and views and results of other ops."""
    args, own = parameters(Over.COLUMNS), FEW.rows.nbytes((ROWS, COLUMNS))

    def normed(act, p=0.0):
        return epilogue(args[0] * 1, *args[1:], settings_of(Over.COLUMNS, act, p), FEW)[0]

    def dropped():
        return epilogues.dropout(normed(2), 0.5, 3)

    assert saved_behind(lambda: normed(1, 0.5)) == saved_behind(dropped) == 0
    assert saved_behind(lambda: epilogues.relu_dropout(normed(1, 0.5), 0.0, 0)) == own
    assert saved_behind(lambda: epilogue(normed(1), *[None] * 4, settings_of(Over.NOTHING, 2), FEW)[0]) == own
    assert saved_behind(lambda: normed(3)) == own
    assert saved_behind(lambda: epilogues.dropout(dropped(), 0.5, 4)) == own
    assert saved_behind(lambda: epilogues.relu_dropout(args[0] * 1, 0.5, 3)) == own
    assert saved_behind(lambda: normed(1) * 1) == own
    assert saved_behind(lambda: normed(1).view(ROWS, COLUMNS)) == own


@pytest.mark.parametrize("second", ["relu", "leaky_relu", "dropout", "gelu"])
def test_an_epilogue_after_an_epilogue_has_the_right_gradients(second):
    args, (weight,) = inputs(Over.COLUMNS), tensors((OUT, COLUMNS), seed=3)
    leaves, saving, first = [*args[:3], weight], saving_by(EXACT), settings_of(Over.COLUMNS, 1, 0.5)
    settings = (
        settings_of(Over.NOTHING, 0, 0.5)._replace(seed=8)
        if second == "dropout"
        else settings_of(Over.NOTHING, ACTIVATIONS.index(second))
    )
    exact = ops.linear(ops.norm_act(ops.norm_act(*args, *first)[0], *[None] * 4, *settings)[0], weight)
    h = epilogue(*args, first, saving)[0]
    h = epilogues.dropout(h, 0.5, 8) if second == "dropout" else epilogue(h, *[None] * 4, settings, saving)[0]
    (got,) = products(h, [weight], [None], saving)
    assert torch.equal(got, exact)
    near = 0.02 if second == "gelu" else 1e-5
    for grad, truth in zip(gradients(got, leaves), gradients(exact, leaves), strict=True):
        assert float((grad - truth).norm()) <= near * float(truth.norm()) + 1e-6


# Autograd -------------------------------------------------------------------------------------------------------


@OVERS
def test_two_backwards_agree_and_second_derivatives_are_refused(over, path):
    (function, saving), args = path, inputs(over)
    leaves = leaves_of(args)
    loss = dots([function(*args, settings_of(over, 1, 0.5), saving)[0].square()])
    assert_one_derivative(loss, leaves)


def test_two_backwards_through_products_agree():
    """Backward writes over a gradient of its own making, never over what it was given."""
    args, weights = inputs(Over.COLUMNS), tensors((OUT, COLUMNS), (3, COLUMNS), seed=3)
    leaves = [*args[:3], *weights]
    outs = epilogue_products(*args, settings_of(Over.COLUMNS, 1, 0.5), FEW, weights, [None, None])[:2]
    douts = [torch.randn_like(out) for out in outs]
    before = [dout.clone() for dout in douts]
    first, again = (torch.autograd.grad(outs, leaves, douts, retain_graph=True) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip((*first, *douts), (*again, *before), strict=True))


def test_same_codes_for_any_number_of_threads(path):
    (function, saving), args = path, inputs(Over.COLUMNS)
    found = []
    for threads in (1, 8):
        torch.set_num_threads(threads)
        seeded(0)
        found.append(gradients(function(*args, settings_of(Over.COLUMNS, 1), saving)[0], args[:3]))
    if saving is FEW:  # the formulas are torch's, whose sums depend on its threads
        assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("over", [Over.FIXED, Over.COLUMNS, Over.ROWS, Over.ALL], ids=lambda o: o.name)
def test_not_a_number_shows_in_the_gradient(over):
    args, (weight,) = inputs(over), tensors((OUT, COLUMNS), seed=3)
    args[0].data[3, 2] = torch.nan
    outs = epilogue_products(*args, settings_of(over), FEW, [weight], [None])
    dx, dnorm, _, dweight = torch.autograd.grad(dots(outs[:1]), [*args[:3], weight])
    assert dnorm[2].isnan() and dweight[:, 2].isnan().all()
    assert over == Over.FIXED or dx[3, 2].isnan()


def test_a_parameter_changed_in_place_is_noticed(path):
    (function, saving), args = path, inputs(Over.COLUMNS)
    loss = dots([function(*args, settings_of(Over.COLUMNS), saving)[0]])
    with torch.no_grad():
        args[1].add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_only_what_is_asked_for():
    for wanted in ((0,), (1,), (2,), (3,), (0, 3), (1, 2)):
        args, (weight,) = inputs(Over.COLUMNS), tensors((OUT, COLUMNS), seed=3)
        every = [*args[:3], weight]
        for k, leaf in enumerate(every):
            leaf.requires_grad_(k in wanted)
        settings, asked = settings_of(Over.COLUMNS, 1, 0.5), [every[k] for k in wanted]
        exact = gradients(ops.linear(ops.norm_act(*args, *settings)[0], weight), asked)
        got = gradients(epilogue_products(*args, settings, saving_by(EXACT), [weight], [None])[0], asked)
        torch.testing.assert_close(got, exact, rtol=1e-4, atol=1e-4)
