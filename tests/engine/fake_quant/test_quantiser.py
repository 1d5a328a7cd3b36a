"""One site: how its range follows what passes, and what is rounded to it."""

from __future__ import annotations

import copy

import pytest
import torch

import gossamer as gs
from gossamer.engine.fake_quant.quantiser import BINS, Quantiser, exact_percentiles
from support.compare import same_bits
from support.tensors import rand

DISTRIBUTIONS = {
    "normal": lambda n: rand(n, 64),
    "laplace": lambda n: torch.distributions.Laplace(0.0, 1.0).sample((n, 64)),
    "relu": lambda n: rand(n, 64).relu(),
    "student": lambda n: torch.distributions.StudentT(3.0).sample((n, 64)),
}


def observed(setting, x, steps=1, **given) -> Quantiser:
    quantiser = Quantiser(setting)
    for _ in range(steps):
        quantiser(x, **given)
    return quantiser


@pytest.mark.parametrize("name", DISTRIBUTIONS)
@pytest.mark.parametrize("bits", [8, 4])
def test_histograms_find_percentiles(name, bits):
    """Within one bin of the window, from the third update on."""
    torch.manual_seed(0)
    setting = gs.QAT(bits)
    x = DISTRIBUTIONS[name](4000)
    quantiser = observed(setting, x, steps=4)
    low, high = exact_percentiles(x[x != 0], setting.share_left_out)
    bin_width = 1.5 * (float(quantiser.high) - float(quantiser.low)) / BINS
    assert abs(float(quantiser.low) - low) <= 2 * bin_width
    assert abs(float(quantiser.high) - high) <= 2 * bin_width


def test_a_range_that_grows_is_followed():
    quantiser = observed(gs.QAT(8), rand(1000, 32), steps=20)
    before = float(quantiser.high)
    for _ in range(600):
        quantiser(10 * rand(1000, 32))
    assert 2.5 < before < 4 and 25 < float(quantiser.high) < 40


@pytest.mark.parametrize(
    "observer, low, high",
    [("extremes", -4.0, 6.0), ("momentum", -1.0 + 0.01 * (-4.0 + 1.0), 2.0 + 0.01 * (6.0 - 2.0))],
)
def test_how_extremes_are_merged(observer, low, high):
    quantiser = Quantiser(gs.QAT(8, observer=observer))
    quantiser(torch.tensor([[-1.0, 2.0]]))
    quantiser(torch.tensor([[-4.0, 6.0]]))
    assert float(quantiser.low) == pytest.approx(low) and float(quantiser.high) == pytest.approx(high)


def test_published_percentiles_are_merged_by_extremes():
    quantiser = Quantiser(gs.QAT(4, observer="percentile"))
    x = torch.arange(1000.0).unsqueeze(0)
    quantiser(x)
    assert (float(quantiser.low), float(quantiser.high)) == (9.0, 989.0)
    quantiser(x / 2)
    assert (float(quantiser.low), float(quantiser.high)) == (4.5, 989.0)


def test_protected_rows_change_no_range():
    x, keep = rand(500, 16), torch.arange(500) % 3 == 0
    for observer in ("histogram", "percentile", "momentum", "extremes"):
        setting = gs.QAT(8, observer=observer)
        one, other = Quantiser(setting), Quantiser(setting)
        for _ in range(3):
            one(x, keep=keep)
            other(torch.where(keep.unsqueeze(1), 1e6 * x, x), keep=keep)
        assert same_bits((one.low, one.high), (other.low, other.high))


@pytest.mark.parametrize("observer", ["histogram", "percentile", "momentum", "extremes"])
def test_nothing_to_see_changes_nothing(observer):
    quantiser = Quantiser(gs.QAT(8, observer=observer))
    x = rand(5, 4)
    assert same_bits(quantiser(x, keep=torch.ones(5, dtype=torch.bool)), x)
    assert quantiser(x[:0]).shape == (0, 4) and not quantiser.is_ready
    quantiser(x)
    before = quantiser.low.clone(), quantiser.high.clone()
    quantiser(x * 9, keep=torch.ones(5, dtype=torch.bool))
    quantiser(x[:0])
    quantiser(torch.full((2, 4), torch.nan))
    assert same_bits((quantiser.low, quantiser.high), before)


def test_nothing_is_observed_in_evaluation():
    quantiser = observed(gs.QAT(8), rand(100, 8)).eval()
    before = quantiser.low.clone(), quantiser.high.clone(), quantiser.seen.clone()
    quantiser(100 * rand(100, 8))
    assert same_bits((quantiser.low, quantiser.high, quantiser.seen), before)


def test_levels_hold_zero_and_the_range():
    for values in ([[-1.0, 3.0]], [[2.0, 5.0]], [[-7.0, -2.0]], [[0.0, 0.0]]):
        quantiser = observed(gs.QAT(8, observer="extremes"), torch.tensor(values))
        scale, zero = quantiser.levels()
        low, high = min(0.0, min(values[0])), max(0.0, max(values[0]))
        assert float(zero) == round(float(zero)) and 0 <= float(zero) <= 255
        if low != high:
            assert float(scale) == pytest.approx((high - low) / 255)
            assert abs(-float(zero) * float(scale) - low) <= float(scale) / 2 * 1.001
        assert float(quantiser(torch.zeros(1, 1))) == 0.0


def test_after_relu_zero_is_the_first_code():
    quantiser = observed(gs.QAT(4), rand(1000, 8).relu())
    assert float(quantiser.levels()[1]) == 0


def test_dropout_that_x_has_passed_is_no_part_of_the_range():
    """Dropout divides what is left by 1 - p; inference does not."""
    x = rand(4000, 16)
    kept = torch.where(rand(4000, 16, seed=1) > 0, 2 * x, 0.0)
    plain, dropped = observed(gs.QAT(8, observer="extremes"), x), Quantiser(gs.QAT(8, observer="extremes"))
    dropped(kept, dropped=0.5)
    assert float(dropped.high) <= float(plain.high)
    out = dropped(kept, dropped=0.5)
    again = dropped(torch.where(kept != 0, x, 0.0))
    assert torch.allclose(out, 2 * again)


@pytest.mark.parametrize("share", [0.2, 0.005])
def test_zeros_are_no_part_of_a_histogram(share):
    """Features with fewer values than the tail are rounded as dense ones are."""
    torch.manual_seed(0)
    values = 0.03 + 0.04 * torch.rand(2000, 64)
    x = torch.where(torch.rand(2000, 64) < share, values, 0.0)
    quantiser = observed(gs.QAT(4), x, steps=100)
    assert float(quantiser.high) == pytest.approx(0.07, rel=0.02)
    assert (quantiser(x) - x).abs().max() < 0.07 / 15 / 2 * 1.2
    row, keep = torch.arange(2000.0) % 3, torch.arange(2000) % 5 == 0
    scaled = observed(gs.QAT(4), x, steps=100, row=row, keep=keep)
    assert float(scaled.high) == pytest.approx(0.14, rel=0.04)


def test_zeros_alone_have_a_range_that_later_values_replace():
    quantiser = observed(gs.QAT(8), torch.zeros(100, 8), steps=3)
    assert quantiser.is_ready and float(quantiser.low) == float(quantiser.high) == 0
    for _ in range(100):
        quantiser(rand(100, 8))
    assert 1 < float(quantiser.high) < 5


@pytest.mark.parametrize("p", [0.2, 0.5, 0.8])
def test_a_histogram_has_the_range_of_inference_under_dropout(p):
    torch.manual_seed(0)
    x, dropped = rand(4000, 64).relu(), Quantiser(gs.QAT(8))
    for _ in range(200):
        dropped(torch.nn.functional.dropout(x, p), dropped=p)
    assert float(dropped.high) == pytest.approx(float(observed(gs.QAT(8), x, steps=20).high), rel=0.05)


def test_a_state_dict_round_trip_before_and_after_the_first_step():
    x, setting = rand(300, 8), gs.QAT(8)
    for steps in (0, 1, 25):
        quantiser = observed(setting, x, steps)
        other = Quantiser(setting)
        other.load_state_dict(copy.deepcopy(quantiser.state_dict()))
        for _ in range(12):
            assert same_bits(quantiser(x), other(x))
        assert same_bits((quantiser.low, quantiser.high), (other.low, other.high))


# Columns of different scale ---------------------------------------------------------------------------------------


def test_columns_that_differ_much_are_equalised():
    x = torch.cat([rand(200, 5), 1000 * torch.rand(200, 1), torch.full((200, 1), 2020.0), torch.zeros(200, 1)], 1)
    quantiser = Quantiser(gs.QAT(8), columns=8)
    quantiser.equalise(x)
    assert torch.allclose(quantiser.columns[:7], x.abs().amax(0)[:7]) and float(quantiser.columns[7]) == 1
    for _ in range(3):
        out = quantiser(x)
    assert ((out - x).abs() <= 0.01 * x.abs().amax(0) + 1e-6).all()


def test_columns_that_are_alike_stay_as_they_are():
    quantiser = Quantiser(gs.QAT(8), columns=8)
    quantiser.equalise(rand(200, 8))
    assert (quantiser.columns == 1).all()
    words = (rand(2000, 8) > 2).float()  # rare words: the largest magnitudes are all one
    quantiser.equalise(words)
    assert (quantiser.columns == 1).all()


def test_equalising_ends_with_the_first_steps():
    quantiser = Quantiser(gs.QAT(8), columns=2)
    x = torch.tensor([[1.0, 1.0], [2.0, 1.0]])
    for _ in range(25):
        quantiser(x)
    quantiser.equalise(torch.tensor([[1.0, 1000.0], [1.0, 1.0]]))
    assert (quantiser.columns == 1).all()
