from __future__ import annotations

import pytest
import torch
from torch.autograd import gradcheck
from torch.library import opcheck

from gossamer.ops import OPS, dropout, dropout_saving_mask, masked_scale, relu_dropout
from gossamer.ops.dropout import kept, pack_bits, unpack_bits
from support.compare import on_baseline, random_cotangent, same, same_bits, with_gradients
from support.tensors import rand

SIZES = (0, 1, 7, 8, 9, 15, 16, 17, 31, 64, 130, 1000)
RATES = (0.0, 1e-12, 0.1, 0.5, 0.9, 1 - 1e-12, 1.0)
WITH_MASK = ("dropout_mask", "relu_dropout")


@pytest.mark.parametrize("p", RATES)
def test_equals_the_reference(p, isa):
    for seed, numel in enumerate(SIZES):
        x = rand(numel, seed=numel)
        assert same_bits(OPS["dropout"](x, p, seed), OPS["dropout"].reference(x, p, seed))
        for name in WITH_MASK:
            out, mask = OPS[name](x, p, seed)
            assert same_bits((out, mask), OPS[name].reference(x, p, seed))
            assert same_bits(masked_scale(x, mask, p), OPS["masked_scale"].reference(x, mask, p))


def test_special_numbers(isa):
    """NaN passes relu, infinities scale, dropped elements are zeros whatever they were."""
    x = torch.tensor([torch.nan, torch.inf, -torch.inf, -0.0, 0.0, 1e-40, -1e-40, 3e38]).repeat(20)
    for p in (0.0, 0.5, 1.0):
        for name in ("dropout", *WITH_MASK):
            assert same(OPS[name](x, p, 4), OPS[name].reference(x, p, 4))
    assert relu_dropout(x, 0.0, 0).isnan().sum() == 20
    assert not relu_dropout(x, 1.0, 0).any()


@pytest.mark.parametrize("p", [0.0, 0.3, 1.0])
def test_gradients_equal_those_of_the_reference(p, isa):
    """A product with the same factor on both paths: equal to the bit."""
    x = rand(13, 17)
    for name in ("dropout", *WITH_MASK):
        got, want = (with_gradients(lambda x, op=op: op(x, p, 9), [x], random_cotangent) for op in both(name))
        assert same((got[0], *got[1]), (want[0], *want[1]))
    mask = OPS["relu_dropout"](x, p, 9)[1]
    got, want = (with_gradients(lambda x, op=op: op(x, mask, p), [x], random_cotangent) for op in both("masked_scale"))
    assert same((got[0], *got[1]), (want[0], *want[1]))


def both(name):
    return OPS[name], OPS[name].reference


def test_same_bits_for_every_instruction_set_and_thread_count(isa, threads):
    x = rand(700, 130)

    def run():
        out, mask = OPS["relu_dropout"](x, 0.4, 3)
        return dropout(x, 0.4, 3), out, mask, masked_scale(x, mask, 0.4), *dropout_saving_mask(x, 0.4, 3)

    assert same_bits(run(), on_baseline(run))


def test_gradcheck():
    x = torch.linspace(-2, 2, 40, dtype=torch.float64).requires_grad_()  # no element at the kink of relu
    assert gradcheck(lambda x: dropout(x, 0.4, 1), (x,))
    assert gradcheck(lambda x: dropout_saving_mask(x, 0.4, 1)[0], (x,))
    assert gradcheck(lambda x: relu_dropout(x, 0.4, 1), (x,))
    mask = pack_bits(torch.arange(40) % 3 == 0)
    assert gradcheck(lambda x: masked_scale(x, mask, 0.4), (x,))


def test_relu_dropout_is_dropout_of_relu(isa):
    x = rand(100, 17)
    assert torch.equal(relu_dropout(x, 0.3, 2), dropout(x.relu(), 0.3, 2))
    assert torch.equal(relu_dropout(x, 0.0, 2), x.relu())


def test_all_forms_use_one_mask():
    x = rand(1000).abs()
    keep = kept(x, 0.3, 5)
    out, mask = dropout_saving_mask(x, 0.3, 5)
    assert torch.equal(unpack_bits(mask, 1000), keep)
    assert torch.equal(out, dropout(x, 0.3, 5)) and torch.equal(out, masked_scale(x, mask, 0.3))
    assert torch.equal(out != 0, keep)


@pytest.mark.parametrize("p", [0.01, 0.3, 0.5, 0.97])
def test_rate_and_scale(p):
    """The number of survivors is binomial; survivors are divided by 1 - p, so that the mean is kept."""
    x = torch.ones(400_000)
    out = dropout(x, p, 17)
    survivors = int((out != 0).sum())
    assert abs(survivors - len(x) * (1 - p)) < 5 * (len(x) * p * (1 - p)) ** 0.5
    assert torch.equal(out[out != 0], torch.full((survivors,), 1 / (1 - p)))
    rates = torch.stack([dropout(torch.ones(64), p, seed) != 0 for seed in range(4000)]).double().mean(0)
    assert ((rates - (1 - p)).abs() < 5 * (p * (1 - p) / 4000) ** 0.5).all()  # no element is favoured over seeds


def test_seeds_differ_and_repeat():
    x = rand(1000)
    assert torch.equal(dropout(x, 0.5, 1), dropout(x, 0.5, 1))
    agree = int(((dropout(x, 0.5, 1) != 0) == (dropout(x, 0.5, 2) != 0)).sum())
    assert abs(agree - 500) < 5 * 250**0.5


def test_bits_are_in_row_major_order_lowest_first():
    mask = torch.tensor([[True, False, True], [False, False, True], [True, True, False]])
    assert pack_bits(mask).tolist() == [0b11100101, 0b0]
    assert torch.equal(unpack_bits(pack_bits(mask), 9).view(3, 3), mask)


def test_shapes_and_strides_of_the_input():
    x = rand(6, 4, 3)
    assert torch.equal(dropout(x, 0.5, 1).view(-1), dropout(x.reshape(-1), 0.5, 1))
    assert torch.equal(relu_dropout(x.transpose(0, 2), 0.5, 1), relu_dropout(x.transpose(0, 2).contiguous(), 0.5, 1))
    assert dropout(torch.tensor(2.0), 0.0, 1) == 2.0


def test_dropout_keeps_nothing_for_backward():
    held = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: held.append(t) or t, lambda t: t):
        dropout(rand(100).requires_grad_(), 0.5, 1)
        assert not held
        relu_dropout(rand(100).requires_grad_(), 0.5, 1)
    assert [(t.dtype, t.numel()) for t in held] == [(torch.uint8, 13)]


def test_opcheck():
    for dtype in (torch.float32, torch.float64):
        x = rand(5, 7, dtype=dtype).requires_grad_()
        for name in ("dropout", *WITH_MASK):
            opcheck(OPS[name].overload, (x, 0.3, 1))
        opcheck(OPS["masked_scale"].overload, (x, torch.zeros(5, dtype=torch.uint8), 0.3))


@pytest.mark.parametrize("name", ["dropout", *WITH_MASK])
def test_bad_arguments(name):
    for p in (-0.1, 1.1, float("nan")):
        with pytest.raises(ValueError, match=f"`p`.*{p}"):
            OPS[name](rand(3), p, 0)
    with pytest.raises(TypeError, match=r"`x`.*bfloat16"):
        OPS[name](rand(3).bfloat16(), 0.5, 0)


@pytest.mark.parametrize(
    "error, name, mask, p",
    [
        (TypeError, "`mask`.*bool", torch.ones(2, dtype=torch.bool), 0.5),
        (ValueError, "`mask`.*\\[2\\]", torch.ones(1, dtype=torch.uint8), 0.5),
        (ValueError, "`mask`", torch.ones(1, 2, dtype=torch.uint8), 0.5),
        (ValueError, "`p`", torch.ones(2, dtype=torch.uint8), 2.0),
    ],
)
def test_bad_masks(error, name, mask, p):
    with pytest.raises(error, match=name):
        masked_scale(rand(9), mask, p)
