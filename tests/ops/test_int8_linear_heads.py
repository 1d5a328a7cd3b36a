"""GAT's projection: rows of a product, and the terms of attention's logits from what they were before rounding."""

from __future__ import annotations

import pytest
import torch

from gossamer.ops import OPS, int8_linear, int8_linear_heads, int8_linear_rows
from support.compare import UNIT, same, same_bits
from support.int8_ops import HEADS, SHAPES, every_width, projection
from support.tensors import SEEDS


def assert_projection(args):
    """The rows are those of int8_linear_rows; a term is a sum of `width` products, in any order."""
    *product, att, heads = args
    h, width = int8_linear(*product), att.size(1) // heads
    for seed in SEEDS:
        *rows, terms = int8_linear_heads(*args, seed)
        *want_rows, want = OPS["int8_linear_heads"].reference(*args, seed)
        assert same_bits(rows, int8_linear_rows(*product, None, None, seed)) and same(rows, want_rows)
        size = (h.abs() * att.abs().unsqueeze(1)).view(len(att), len(h), heads, width).sum(3)
        assert terms.shape == want.shape and ((terms - want).abs() <= 2 * (width + 8) * UNIT * size).all()


@pytest.mark.parametrize("shape", SHAPES)
def test_projection(shape, isa):
    for terms, heads in ((1, 1), (2, shape[2]), (3, max(h for h in HEADS if shape[2] % h == 0))):
        assert_projection(projection(*shape, max(heads, 1), terms))


def test_projection_at_every_width(isa):
    for heads, width in every_width():
        assert_projection(projection(5, 9, heads * width, heads))


def test_terms_are_those_of_rows_before_rounding(isa):
    """In float64: nearer than the rows after it are."""
    args = projection(40, 64, 48, 3)
    *rows, terms = int8_linear_heads(*args, None)
    h, att = int8_linear(*args[:4]).double(), args[4].double()
    after = rows[0].double() * rows[1].double().unsqueeze(1)
    want, rounded = ((value * att.unsqueeze(1)).view(2, 40, 3, 16).sum(3) for value in (h, after))
    torch.testing.assert_close(terms.double(), want, rtol=1e-5, atol=1e-6 * float(want.abs().max()))
    assert (terms - rounded).abs().max() > 100 * (terms - want).abs().max()


def test_nothing_to_project():
    codes, scale, terms = int8_linear_heads(*projection(0, 5, 6, 2), None)
    assert codes.shape == (0, 6) and scale.shape == (0,) and terms.shape == (2, 0, 2)
    codes, scale, terms = int8_linear_heads(*projection(4, 5, 0, 2), None)
    assert codes.shape == (4, 0) and same((scale, terms), (torch.zeros(4), torch.zeros(2, 4, 2)))
    assert int8_linear_heads(*projection(4, 5, 6, 2, terms=0), None)[2].shape == (0, 4, 2)


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_bad_numbers_in_a_projection_show_where_they_are_used(bad, isa):
    x, x_scale, w, w_scale, att, heads = args = projection(14, 7, 20, 4)
    clean = int8_linear_heads(*args, 1)
    x_scale = x_scale.clone()
    x_scale[9] = bad
    _, scale, terms = int8_linear_heads(x, x_scale, w, w_scale, att, heads, 1)
    here = torch.arange(14) == 9
    assert torch.equal(scale.isnan(), here) and not terms[:, 9].isfinite().any()
    assert same((scale[~here], terms[:, ~here]), (clean[1][~here], clean[2][:, ~here]))
    changed = w_scale.clone()
    changed[18] = bad  # of the last head
    _, scale, terms = int8_linear_heads(x, args[1], w, changed, att, heads, 1)
    assert scale.isnan().all() and not terms[:, :, 3].isfinite().any() and same(terms[..., :3], clean[2][..., :3])
    changed = att.clone()
    changed[1, 6] = bad  # of the second
    codes, scale, terms = int8_linear_heads(*args[:4], changed, heads, 1)
    assert same((codes, scale, terms[0]), (*clean[:2], clean[2][0])) and not terms[1, :, 1].isfinite().any()
    assert same(terms[1][:, [0, 2, 3]], clean[2][1][:, [0, 2, 3]])


def test_zero_scales_of_a_projection_are_zeros(isa):
    x, x_scale, *rest = projection(14, 7, 20, 4)
    assert not any(t.any() for t in int8_linear_heads(x, torch.zeros_like(x_scale), *rest, 1))
