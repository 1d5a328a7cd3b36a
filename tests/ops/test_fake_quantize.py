"""Fake quantisation: levels, gradients, protected rows; and histograms."""

from __future__ import annotations

import pytest
import torch
from torch.autograd import gradcheck
from torch.library import opcheck

from gossamer.ops import OPS, fake_quantize, histogram
from gossamer.ops.fake_quantize import Rule
from support.compare import on_baseline, random_cotangent, same, same_bits, with_gradients
from support.tensors import rand

COLUMNS = (0, 1, 7, 16, 17, 64, 130)
ZERO = torch.tensor([7.0])


def arguments(rows: int, columns: int, wide: bool, times: bool, keeps: bool):
    scale = rand(columns, seed=1).abs() * 0.2 + 0.01 if wide and columns > 1 else torch.tensor([0.1])
    row = rand(rows, seed=2).abs() if times else None
    keep = rand(rows, seed=3) > 0.5 if keeps else None
    return scale, ZERO, row, keep


@pytest.mark.parametrize("rule", list(Rule))
@pytest.mark.parametrize("columns", COLUMNS)
def test_equals_the_reference(columns, rule, isa):
    """Forward, and the bits through which gradients pass."""
    op, back = OPS["fake_quantize"], OPS["fake_quantize_backward"]
    for k in range(8):
        scale, zero, row, keep = arguments(9, columns, k & 1, k & 2, k & 4)
        x = rand(9, columns, seed=k) * 2
        for top in (1, 15, 255):
            got, want = op(x, scale, zero, row, keep, top, rule), op.reference(x, scale, zero, row, keep, top, rule)
            assert same_bits(got, want)
            dout = rand(9, columns, seed=9)
            assert same_bits(back(dout, row, got[1]), back.reference(dout, row, got[1]))
            assert same_bits(back(dout, row, None), back.reference(dout, row, None))


@pytest.mark.parametrize("rule", list(Rule))
def test_gradients_equal_those_of_the_reference(rule, isa):
    for k in range(8):
        scale, zero, row, keep = arguments(13, 17, k & 1, k & 2, k & 4)
        x = rand(13, 17) * 2

        def run(op, x=x, scale=scale, zero=zero, row=row, keep=keep):
            return with_gradients(lambda x: op(x, scale, zero, row, keep, 15, rule), [x], random_cotangent)

        op = OPS["fake_quantize"]
        inside = op.reference(x, scale, zero, row, keep, 15, rule)[1]
        out, (dx,) = run(op)
        assert same(out, op.reference(x, scale, zero, row, keep, 15, rule)[0])
        assert same(dx, OPS["fake_quantize_backward"].reference(random_cotangent(out), row, inside))


def test_the_rules_where_they_differ(isa):
    """Codes -1, 0, 3, 15 and 16 of 4 bits, zero at 7."""
    x = torch.tensor([[-0.8, -0.7, -0.4, 0.8, 0.9]])
    passes = {Rule.STRAIGHT_THROUGH: [1, 1, 1, 1, 1], Rule.CLIPPED: [0, 1, 1, 1, 0], Rule.INCLUSIVE: [0, 0, 1, 0, 0]}
    for rule, want in passes.items():
        leaf = x.clone().requires_grad_()
        fake_quantize(leaf, torch.tensor([0.1]), ZERO, top=15, rule=rule).sum().backward()
        assert leaf.grad.tolist() == [want], rule


@pytest.mark.parametrize("bits", range(2, 9))
def test_levels(bits, isa):
    """Within half a step inside the range, idempotent, monotone, and zero is exact."""
    top, scale = 2**bits - 1, torch.tensor([0.07])
    zero = torch.tensor([float(top // 2)])
    x = torch.linspace(-2, 30, 4001).unsqueeze(0)
    out = fake_quantize(x, scale, zero, top=top)
    low, high = -float(zero) * 0.07, (top - float(zero)) * 0.07
    inside = (x >= low) & (x <= high)
    assert ((out - x).abs()[inside] <= 0.035 * 1.0001).all()
    assert torch.equal(fake_quantize(out, scale, zero, top=top), out)
    assert (out.diff() >= 0).all()
    assert fake_quantize(torch.zeros(1, 1), scale, zero, top=top).item() == 0
    assert len(out.unique()) <= top + 1


def test_ties_go_to_the_even_step_whatever_the_zero_point(isa):
    x = torch.tensor([[0.5, 1.5, 2.5, -0.5, -1.5]])
    for zero in (2.0, 3.0):
        out = fake_quantize(x, torch.ones(1), torch.tensor([zero]), top=15)
        assert out.tolist() == [[0.0, 2.0, 2.0, 0.0, -2.0]]


def test_protected_rows_pass_bit_for_bit(isa):
    x, keep = rand(40, 33) * 100, rand(40, seed=1) > 0
    out = fake_quantize(x, torch.tensor([0.1]), ZERO, keep=keep, top=15)
    assert same_bits(out[keep], x[keep]) and not same_bits(out[~keep], x[~keep])
    row = rand(40, seed=2)
    out = fake_quantize(x, torch.tensor([0.1]), ZERO, row, keep, 15)
    assert same_bits(out[keep], x[keep] * row[keep].unsqueeze(1))


def test_special_numbers(isa):
    x = torch.tensor([[torch.nan, torch.inf, -torch.inf, 3e38, -3e38, 1e-40, -0.0]])
    out = fake_quantize(x, torch.tensor([0.1]), ZERO, top=255)
    assert out[0, 0].isnan() and out[0, 1:].isfinite().all()
    assert same(out, OPS["fake_quantize"].reference(x, torch.tensor([0.1]), ZERO, None, None, 255, 1)[0])


def test_same_bits_for_every_instruction_set_and_thread_count(isa, threads):
    x = rand(700, 130)
    scale, zero, row, keep = arguments(700, 130, True, True, True)

    def run():
        made = [OPS["fake_quantize"](x, scale, zero, row, keep, 15, rule) for rule in Rule]
        counts = histogram(x, row, keep, -1.0, 1.5, 100)
        return *made, OPS["fake_quantize_backward"](x, row, made[1][1]), counts

    assert same_bits(run(), on_baseline(run))


def test_one_bit_per_element_is_saved():
    held = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: held.append(t) or t, lambda t: t):
        fake_quantize(rand(100, 40).requires_grad_(), torch.tensor([0.1]), ZERO)
    assert [(t.dtype, tuple(t.shape)) for t in held] == [(torch.uint8, (100, 6))]


def test_gradcheck_of_the_backward():
    bits = OPS["fake_quantize"](rand(6, 5), torch.tensor([0.1]), ZERO, None, None, 15, Rule.CLIPPED)[1]
    dout = rand(6, 5, dtype=torch.float64).requires_grad_()
    row = rand(6)
    assert gradcheck(lambda dout: OPS["fake_quantize_backward"](dout, row, bits), (dout,), atol=1e-6)


def test_other_dtypes_take_the_reference():
    x = rand(5, 6, dtype=torch.float64).requires_grad_()
    out = fake_quantize(x, torch.tensor([0.1]), ZERO)
    out.sum().backward()
    assert out.dtype == x.grad.dtype == torch.float64


# Histograms -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("columns", COLUMNS)
def test_histograms_equal_the_reference(columns, isa):
    x = rand(30, columns)
    for row, keep in ((None, None), (rand(30, seed=1).abs(), rand(30, seed=2) > 0)):
        for bins in (1, 7, 2048):
            args = (x, row, keep, -1.0, 1.5, bins)
            assert torch.equal(histogram(*args), OPS["histogram"].reference(*args))


def test_histograms_count_everything_but_nan(isa):
    x = torch.tensor([[torch.nan, torch.inf, -torch.inf, -5.0, 0.0, 0.24, 0.25, 0.99, 1.0, 7.0]])
    assert histogram(x, None, None, 0.0, 1.0, 4).tolist() == [2, 2, 1, 0, 1, 3]
    assert histogram(x, None, torch.tensor([True]), 0.0, 1.0, 4).sum() == 0


def test_opcheck():
    x = rand(5, 7).requires_grad_()
    for k in range(8):
        scale, zero, row, keep = arguments(5, 7, k & 1, k & 2, k & 4)
        opcheck(OPS["fake_quantize"].overload, (x, scale, zero, row, keep, 15, 1))
        bits = OPS["fake_quantize"](x.detach(), scale, zero, row, keep, 15, 1)[1]
        opcheck(OPS["fake_quantize_backward"].overload, (x, row, bits))
        opcheck(OPS["histogram"].overload, (x.detach(), row, keep, -1.0, 1.0, 9))


def test_bad_arguments():
    x = rand(4, 6)
    one = torch.tensor([0.1])
    for args, message in (
        ((x[0], one, ZERO), r"`x` must have the shape \[rows, columns\]"),
        ((x, torch.ones(5), ZERO), r"`scale`.*\[1\], or \[6\]"),
        ((x, one, torch.ones(2)), r"`zero` must have the shape \[1\]"),
        ((x, one, ZERO, torch.ones(3)), r"`row`.*one number per row"),
        ((x, one, ZERO, None, torch.ones(3) > 0), r"`keep`.*one truth value per row"),
        ((x, one, ZERO, None, None, 256), r"`top` must be from 1 to 255"),
        ((x, one, ZERO, None, None, 15, 3), r"`rule` must be one of .*CLIPPED = 1.*got 3"),
    ):
        with pytest.raises(ValueError, match=message):
            fake_quantize(*args)
    with pytest.raises(ValueError, match="`low` and `high` must be finite"):
        histogram(x, None, None, 1.0, 1.0, 5)
    with pytest.raises(ValueError, match="`bins` must be from 1"):
        histogram(x, None, None, 0.0, 1.0, 0)
