from __future__ import annotations

import functools

import pytest
import torch
from torch.autograd import gradcheck
from torch.library import opcheck

from gossamer.ops import OPS, norm_act
from gossamer.ops.activation import ACTIVATIONS
from gossamer.ops.norm_act import Over
from support.compare import on_baseline, random_cotangent, same, same_sums, with_gradients
from support.norm_act import OVER, act, differentiated, inputs
from support.norm_bounds import forward_bounds, gradient_bounds
from support.tensors import rand

ROWS = (0, 1, 2, 255, 256, 257, 513)  # sums are taken in chunks of 256 rows
COLUMNS = (1, 7, 16, 17, 64, 130)
TINY = 1e-37  # below the normal numbers, exp is flushed to zero
NAMES = ("dx", "dweight", "dbias")


def assert_within_bounds(args, s):
    wide = [None if a is None else a.double() for a in args]
    bounds = forward_bounds(*wide, s)
    z = norm_act(*wide, *act("identity", over=s.over, eps=s.eps))[0]
    dout = random_cotangent(args[0]) * (z.abs() > bounds.z).float()  # at a kink, either side may be taken
    (out, mean, var), grads = differentiated(args, s, dout)
    (want, want_mean, want_var), want_grads = differentiated(wide, s, dout.double())
    for name in ("out", "mean", "var"):
        got, expected, bound = {
            "out": (out, want, bounds.out), "mean": (mean, want_mean, bounds.mean), "var": (var, want_var, bounds.var),
        }[name]  # fmt: skip
        assert got.shape == expected.shape and got.dtype == torch.float32
        if expected.numel():
            off = (got.double() - expected).abs()
            assert (off <= bound.view(off.shape) + TINY).all(), f"{name} off by {off.max()} in {s}"
    for name, got, expected, bound in zip(
        NAMES, grads, want_grads, gradient_bounds(dout.double(), *wide, s), strict=True
    ):
        if got is not None and got.numel():
            off = (got.double() - expected).abs()
            assert (off <= bound + TINY).all(), f"{name} off by {off.max()}, allowed {bound.max()} in {s}"


@pytest.mark.parametrize("over", OVER, ids=lambda o: o.name)
def test_equals_the_reference_in_float64(over, isa):
    """All results and gradients; activation, dropout and the presence of weights go round as shapes do."""
    turn = 0
    for rows in ROWS:
        for columns in COLUMNS:
            if rows == 0 and over in (Over.COLUMNS, Over.ALL):
                continue
            turn += 1
            s = act(ACTIVATIONS[turn % 5], (0.0, 0.3, 1.0)[turn % 3], over)
            assert_within_bounds(inputs(rows, columns, over, affine=turn % 4 != 0), s)


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations_over_their_whole_range(name, isa):
    """No normalisation: the functions themselves, from below the smallest normal number to where they saturate."""
    ends = [10.0**k for k in range(-45, 39, 3)]
    points = torch.cat([torch.linspace(-14, 14, 2001), torch.tensor(ends), -torch.tensor(ends)])
    for slope in (0.0, 0.01, 1.0, -0.5):
        assert_within_bounds([points.unsqueeze(1), None, None, None, None], act(name, over=0, slope=slope))


@pytest.mark.parametrize("over", [Over.COLUMNS, Over.ROWS, Over.ALL], ids=lambda o: o.name)
def test_large_means_and_small_variances(over, isa):
    for mean, deviation in ((1e3, 1.0), (-1e4, 0.5), (3.0, 1e-3), (1e-20, 1e-22)):
        x = mean + deviation * rand(513, 17)
        x[0] += 300 * deviation  # differences are taken to the first row of a chunk
        assert_within_bounds([x, *inputs(1, 17, over)[1:3], None, None], act("elu", over=over))


@pytest.mark.parametrize("over", [Over.COLUMNS, Over.ROWS, Over.ALL], ids=lambda o: o.name)
@pytest.mark.parametrize("value", [0.0, 7.3, -1e6, 1e-30])
def test_constants_are_normalised_to_zero(over, value, isa):
    x, weight, bias = torch.full((300, 17), value), rand(17, seed=1), rand(17, seed=2)
    s = act("identity", over=over)
    (out, _, var), (dx, dweight, _) = differentiated([x, weight, bias, None, None], s, rand(300, 17))
    unit = weight.abs() * (1 / s.eps if over == Over.ALL else s.eps**-0.5)
    assert ((out - bias).abs() <= 2**-20 * (abs(value) * unit + bias.abs())).all()
    assert (var <= (2**-20 * value) ** 2).all()
    assert dx.isfinite().all() and dweight.isfinite().all()


@pytest.mark.parametrize("over", OVER, ids=lambda o: o.name)
@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_nan_and_infinity_stay_visible(over, bad, isa):
    """Where they are, and in everything that shares statistics with them; nowhere else."""
    for name in ACTIVATIONS:
        for row in (0, 5, 299):
            x, *rest = inputs(300, 17, over)
            x[row, 4] = bad
            (out, mean, var), _ = differentiated([x, *rest], act(name, over=over), rand(300, 17))
            (want, want_mean, want_var), _ = differentiated(
                [x, *rest], act(name, over=over), rand(300, 17), OPS["norm_act"].reference
            )
            assert same(out.isfinite(), want.isfinite()) and (bad == bad or out[row, 4].isnan())
            assert same(mean.isfinite(), want_mean.isfinite()) and same(var.isfinite(), want_var.isfinite())


def everything(over, name):
    shape = (700, 130) if name == "elu" else (530, 34)  # several parts and chunks either way
    results, grads = differentiated(inputs(*shape, over), act(name, 0.4, over), rand(*shape, seed=9))
    return *results, *(g for g in grads if g is not None)


@functools.cache
def plainest(over, name):
    return on_baseline(lambda: everything(over, name))


@pytest.mark.parametrize("over", OVER, ids=lambda o: o.name)
def test_same_bits_for_every_instruction_set_and_thread_count(over, isa, threads):
    for name in ACTIVATIONS:
        assert same_sums(everything(over, name), plainest(over, name))


@pytest.mark.parametrize("over", OVER, ids=lambda o: o.name)
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_gradcheck(over, name):
    args = inputs(5, 3, over, torch.float64)
    for p in (0.0, 0.4):
        leaves = [a.requires_grad_() for a in args[:3] if a is not None]
        rest = args[len(leaves) :]
        assert gradcheck(lambda *a, rest=rest, p=p: norm_act(*a, *rest, *act(name, p, over, eps=0.01))[0], leaves)


@pytest.mark.parametrize("over", OVER, ids=lambda o: o.name)
def test_only_x_and_small_vectors_are_kept(over):
    kept_tensors = []
    x, *rest = inputs(300, 64, over)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept_tensors.append(t) or t, lambda t: t):
        norm_act(x.requires_grad_(), *rest, *act("gelu", 0.5, over))
    large = [t for t in kept_tensors if t.numel() > 300]
    assert [t.data_ptr() for t in large] == [x.data_ptr()]
    assert len(kept_tensors) <= 5


@pytest.mark.parametrize("over", OVER, ids=lambda o: o.name)
def test_strides_change_nothing(over, isa):
    args, dout = inputs(40, 17, over), rand(40, 17, seed=9)
    s = act("elu", 0.3, over)
    (want, *_), want_grads = differentiated(args, s, dout)
    strided = [None if a is None else torch.stack([a, a], -1)[..., 0] for a in args]
    got = norm_act(*strided, *s)
    assert same_sums(got[0], want)
    statistics = got[1:] if args[3] is None else strided[3:]
    wide = [torch.stack([t, t], -1)[..., 0] for t in statistics]
    grads = OPS["norm_act_backward"](torch.stack([dout, dout], -1)[..., 0], *strided[:3], *wide, *s)
    assert all(same_sums(a, b) for a, b in zip(grads, want_grads, strict=True) if b is not None)
    turned = norm_act(args[0].t().contiguous().t(), *args[1:], *s)[0]
    assert same_sums(turned, want) and turned.is_contiguous()


def test_the_result_is_never_the_input():
    x = rand(4, 3)
    out, (dx,) = with_gradients(lambda x: norm_act(x, None, None, None, None, *act("identity", over=0)), [x])
    assert torch.equal(out, x) and torch.equal(dx, torch.ones(4, 3))
    assert norm_act(x, None, None, None, None, *act("identity", over=0))[0].data_ptr() != x.data_ptr()


def test_opcheck():
    for over in (Over.FIXED, Over.ROWS):
        args = [None if a is None else a.requires_grad_(k < 3) for k, a in enumerate(inputs(5, 7, over))]
        opcheck(OPS["norm_act"].overload, (*args, *act("elu", 0.3, over)))
        used = args[3:] if over == Over.FIXED else norm_act(*args, *act("elu", 0.3, over))[1:]
        detached = [None if a is None else a.detach() for a in args[:3]]
        opcheck(OPS["norm_act_backward"].overload, (rand(5, 7), *detached, *used, *act("elu", 0.3, over)))
