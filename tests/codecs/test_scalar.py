"""Scalar codes of features: levels, zeros, scopes, refinement, bytes."""

from __future__ import annotations

import dataclasses
import itertools

import pytest
import torch

from gossamer import Scalar
from gossamer.codecs import Codes
from gossamer.ops.pack_ids import unpack_ids

BITS = (1, 2, 4, 8)


def codes_of(codec, x):
    """One code per number."""
    return unpack_ids(codec.encode(x).tensors[0], x.size(1), codec.bits)


def round_trip(codec, x):
    return codec.decode(codec.encode(x))


@pytest.mark.parametrize("per", ["tensor", "column"])
@pytest.mark.parametrize("zeros", ["keep", "fold"])
@pytest.mark.parametrize("bits", [2, 4, 8])
def test_uniform_levels(bits, zeros, per, sample):
    """The error is at most half a step inside; beyond, numbers are clipped to the ends."""
    x = sample(4000, 3) + 0.7
    codec = Scalar(bits, per=per, zeros=zeros, refine=False).fit(x)
    table = codec.fitted.table
    step = table.diff(dim=0)
    torch.testing.assert_close(step, step[:1].expand_as(step), rtol=1e-4, atol=1e-6)
    error = (round_trip(codec, x) - x).abs()
    inside = (x >= table[0]) & (x <= table[-1])
    assert 0.97 < inside.float().mean() < (1.0 if zeros == "fold" else 1.01)
    assert (error <= step[0] / 2 * 1.001 + 1e-6)[inside].all()
    ends = torch.where(x > table[-1], table[-1], table[0])
    assert torch.equal(round_trip(codec, x)[~inside], ends.expand_as(x)[~inside])
    assert zeros != "keep" or bool((table == 0).sum(0).eq(1).all())
    assert torch.equal(codes_of(codec, round_trip(codec, x)), codes_of(codec, x))  # idempotent
    outside = codec.encode(torch.tensor([[1e9] * 3, [-1e9] * 3]))
    assert torch.equal(codec.decode(outside), torch.stack([table[-1].expand(3), table[0].expand(3)]))


@pytest.mark.parametrize("zeros", ["keep", "fold"])
@pytest.mark.parametrize("bits", [2, 4, 8])
def test_log_levels(bits, zeros):
    """Ratios within 2^(+-w/2), signs kept, monotone."""
    magnitude = torch.logspace(-3, 1, 2001, base=2)
    x = torch.cat([-magnitude.flip(0), magnitude]).unsqueeze(1)
    codec = Scalar(bits, "log", "tensor", zeros, refine=False).fit(x)
    decoded = round_trip(codec, x)
    count = 2 ** (bits - 1) - (zeros == "keep")
    octaves = 4 * 0.99 + 1e-5  # between the 0.5 and the 99.5 percentile
    inside = (x.abs() >= 2.0**-2.98) & (x.abs() <= 2.0**0.98)
    ratio = (decoded / x)[inside].log2().abs()
    assert ratio.max() <= octaves / count / 2 * 1.02
    assert ratio.max() > octaves / count / 2 * 0.9
    assert torch.equal(decoded.sign(), x.sign())
    assert (decoded.diff(dim=0) >= 0).all() and decoded.unique().numel() == 2 * count
    assert torch.equal(codes_of(codec, decoded), codes_of(codec, x))
    of_zero = round_trip(codec, torch.zeros(1, 1))
    assert (of_zero == 0) if zeros == "keep" else (of_zero == decoded[len(magnitude) - 1])  # the smallest negative


def test_log_fits_small_numbers_too():
    x = torch.tensor([[1e-20], [-2e-20], [3e-20], [8e-20]])
    assert ((round_trip(Scalar(8, "log", zeros="fold"), x) / x - 1).abs() < 0.1).all()


@pytest.mark.parametrize("bits, expected", [(1, 0.3634), (2, 0.1175), (4, 0.0098)])
def test_optimal_levels_of_normal_numbers(bits, expected, sample):
    """Of one and two bits the least squared error that there is (Max 1960); of four 0.0095 after many more steps."""
    x = sample(100_000, 2)
    before, after = (float((round_trip(Scalar(bits, s), x) - x).square().mean()) for s in ("uniform", "optimal"))
    assert after == pytest.approx(expected, rel=0.01) and after <= before * (1 + 1e-6)


@pytest.mark.parametrize("per", ["tensor", "column"])
@pytest.mark.parametrize("zeros", ["keep", "fold"])
@pytest.mark.parametrize("bits", BITS)
def test_optimal_never_errs_more_than_uniform(bits, zeros, per, sample):
    """With thresholds half-way between ascending levels, each the mean of what has its code."""
    x = (sample(3000, 3) * torch.tensor([1.0, 2.0, 30.0])).exp().clamp(max=1e4) * (sample(3000, 3).flip(0) > -1)
    errors = []
    for scale in ("uniform", "optimal"):
        if bits == 1 and scale == "uniform":
            continue  # another threshold
        decoded = round_trip(Scalar(bits, scale, per, zeros), x).double()
        errors.append((decoded - x).square().sum(0 if per == "column" else (0, 1)))
        assert zeros == "fold" or (decoded[x == 0] == 0).all()
    assert (errors[-1] <= errors[0] * (1 + 1e-6)).all()
    fitted = Scalar(bits, "optimal", per, zeros, refine=False).fit(x).fitted
    assert (fitted.table.diff(dim=0) >= 0).all()
    if bits > 1:
        middle = (fitted.table[1:].double() + fitted.table[:-1]) / 2
        torch.testing.assert_close(fitted.thresholds.double(), middle, rtol=1e-6, atol=0)


def test_one_optimal_bit_tells_positive_numbers_apart(sample):
    x = torch.cat([1 + 0.1 * sample(500, 4), 5 + 0.1 * sample(500, 4)])
    error = (round_trip(Scalar(1, "optimal"), x) - x).abs().max()
    assert error < 0.5 < 1.9 < (round_trip(Scalar(1), x) - x).abs().max()


@pytest.mark.parametrize("per", ["tensor", "column"])
@pytest.mark.parametrize("scale", ["uniform", "log", "optimal"])
@pytest.mark.parametrize("bits", BITS)
def test_refinement_never_raises_the_error_and_keeps_the_mean(bits, scale, per, sample):
    x = sample(500, 6) ** 3 + 0.2
    codec = Scalar(bits, scale, per, "fold")
    before, after = (round_trip(dataclasses.replace(codec, refine=r), x).double() for r in (False, True))
    over = (0,) if per == "column" else (0, 1)
    error = [(decoded - x).square().sum(over) for decoded in (before, after)]
    assert (error[1] <= error[0] * (1 + 1e-6)).all()
    torch.testing.assert_close(after.mean(over), x.double().mean(over), rtol=1e-5, atol=1e-6)


def test_one_bit_is_two_means(sample):
    x = sample(300, 4)
    decoded = round_trip(Scalar(1, per="tensor", zeros="fold"), x)
    assert torch.allclose(decoded[x > 0], x[x > 0].mean()) and torch.allclose(decoded[x <= 0], x[x <= 0].mean())
    by_column = round_trip(Scalar(1, per="column", zeros="fold"), x)
    assert torch.allclose(by_column[:, 2][x[:, 2] > 0], x[:, 2][x[:, 2] > 0].mean())


@pytest.mark.parametrize("scale", ["uniform", "log", "optimal"])
@pytest.mark.parametrize("per", ["tensor", "column"])
@pytest.mark.parametrize("bits", BITS)
def test_kept_zeros_are_exact(bits, per, scale, sample):
    x = sample(400, 9) * (sample(400, 9).flip(0) > 0.5)
    x[:, 2] = 0
    x[:, 3] = -x[:, 3].abs()
    x[:, 4] = x[:, 4].abs() + 0.0
    for zeros in ("auto", "keep"):
        for refine in (True, False):
            codec = Scalar(bits, scale, per, zeros, refine)
            decoded = round_trip(codec, x)
            assert (decoded[x == 0] == 0).all()
            assert torch.equal(codec.fit(x).decode(codec.fit(x).encode(torch.zeros(2, 9))), torch.zeros(2, 9))
    if bits == 1 and per == "column":  # the sign that has more energy is kept
        assert (decoded[:, 3] < 0).any() and (decoded[:, 4] > 0).any()


def test_zeros_and_a_constant_are_exact_in_one_bit():
    x = torch.tensor([[0.0, 1.0, 0.0, 0.25], [1.0, 0.0, 0.0, 0.0], [0.0, 1.0, 0.0, 0.25]])
    for per in ("column", "tensor"):
        part = x if per == "column" else x[:, :3]
        assert torch.equal(round_trip(Scalar(1, per=per), part), part)
        assert torch.equal(round_trip(Scalar(1, per=per), -part), -part)
        for dtype in (torch.float16, torch.float64):
            assert torch.equal(round_trip(Scalar(1, per=per), part.to(dtype)), part.to(dtype))


def test_what_auto_chooses(sample):
    x = sample(2000, 40)
    spread = x * torch.logspace(0, 1, 40)
    assert Scalar().fit(x).fitted.table.shape == (16, 1)
    assert Scalar().fit(spread).fitted.table.shape == (16, 40)
    assert Scalar().fit(x * torch.logspace(0, 0.5, 40)).fitted.table.shape == (16, 1)  # 95th over 5th percentile: 2.8
    words = (sample(2000, 40) > torch.linspace(-1, 2.5, 40)).float()  # rare words are no smaller than others
    assert Scalar().fit(words).fitted.table.shape == (16, 1)
    for share, keeps in ((0.15, False), (0.25, True)):
        some = torch.where(torch.rand(x.shape, generator=torch.Generator().manual_seed(0)) < share, 0, x)
        assert Scalar().fit(some).fitted.keeps_zeros == keeps
    zero_columns = torch.cat([x, torch.zeros(2000, 2)], 1)
    assert Scalar().fit(zero_columns).fitted.table.shape == (16, 1)


@pytest.mark.parametrize("scale", ["uniform", "log", "optimal"])
@pytest.mark.parametrize("bits", BITS)
def test_constant_columns_and_few_rows(bits, scale):
    x = torch.tensor([3.5, -0.1, 0.0, 1e-3]).expand(7, 4)
    for rows, refine in itertools.product((1, 2, 7), (True, False)):
        decoded = round_trip(Scalar(bits, scale, "column", "fold", refine), x[:rows])
        torch.testing.assert_close(decoded, x[:rows], rtol=1e-5, atol=0)


def test_error_bounds(sample):
    x = sample(800, 5)
    for bits, scale, refine in itertools.product(BITS, ("uniform", "log", "optimal"), (True, False)):
        codec = Scalar(bits, scale, refine=refine)
        fitted = codec.fit(x)
        codes = fitted.encode(x)
        bound = fitted.error_bound(codes)
        assert ((fitted.decode(codes) - x).abs() <= bound * (1 + 1e-5) + 1e-7).all()
        assert bound.isfinite().float().mean() > (0 if bits == 1 else 0.05) or bits == 1
        assert codec.error_bound(codes).isinf().all()
        ends = unpack_ids(codes.tensors[0], 5, bits)
        assert bound[(ends == 0) | (ends == 2**bits - 1)].isinf().all()  # may be clipped


@pytest.mark.parametrize("bits", BITS)
def test_stored_ratio(bits):
    """32, 16, 8, 4 against float32, tables aside."""
    for columns in (128, 768, 602):
        codec = Scalar(bits, per="column")
        rows = 1_000_000
        tables = 4 * 2**bits * columns
        assert codec.nbytes((rows, columns)) == rows * -(-columns * bits // 8) + tables
        assert (
            Scalar(bits, per="tensor").nbytes((rows, columns)) == codec.nbytes((rows, columns)) - tables + 4 * 2**bits
        )
        if columns % 8 == 0:
            assert abs(4 * rows * columns / (codec.nbytes((rows, columns)) - tables) - 32 / bits) < 1e-9


def test_bytes_of_auto_need_a_fit(sample):
    with pytest.raises(ValueError, match=r"bytes of Scalar.*depend on the data: fit it first, or set `per`"):
        Scalar().nbytes((10, 4))
    assert Scalar().fit(sample(10, 4)).nbytes((1000, 4)) == 1000 * 2 + 64


def test_more_rows_than_the_sample(monkeypatch, sample):
    """Levels are means over all rows, thresholds are those of the sample."""
    monkeypatch.setattr("gossamer.codecs.scalar.SAMPLE_ROWS", 100)
    x = sample(1000, 4)
    codec = Scalar(2, per="tensor", zeros="fold")
    codes = codec.encode(x)
    ids = unpack_ids(codes.tensors[0], 4, 2)
    means = torch.stack([x[ids == k].double().mean() for k in range(4)])
    torch.testing.assert_close(codes.tensors[1].view(-1), means.float())
    unrefined = dataclasses.replace(codec, refine=False).encode(x)
    assert torch.equal(unrefined.tensors[0], codes.tensors[0])
    assert not torch.equal(unrefined.tensors[1], codes.tensors[1])
    x[700, 1] = torch.nan
    with pytest.raises(ValueError, match="first bad row is 700"):
        codec.encode(x)


def test_codes_alone_are_enough_to_decode(sample):
    x = sample(50, 7)
    fitted = Scalar(4, "log").fit(x)
    codes = fitted.encode(x)
    copied = Codes(tuple(t.clone() for t in codes.tensors), codes.shape, codes.dtype)
    assert torch.equal(Scalar(4, "log").decode(copied), fitted.decode(codes))


@pytest.mark.parametrize(
    "name, value, said",
    [
        ("scale", "linear", "'uniform', 'log' or 'optimal'"),
        ("per", "row", "'auto', 'tensor' or 'column'"),
        ("zeros", True, "'auto', 'keep' or 'fold'"),
        ("refine", "yes", "True or False"),
    ],
)
def test_bad_settings(name, value, said):
    with pytest.raises(ValueError, match=rf"`{name}` must be {said} \(got {value!r}\)"):
        Scalar(**{name: value})
