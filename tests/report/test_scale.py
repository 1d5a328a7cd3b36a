"""Ticks are round, few, and around the values; labels keep off each other."""

from __future__ import annotations

import itertools
import math

from hypothesis import assume, given
from hypothesis import strategies as st

from gossamer.report.labels import TOUCHING, Box, Label, around, place, short
from gossamer.report.scale import linear_ticks, log_ticks, scale_of

values = st.floats(-1e9, 1e9)
positive = st.floats(1e-6, 1e12)


def leading_digit(value: float) -> int:
    return round(value / 10.0 ** math.floor(math.log10(value) + 1e-9))


@given(values, st.floats(1e-3, 1e9))
def test_linear_ticks(low, span):
    high = low + span
    assume(span > 1e-7 * abs(low))
    ticks = linear_ticks(low, high)
    steps = [b - a for a, b in itertools.pairwise(ticks)]
    slack = 1e-6 * span
    assert 2 <= len(ticks) <= 7
    assert ticks[0] <= low + slack and ticks[-1] >= high - slack
    assert max(steps) - min(steps) <= slack
    assert leading_digit(steps[0]) in (1, 2, 5)


@given(positive, st.floats(20, 1e9))
def test_log_ticks(low, factor):
    ticks = log_ticks(low, low * factor)
    assert 2 <= len(ticks) <= 10
    assert ticks[0] <= low * (1 + 1e-6) and ticks[-1] >= low * factor * (1 - 1e-6)
    assert list(ticks) == sorted(set(ticks))
    assert {leading_digit(tick) for tick in ticks} <= {1, 2, 3, 5}


@given(st.lists(values | st.just(math.nan), max_size=6), st.booleans(), st.floats(0, 10))
def test_a_scale_holds_its_values_in_order(found, zero, least):
    scale = scale_of(found, 50, 450, zero=zero, least_span=least)
    known = sorted(value for value in found if not math.isnan(value))
    pixels = [scale(value) for value in known]
    assert all(50 - 1e-3 <= pixel <= 450 + 1e-3 for pixel in pixels)
    assert pixels == sorted(pixels)
    assert len(set(scale.tick_texts())) == len(scale.ticks)
    assert all(math.isfinite(scale(tick)) for tick in scale.ticks)


@given(st.lists(positive, min_size=1, max_size=6))
def test_a_wide_range_is_logarithmic(found):
    scale = scale_of(found, 0, 100, zero=True)
    assert scale.log == (max(found) / min(found) > 20)
    assert scale.log or scale.low == 0
    assert len(set(scale.tick_texts())) == len(scale.ticks)


def test_ticks_people_would_choose():
    assert linear_ticks(0, 6.5) == (0, 2, 4, 6, 8)
    assert linear_ticks(0.1, 0.29) == (0.1, 0.15, 0.2, 0.25, 0.3)
    assert log_ticks(2.3, 82) == (2, 5, 10, 20, 50, 100)
    assert scale_of([0.0, 0.4], 0, 1).tick_texts() == ["0.0", "0.1", "0.2", "0.3", "0.4"]
    assert scale_of([1e-3, 5e3], 0, 1).tick_texts() == ["0.001", "0.01", "0.1", "1", "10", "100", "1,000", "10,000"]
    assert scale_of([], 0, 1).ticks[0] == 0


@given(st.lists(st.tuples(st.floats(60, 440), st.floats(40, 250)), min_size=1, max_size=5))
def test_labels_stay_inside_and_off_each_other(points):
    bounds = Box(50, 30, 460, 260)
    labels = [Label(f"variant {index}", x, y, "ours-0") for index, (x, y) in enumerate(points)]
    boxes = place(labels, [around(x, y, 8) for x, y in points], bounds)
    assert all(box.outside(bounds) == 0 for box in boxes)
    assert all(a.overlap(b) <= TOUCHING for i, a in enumerate(boxes) for b in boxes[:i])


def test_long_labels_are_cut():
    assert short("a" * 26) == "a" * 26
    assert short("a" * 27) == "a" * 25 + "…"
