"""The weight gradient of int8 rows from a gradient that is not rounded: float32 sums, in an order of its own."""

from __future__ import annotations

import pytest
import torch
from torch.library import opcheck

from gossamer.ops import OPS, int8_grad_exact
from support.compare import UNIT, on_baseline, same, same_bits
from support.int8_grad import ROWS, exact
from support.paths import needs_native
from support.tensors import codes_of, rand

OUTPUTS = (1, 2, 7, 8, 9, 24)


def operands(rows, columns, outputs):
    return rand(rows, outputs, seed=2), codes_of(rows, columns), rand(rows, seed=1).abs()


def assert_near(args):
    """Within the rounding of sums over the rows, in any order."""
    g, codes, scale = args
    found, truth = int8_grad_exact(*args), exact(g, None, codes, scale)
    size = exact(g.abs(), None, codes.abs(), scale.abs())
    assert found.shape == truth.shape and ((found - truth).abs() <= 2 * (len(g) + 4) * UNIT * size).all()


@pytest.mark.parametrize("rows", ROWS)
def test_is_the_product(rows, isa):
    for k, outputs in enumerate(OUTPUTS):
        assert_near(operands(rows, (1, 15, 16, 17, 64, 100)[k], outputs))


def test_every_width(isa):
    for columns in range(1, 67):
        assert_near(operands(20, columns, OUTPUTS[columns % 6]))


def test_its_reference_is_the_product_in_float64():
    args = operands(700, 20, 3)
    assert torch.equal(OPS["int8_grad_exact"].reference(*args), exact(args[0], None, *args[1:]).float())


@pytest.mark.parametrize("shape", [(0, 3, 2), (4, 0, 2), (4, 3, 0)])
def test_nothing_to_sum(shape):
    rows, columns, outputs = shape
    found = int8_grad_exact(*operands(rows, columns, outputs))
    assert found.shape == (outputs, columns) and not found.any()


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_what_is_not_finite_shows_in_its_row_alone(bad, isa):
    g, codes, scale = operands(600, 20, 9)
    clean = int8_grad_exact(g, codes, scale)
    g[77, 8] = bad
    codes[77] = 1
    hit = int8_grad_exact(g, codes, scale)
    again = int8_grad_exact(g.nan_to_num(0, 0, 0), codes, scale)
    assert not hit[8].isfinite().any() and same(hit[:8], again[:8]) and clean.isfinite().all()


@needs_native
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_same_bits_for_every_instruction_set_and_thread_count(isa, threads):
    args = operands(5000, 70, 9)
    want = on_baseline(lambda: int8_grad_exact(*args))
    torch.set_num_threads(threads)
    assert same_bits(int8_grad_exact(*args), want)


def test_strides_change_nothing(isa):
    g, codes, scale = operands(40, 20, 3)
    others = (g.t().contiguous().t(), torch.cat([codes, codes], 1)[:, :20], torch.stack([scale, scale], 1)[:, 0])
    assert same_bits(int8_grad_exact(*others), int8_grad_exact(g, codes, scale))


def test_opcheck():
    opcheck(OPS["int8_grad_exact"].overload, operands(9, 5, 2), test_utils=("test_schema", "test_faketensor"))


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ((0, rand(9, 2).double()), TypeError, "`g`"),
        ((0, rand(8, 2)), ValueError, "`g`"),
        ((1, rand(9, 5)), TypeError, "`codes`"),
        ((2, rand(8)), ValueError, "`scale`"),
    ],
)
def test_bad_arguments(change, error, message):
    args = list(operands(9, 5, 2))
    args[change[0]] = change[1]
    with pytest.raises(error, match=message):
        int8_grad_exact(*args)
