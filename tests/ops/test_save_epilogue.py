"""norm, activation and dropout that keep few bits: the results of norm_act to the bit, the codes of pack to the bit."""

from __future__ import annotations

import functools

import pytest
import torch
from torch.library import opcheck

from gossamer.ops import OPS, linear, norm_act, pack, save_epilogue, unpack_fixed
from gossamer.ops.activation import ACTIVATIONS, derivative
from gossamer.ops.dropout import pack_bits
from gossamer.ops.norm_act import Over, affine, normalised, rstd_of
from gossamer.ops.saved_epilogue import slope_range
from support.compare import UNIT, on_baseline, same_bits, same_sums
from support.epilogue import PLAIN, cases, codec, optimal, settings
from support.norm_act import OVER, inputs
from support.tensors import rand


def hat_of(x, mean, var, over, eps):
    """x_hat to the bit, as the codes are functions of its bits; rows have torch's root of theirs a rounding away."""
    if over == Over.ROWS:
        return norm_act(x, *[None] * 4, int(over), eps, 0, 0.0, 0.0, 0)[0]
    return x if over == Over.NOTHING else normalised(x, mean, rstd_of(var, over, eps), over)


@pytest.mark.parametrize("over", OVER, ids=lambda o: o.name)
def test_results_are_those_of_norm_act(over, isa):
    for args, how, chosen in cases(over):
        (out,), mean, var, *_ = save_epilogue(*args, *how, *chosen, [], [])
        assert same_sums((out, mean, var), norm_act(*args, *how))


@pytest.mark.parametrize("over", OVER, ids=lambda o: o.name)
def test_codes_are_those_of_pack(over, isa):
    for args, how, chosen in cases(over):
        (out,), mean, var, *codes, _ = save_epilogue(*args, *how, *chosen, [], [])
        used = args[3:] if over == Over.FIXED else (mean, var)
        bits, block, bf16_meta, levels, noise, _ = chosen
        rows = out if over == Over.NOTHING else hat_of(args[0], *used, over, how[1])
        assert same_bits(codes, pack(rows, bits, block, noise, bf16_meta, levels))


@pytest.mark.parametrize("over", OVER, ids=lambda o: o.name)
def test_marks(over, isa):
    for args, how, chosen in cases(over):
        (out,), mean, var, _, _, _, marks = save_epilogue(*args, *how, *chosen, [], [])
        *rest, act, slope, _, seed = how
        if ACTIVATIONS[act] == "identity":
            assert marks.numel() == 0
        elif ACTIVATIONS[act] == "relu":  # set where dropout lets pass, too
            assert torch.equal(marks, pack_bits(out > 0))
        elif ACTIVATIONS[act] == "leaky_relu":  # dropout is made again
            whole = norm_act(*args, *rest, act, slope, 0.0, seed)[0]
            assert torch.equal(marks, pack_bits(whole > 0))
        else:
            used = args[3:] if over == Over.FIXED else (mean, var)
            hat, slope_bits = hat_of(args[0], *used, over, how[1]), chosen[-1]
            low, high = slope_range(act, slope)
            found = unpack_fixed(marks, out.numel(), slope_bits, low, high).view_as(out)
            step = (high - low) / (2**slope_bits - 1) * (1.0 if chosen[-2] is not None else 0.5)
            off = found - derivative(affine(hat, *args[1:3]), act, slope)
            assert off.abs().max() <= step + 1e-4  # the kernel's exp and erf


def test_nan_passes_relu_and_marks_its_bit(isa):
    x = torch.randn(300, 16)
    x[5, 3] = torch.nan
    *_, zero, _, marks = save_epilogue(x, *[None] * 4, *settings(Over.NOTHING, 1), *codec(), [], [])
    assert torch.equal(marks, pack_bits((x > 0) | x.isnan()))
    assert zero.isnan().sum() == 1


def assert_products(outs, whole, weights, biases):
    """Each is off by a unit of the sum of its terms' magnitudes per term, and linear too, in its own order."""
    for out, weight, bias in zip(outs, weights, biases, strict=True):
        most = whole.abs() @ weight.abs().t() + (0 if bias is None else bias.abs())
        assert out.shape == most.shape
        off = (out - linear(whole, weight, bias)).abs()
        assert (off <= 2 * (whole.size(1) + 2) * UNIT * most).all(), (whole.shape, weight.shape, float(off.max()))


@pytest.mark.parametrize("over", OVER, ids=lambda o: o.name)
def test_products_made_while_the_result_is_in_the_cache(over, isa):
    """The products of norm_act's result; what is saved does not change by them."""
    for args, how, chosen in cases(over):
        columns = args[0].size(1)
        weights, biases = [rand(5, columns, seed=s) for s in (1, 2)], [None, rand(5, seed=3)]
        outs, *kept = save_epilogue(*args, *how, *chosen, weights, biases)
        (whole,), *alone = save_epilogue(*args, *how, *chosen, [], [])
        assert same_bits(kept, alone)
        assert_products(outs, whole, weights, biases)


@pytest.mark.parametrize("p", [0.0, 0.9], ids=["dense", "mostly zero"])
def test_products_of_every_size(p, isa):
    """Steps, blocks of rows, panels and slices of columns that are full, and that are not."""
    for rows, columns in ((1, 1), (7, 3), (96, 16), (101, 130), (205, 400), (13, 9001)):
        weights = [rand(outs, columns, seed=outs) for outs in (1, 16, 0, 40, 65, 200)]
        biases = [None if len(w) == 16 else rand(len(w), seed=1) for w in weights]
        given = (rand(rows, columns), *[None] * 4, *settings(Over.NOTHING, 0, p), *codec(2, 100))
        (whole,), *_ = save_epilogue(*given, [], [])
        assert_products(save_epilogue(*given, weights, biases)[0], whole, weights, biases)


@pytest.mark.parametrize("p", [0.0, 0.9], ids=["dense", "mostly zero"])
@pytest.mark.parametrize("special", [torch.nan, torch.inf])
def test_products_of_special_numbers(p, special, isa):
    """In a row they reach its outputs; in a weight also those of rows that are zero there: 0 times infinity is NaN."""
    x, weight = rand(120, 40), rand(20, 40, seed=1)
    how = (*settings(Over.NOTHING, 1, p), *PLAIN)
    for place in (x, weight):
        before, place[3, 5] = float(place[3, 5]), special
        (whole,), *_ = save_epilogue(x, *[None] * 4, *how, [], [])
        found, want = save_epilogue(x, *[None] * 4, *how, [weight], [None])[0][0], linear(whole, weight)
        assert torch.equal(found.isnan(), want.isnan()) and torch.equal(found.isinf(), want.isinf())
        place[3, 5] = before


def everything(over, act):
    """Blocks that end inside of rows and bytes of marks, and several tiles."""
    args = inputs(700, 34, over)
    chosen = codec(4, 100, levels=optimal(4, 100))
    outs, *kept = save_epilogue(*args, *settings(over, act, 0.4), *chosen, [], [])
    weights, biases = [rand(20, 34), rand(70, 34, seed=1)], [rand(20), None]
    dense, few = (save_epilogue(*args, *settings(over, act, p), *chosen, weights, biases)[0] for p in (0.0, 0.8))
    return *outs, *kept, *dense, *few


@functools.cache
def plainest(over, act):
    return on_baseline(lambda: everything(over, act))


@pytest.mark.parametrize("over", OVER, ids=lambda o: o.name)
def test_same_bits_for_every_instruction_set_and_thread_count(over, isa, threads):
    for act in range(len(ACTIVATIONS)):
        assert same_sums(everything(over, act), plainest(over, act))


def test_without_bits_only_marks_are_kept():
    x = rand(40, 16)
    (out,), mean, var, codes, zero, spread, marks = save_epilogue(x, *[None] * 4, *settings(0, 2), *PLAIN, [], [])
    assert [t.numel() for t in (mean, var, codes, zero, spread, marks)] == [0, 0, 0, 0, 0, 80]
    assert torch.equal(out, torch.nn.functional.leaky_relu(x, 0.2))


def test_strides_change_nothing(isa):
    for over in OVER:
        args, how = inputs(40, 17, over), settings(over, 2, 0.3)
        strided = [None if a is None else torch.stack([a, a], -1)[..., 0] for a in args]
        levels = torch.stack([optimal(2, 256)] * 2, -1)[..., 0]
        want = save_epilogue(*args, *how, *codec(levels=levels.contiguous()), [], [])
        assert same_sums(save_epilogue(*strided, *how, *codec(levels=levels), [], []), want)
        weight, bias = rand(17, 9, seed=1).t(), torch.stack([rand(9)] * 2, -1)[..., 0]
        (got,), *_ = save_epilogue(*args, *how, *codec(), [weight], [bias])
        assert same_sums(got, save_epilogue(*args, *how, *codec(), [weight.contiguous()], [bias.contiguous()])[0])


@pytest.mark.parametrize("rows,columns", [(0, 5), (5, 0)])
def test_nothing_to_keep(rows, columns):
    weight = rand(3, columns)
    outs, *kept = save_epilogue(rand(rows, columns), *[None] * 4, *settings(0, 1), *codec(), [weight], [rand(3)])
    assert outs[0].shape == (rows, 3) and all(t.numel() == 0 for t in kept)
    assert torch.equal(outs[0], rand(3).expand(rows, 3))


@pytest.mark.parametrize(
    "change,kind,message",
    [
        ({0: torch.zeros(4, 3, dtype=torch.float64)}, TypeError, "`x` must be float32"),
        ({11: 3}, ValueError, r"`bits` must be 1, 2, 4 or 8 .*got 3"),
        ({12: 0}, ValueError, r"`block` must be at least 1 element \(got 0\)"),
        ({14: torch.ones(3)}, ValueError, r"`levels` must have the shape \[4\]"),
        ({16: 5}, ValueError, r"`slope_bits` must be 1, 2, 4 or 8 .*got 5"),
        ({17: [torch.zeros(2, 4)], 18: [None]}, ValueError, r"`products\[0\]` must have the shape \[out_features, 3\]"),
        ({17: [torch.zeros(2, 3).double()], 18: [None]}, TypeError, r"`products\[0\]` must be float32"),
        ({17: [torch.zeros(2, 3)], 18: [torch.zeros(3)]}, ValueError, r"`biases\[0\]` must have the shape \[2\]"),
        ({17: [torch.zeros(2, 3)]}, ValueError, r"`biases` must hold one bias or None per product, 1 \(got 0\)"),
        ({9: 2.0}, ValueError, r"`p` must be a probability"),
    ],
)  # fmt: skip
def test_bad_arguments(change, kind, message):
    args = [rand(4, 3), *[None] * 4, *settings(0, 1), *codec(), [], []]
    for at, value in change.items():
        args[at] = value
    with pytest.raises(kind, match=message):
        save_epilogue(*args)


def test_opcheck():
    products = [[rand(2, 7), rand(3, 7)], [None, rand(3)]]
    for over in (Over.FIXED, Over.ROWS, Over.NOTHING):
        for act, rest in ((2, products), (3, [[], []])):
            args = (*inputs(5, 7, over), *settings(over, act, 0.3), *codec(), *rest)
            opcheck(OPS["save_epilogue"].overload, args, test_utils=("test_schema", "test_faketensor"))
