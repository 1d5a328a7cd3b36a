from __future__ import annotations

import pytest
import torch
from torch.library import opcheck

from gossamer.ops import OPS, dequantize_rows, quantize_rows
from gossamer.ops.quantize_rows import CODE_MAX
from support.compare import on_baseline, random_cotangent, same, same_bits, with_gradients
from support.rounding import DRAWS, assert_stochastic_rounding, grid_levels
from support.tensors import SEEDS, rand, special_rows


def test_equals_the_reference_at_every_width(isa):
    for columns in range(131):
        x = rand(9, columns, seed=columns)
        for seed in SEEDS:
            codes, scale = quantize_rows(x, seed)
            assert same((codes, scale), OPS["quantize_rows"].reference(x, seed)), columns
        assert same(dequantize_rows(codes, scale), OPS["dequantize_rows"].reference(codes, scale)), columns


@pytest.mark.parametrize("rows", [0, 1, 2, 1000])
def test_any_number_of_rows(rows, isa):
    for seed in SEEDS:
        x = rand(rows, 17)
        assert same(quantize_rows(x, seed), OPS["quantize_rows"].reference(x, seed))


def test_every_last_bit_of_many_rows(isa):
    """A reciprocal or a product rounded differently shows in one code of a hundred thousand, or in one scale."""
    x = rand(60_000, 5)
    for seed in SEEDS:
        assert same(quantize_rows(x, seed), OPS["quantize_rows"].reference(x, seed))


def test_unaligned_and_strided_input(isa):
    flat = rand(9 * 33 + 3)
    unaligned = flat[3:].view(9, 33)  # starts 12 bytes after an aligned address
    for x in (unaligned, unaligned.t(), unaligned[:, ::2], unaligned[::3]):
        for seed in SEEDS:
            assert same(OPS["quantize_rows"](x, seed), OPS["quantize_rows"].reference(x, seed))


def test_error_is_half_a_step_or_less_than_one(isa):
    x = rand(200, 130) * torch.logspace(-20, 20, 200).unsqueeze(1)
    for seed, most in ((None, 0.5), (1, 1.0)):
        codes, scale = quantize_rows(x, seed)
        step = scale.double().unsqueeze(1)
        error = (codes.double() * step - x.double()).abs()
        assert (error <= step * (most + 2e-5)).all()  # 2e-5: x * (127 / a) rounds twice, 127 * 2^-23 of a step
        assert (codes.abs().amax(1) == CODE_MAX).all()  # the largest always gets the largest code


@pytest.mark.parametrize("seed", SEEDS)
def test_special_rows(seed, isa):
    x = special_rows()
    codes, scale = quantize_rows(x, seed)
    assert same((codes, scale), OPS["quantize_rows"].reference(x, seed))
    flushed = [0, 1, 3, 9]
    assert not codes[flushed].any() and not scale[flushed].any()
    assert (codes[2] == CODE_MAX).all() and scale[2] == 2.0**-100 / CODE_MAX
    assert codes[4, 3] == CODE_MAX and codes[4, 5] == -CODE_MAX
    assert scale[5:8].isnan().all() and scale[[4, 8]].isfinite().all()
    assert dequantize_rows(codes, scale)[5:8].isnan().all()
    alone = quantize_rows(x[8:9].clone())
    assert seed is not None or same((codes[8:9], scale[8:9]), alone)  # neighbours do not matter


@pytest.mark.parametrize("k", [-20, -3, 1, 20])
@pytest.mark.parametrize("seed", SEEDS)
def test_scaling_by_a_power_of_two_changes_no_code(k, seed, isa):
    x = rand(20, 37)
    codes, scale = quantize_rows(x, seed)
    again, scaled = quantize_rows(x * 2.0**k, seed)
    assert torch.equal(again, codes) and torch.equal(scaled, scale * 2.0**k)


def test_nearest_is_to_even():
    x = torch.tensor([[CODE_MAX, 0.5, 1.5, 2.5, -0.5, -1.5, -2.5, 126.5]])
    assert quantize_rows(x)[0].tolist() == [[127, 0, 2, 2, 0, -2, -2, 126]]


def test_stochastic_rounding_is_unbiased():
    x = rand(3, 101)
    x[1] *= 1e-9  # scales differ by row
    draws = [quantize_rows(x, seed) for seed in range(DRAWS)]
    step = draws[0][1].double().unsqueeze(1).expand_as(x).reshape(-1)
    codes = torch.stack([codes.view(-1) for codes, _ in draws])
    flat = x.double().view(-1)
    assert_stochastic_rounding(codes.double() * step, flat, *grid_levels(flat, step, torch.zeros_like(step)))
    assert (codes[:, x.view(-1).abs() == x.abs().amax(1, keepdim=True).expand_as(x).reshape(-1)].abs() == 127).all()


def test_same_bits_for_every_instruction_set_and_thread_count(isa, threads):
    x = rand(700, 130)

    def run():
        codes, scale = quantize_rows(x, 3)
        return codes, scale, *quantize_rows(x), dequantize_rows(codes, scale)

    assert same_bits(run(), on_baseline(run))


def test_gradient_of_decoding_equals_that_of_the_reference(isa):
    codes, scale = quantize_rows(rand(9, 130))
    got, want = (
        with_gradients(lambda s, op=op: op(codes, s), [scale], random_cotangent)
        for op in (dequantize_rows, OPS["dequantize_rows"].reference)
    )
    torch.testing.assert_close(got, want, rtol=1e-5, atol=0.02)  # 130 terms of size 127, each rounded to 2^-24


def test_rounding_says_that_it_has_no_gradient():
    _, scale = quantize_rows(rand(3, 4).requires_grad_())
    with pytest.raises(RuntimeError, match="`quantize_rows` has no gradient"):
        scale.sum().backward()


def test_opcheck():
    for seed in SEEDS:
        opcheck(OPS["quantize_rows"].overload, (rand(5, 7), seed))
    codes, scale = quantize_rows(rand(5, 7))
    opcheck(OPS["dequantize_rows"].overload, (codes, scale.requires_grad_()))


@pytest.mark.parametrize(
    "error, name, x",
    [
        (TypeError, "`x`.*float64", rand(2, 3).double()),
        (TypeError, "`x`.*bfloat16", rand(2, 3).bfloat16()),
        (ValueError, "`x`.*shape", rand(3)),
        (ValueError, "`x`.*shape", rand(1, 2, 3)),
    ],
)
def test_bad_arguments(error, name, x):
    with pytest.raises(error, match=name):
        quantize_rows(x)


CODES = torch.zeros(2, 3, dtype=torch.int8)


@pytest.mark.parametrize(
    "error, name, codes, scale",
    [
        (TypeError, "`codes`.*uint8", CODES.to(torch.uint8), torch.ones(2)),
        (ValueError, "`codes`.*shape", CODES[0], torch.ones(2)),
        (ValueError, "`scale`.*\\[2\\]", CODES, torch.ones(3)),
        (ValueError, "`scale`", CODES, torch.ones(2, 1)),
        (TypeError, "`scale`.*float64", CODES, torch.ones(2).double()),
    ],
)
def test_bad_codes(error, name, codes, scale):
    with pytest.raises(error, match=name):
        dequantize_rows(codes, scale)
