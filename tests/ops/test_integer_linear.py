"""Products of codes with integer weights."""

from __future__ import annotations

import pytest
import torch
from torch.library import opcheck

from gossamer.ops import OPS, integer_linear, integer_linear_two
from gossamer.ops.integer_linear import IntegerProduct
from gossamer.ops.requantize import Requantize, unpacked
from support.compare import on_baseline, same_bits
from support.integer import codes, factors, results, weights
from support.tensors import strided, unaligned

SHAPES = [(2, 2), (4, 16), (6, 40), (16, 64), (34, 66), (64, 2), (130, 70), (256, 40)]
FLOATS = Requantize(bits=32)


def product(rows: int, columns: int, outs: int, bits: int, seed: int = 0) -> IntegerProduct:
    bias = torch.randint(-5000, 5000, (outs,), generator=torch.Generator().manual_seed(seed), dtype=torch.int32)
    return IntegerProduct(codes(rows, columns, bits, seed), bits, weights(outs, columns), bias, factors(outs, 1e-3))


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("columns, outs", SHAPES)
def test_equals_the_reference(columns, outs, bits, isa):
    for rows in (0, 1, 5, 6, 7, 25):
        p, second = product(rows, columns, outs, bits), product(rows, 10, outs, bits, seed=1)
        for to in results(rows, outs, bits):
            assert same_bits(OPS["integer_linear"](p, to), OPS["integer_linear"].reference(p, to))
            two = OPS["integer_linear_two"]
            assert same_bits(two(p, second, to), two.reference(p, second, to))


@pytest.mark.parametrize("columns, outs", [(1, 1), (3, 7), (7, 17), (17, 3)])
def test_odd_shapes(columns, outs, isa):
    p = product(9, columns, outs, 8)
    for to in results(9, outs, 8):
        assert same_bits(OPS["integer_linear"](p, to), OPS["integer_linear"].reference(p, to))


def test_is_the_product_of_integers(isa):
    p = product(20, 130, 40, 8)
    exact = p.x.double() @ p.weight.double().t() + p.bias
    assert torch.equal(integer_linear(p._replace(mult=torch.ones(40)), FLOATS), exact.float())


def test_the_largest_codes_and_weights(isa):
    """Nothing saturates on the way: pairs of products exceed 16 bits."""
    x, w = torch.full((7, 1024), 255, dtype=torch.uint8), torch.full((16, 1024), -128, dtype=torch.int8)
    w[::2] = 127
    out = integer_linear(IntegerProduct(x, 8, w, None, torch.ones(16)), FLOATS)
    assert torch.equal(out, (x.double() @ w.double().t()).float())


def test_the_zero_point_leaves_by_the_bias(isa):
    x, w, zero = codes(9, 64), weights(16, 64), 100
    bias = (-zero * w.long().sum(1)).int()
    out = integer_linear(IntegerProduct(x, 8, w, bias, torch.ones(16)), FLOATS)
    assert torch.equal(out, ((x.double() - zero) @ w.double().t()).float())


def test_two_products_round_once(isa):
    p, second = product(30, 64, 48, 8), product(30, 32, 48, 8, seed=1)
    sums = integer_linear(p, FLOATS) + integer_linear(second, FLOATS)
    want = (sums.round() + 40).clamp(0, 255).to(torch.uint8)
    assert torch.equal(integer_linear_two(p, second, Requantize(zero=40)), want)


def test_columns_of_zero_weight_change_nothing(isa):
    p = product(9, 40, 16, 8)
    wide = p._replace(x=torch.cat([p.x, codes(9, 24)], 1), weight=torch.nn.functional.pad(p.weight, (0, 24)))
    for to in results(9, 16, 8):
        assert same_bits(integer_linear(wide, to), integer_linear(p, to))


def test_same_bits_for_every_instruction_set_and_thread_count(isa, threads):
    p, second = product(700, 130, 70, 8), product(700, 34, 70, 4, seed=1)

    def run():
        return [integer_linear_two(p, second, to) for to in results(700, 70, 8)]

    assert same_bits(run(), on_baseline(run))


def test_layouts_of_the_inputs():
    p = product(9, 40, 16, 8)
    for layout in (strided, unaligned):
        other = p._replace(x=layout(p.x), weight=layout(p.weight), bias=layout(p.bias), mult=layout(p.mult))
        assert same_bits(integer_linear(other, Requantize()), integer_linear(p, Requantize()))


def test_four_bits_are_codes_as_any(isa):
    p = product(9, 40, 16, 4)
    whole = p._replace(x=unpacked(p.x, 4), x_bits=8)
    assert same_bits(integer_linear(p, Requantize()), integer_linear(whole, Requantize()))


def test_opcheck():
    p, second = product(5, 8, 6, 8), product(5, 4, 6, 4, seed=1)
    for to in results(5, 6, 8):
        opcheck(OPS["integer_linear"].overload, OPS["integer_linear"].flatten(p, to))
        opcheck(OPS["integer_linear_two"].overload, OPS["integer_linear_two"].flatten(p, second, to))


def test_bad_arguments():
    p = product(5, 8, 6, 8)
    with pytest.raises(ValueError, match=r"`weight`.*\[outputs, 8\].*got \(6, 7\)"):
        integer_linear(p._replace(weight=weights(6, 7)), Requantize())
    with pytest.raises(TypeError, match=r"`weight` must be int8"):
        integer_linear(p._replace(weight=torch.ones(6, 8)), Requantize())
    with pytest.raises(TypeError, match=r"`bias` must be int32"):
        integer_linear(p._replace(bias=torch.ones(6)), Requantize())
    with pytest.raises(ValueError, match=r"`mult`.*\[6\]"):
        integer_linear(p._replace(mult=torch.ones(5)), Requantize())
    with pytest.raises(TypeError, match=r"`x` must be uint8"):
        integer_linear(p._replace(x=p.x.float()), Requantize())
    with pytest.raises(ValueError, match=r"`x_bits` must be one of 8, 4 \(got 3\)"):
        integer_linear(p._replace(x_bits=3), Requantize())
    with pytest.raises(ValueError, match=r"`second`.*as many rows as x"):
        integer_linear_two(p, product(4, 8, 6, 8), Requantize())
    with pytest.raises(ValueError, match=r"`second_weight`.*as many outputs as weight"):
        integer_linear_two(p, product(5, 8, 7, 8), Requantize())
