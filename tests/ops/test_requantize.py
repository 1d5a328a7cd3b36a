"""Codes of a fixed scale: what a sum becomes, from floats and from codes."""

from __future__ import annotations

import pytest
import torch
from torch.library import opcheck

from gossamer.ops import OPS, quantize_affine, requantize
from gossamer.ops.requantize import Requantize, packed, unpacked
from support.compare import on_baseline, same, same_bits
from support.integer import codes, factors, results
from support.tensors import rand


def quantize(*args):
    """The codes of `quantize_affine`."""
    return quantize_affine(*args).codes


COLUMNS = (0, 2, 6, 16, 18, 64, 130)


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("columns", COLUMNS)
def test_equals_the_reference(columns, bits, isa):
    for rows in (0, 1, 7):
        x, mult = rand(rows, columns) * 10, factors(columns, 20.0)
        for to in results(rows, columns, bits):
            assert same_bits(OPS["quantize_affine"](x, mult, to), OPS["quantize_affine"].reference(x, mult, to))
            args = (codes(rows, columns, bits), bits, 4, mult, to)
            assert same_bits(OPS["requantize"](*args), OPS["requantize"].reference(*args))


@pytest.mark.parametrize("columns", [1, 7, 17])
def test_an_odd_number_of_columns(columns, isa):
    x, mult = rand(5, columns) * 10, factors(columns, 20.0)
    for to in results(5, columns, 8):
        assert same_bits(OPS["quantize_affine"](x, mult, to), OPS["quantize_affine"].reference(x, mult, to))


def test_ties_go_to_the_even_code_and_ends_are_clamped(isa):
    x = torch.tensor([[-9.0, -0.5, 0.5, 1.5, 2.5, 254.5, 255.5, 1e30, -1e30, 0.0]])
    assert quantize(x, torch.ones(10), Requantize()).tolist() == [[0, 0, 0, 2, 2, 254, 255, 255, 0, 0]]
    shifted = quantize(x, torch.ones(10), Requantize(zero=10))
    assert shifted.tolist() == [[1, 10, 10, 12, 12, 255, 255, 255, 0, 10]]
    four = unpacked(quantize(x, torch.ones(10), Requantize(zero=1, bits=4)), 4)
    assert four.tolist() == [[0, 1, 1, 3, 3, 15, 15, 15, 0, 1]]


def test_every_factor_and_addend_rounds_for_itself(isa):
    """In this order: times mult, times row, plus shift, plus add, then the slope."""
    x, mult, row = torch.tensor([[3.0, -3.0]]), torch.tensor([0.1, 0.1]), torch.tensor([0.7])
    shift, add = torch.tensor([0.3, 0.3]), torch.tensor([[0.2, -0.2]])
    t = ((x * mult) * row + shift) + add
    assert torch.equal(quantize(x, mult, Requantize(row, shift, add, 1.0, 0, 32)), t)
    leaky = torch.where(t < 0, t * 0.5, t)
    assert torch.equal(quantize(x, mult, Requantize(row, shift, add, 0.5, 0, 32)), leaky)
    assert torch.equal(quantize(x, mult, Requantize(row, shift, add, 0.0, 0, 32)), t.clamp(min=0))


def test_relu_of_codes_is_their_zero_point(isa):
    x = rand(20, 64) * 50
    out = quantize(x, torch.ones(64), Requantize(slope=0.0, zero=9))
    assert int(out.min()) == 9 and torch.equal(out == 9, x < 0.5)


def test_columns_that_are_filled_up_hold_the_zero_point(isa):
    out = quantize(rand(4, 5) * 9, factors(16, 3.0), Requantize(zero=7))
    assert out.shape == (4, 16) and (out[:, 5:] == 7).all()


def test_what_is_not_finite_is_zero_and_told(isa):
    x = rand(200, 37)
    mult = torch.ones(37)
    assert int(quantize_affine(x, mult, Requantize()).bad) == -1
    for bad, row in ((torch.nan, 150), (torch.inf, 77), (-torch.inf, 0)):
        x[row, 36] = bad
        found = quantize_affine(x, mult, Requantize(zero=3))
        assert int(found.bad) == row and found.codes[row, 36] == 3


def test_codes_come_back_within_half_a_step(isa):
    x, scale = rand(30, 40), 0.05
    code = quantize(x, torch.full((40,), 1 / scale), Requantize(zero=128))
    back = requantize(code, 8, 128, torch.full((40,), scale), Requantize(bits=32))
    assert ((back - x).abs() <= scale / 2 * 1.0001).all()


def test_the_first_columns_alone(isa):
    x = codes(6, 32)
    whole = requantize(x, 8, 3, torch.full((32,), 0.1), Requantize(bits=32))
    assert torch.equal(requantize(x, 8, 3, torch.full((9,), 0.1), Requantize(bits=32)), whole[:, :9])


def test_two_codes_to_a_byte_the_first_below():
    assert packed(torch.tensor([[1, 2, 3, 15]], dtype=torch.uint8), 4).tolist() == [[0x21, 0xF3]]
    x = codes(5, 12, 4)
    assert torch.equal(packed(unpacked(x, 4), 4), x)


def test_same_bits_for_every_instruction_set_and_thread_count(isa, threads):
    x, mult = rand(700, 130) * 10, factors(130, 9.0)

    def run():
        made = [quantize_affine(x, mult, to) for to in results(700, 130, 8)]
        return [*made, *(requantize(codes(700, 130), 8, 9, mult, to) for to in results(700, 130, 4))]

    assert same_bits(run(), on_baseline(run))


def test_strides_of_the_inputs():
    x, mult = rand(6, 8).t(), factors(6, 9.0)
    assert same(quantize(x, mult, Requantize()), quantize(x.contiguous(), mult, Requantize()))
    y = codes(8, 6).t()
    mult = factors(8, 9.0)
    assert same(requantize(y, 8, 1, mult, Requantize()), requantize(y.contiguous(), 8, 1, mult, Requantize()))


def test_opcheck():
    x, mult = rand(5, 8), factors(8, 9.0)
    for to in results(5, 8, 4):
        opcheck(OPS["quantize_affine"].overload, OPS["quantize_affine"].flatten(x, mult, to))
        opcheck(OPS["requantize"].overload, OPS["requantize"].flatten(codes(5, 8, 4), 4, 2, mult, to))


@pytest.mark.parametrize(
    "error, name, to",
    [
        (ValueError, "`bits`.*got 5", Requantize(bits=5)),
        (ValueError, "`zero`.*0 to 15.*got 16", Requantize(zero=16, bits=4)),
        (ValueError, "`zero`.*got -1", Requantize(zero=-1)),
        (ValueError, "`slope`.*ReLU.*got 2", Requantize(slope=2.0)),
        (ValueError, "`row`.*one number per row", Requantize(row=torch.ones(3))),
        (TypeError, "`shift`.*float32", Requantize(shift=torch.ones(6).double())),
        (ValueError, "`add`.*that of the result", Requantize(add=torch.ones(6))),
    ],
)
def test_bad_results(error, name, to):
    with pytest.raises(error, match=name):
        quantize(rand(4, 6), torch.ones(6), to)


def test_bad_inputs():
    with pytest.raises(ValueError, match=r"`mult`.*each of the 6 columns of x \(got 5\)"):
        quantize(rand(4, 6), torch.ones(5), Requantize())
    with pytest.raises(ValueError, match=r"`mult`.*even number of columns.*got 7"):
        quantize(rand(4, 7), torch.ones(7), Requantize(bits=4))
    with pytest.raises(ValueError, match=r"`x_bits` must be one of 8, 4 \(got 2\)"):
        requantize(codes(4, 6), 2, 0, torch.ones(6), Requantize())
    with pytest.raises(ValueError, match=r"`mult` must have at most 6 numbers"):
        requantize(codes(4, 6), 8, 0, torch.ones(7), Requantize())
