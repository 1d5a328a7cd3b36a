from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gossamer.datasets import splits

LABELS = st.lists(st.integers(-1, 4), min_size=1, max_size=60).map(lambda y: np.array(y, np.int64))


@given(LABELS, st.integers(0, 5))
def test_unlabelled_items_are_in_no_part_and_all_others_in_one(y, seed):
    for part in (splits.by_fraction(y, (0.6, 0.2, 0.2), seed), splits.by_count(y, 3, 5, seed)):
        assert ((part == splits.NONE) == (y < 0)).all()


@given(LABELS, st.integers(0, 5))
def test_fractions_hold_in_every_class(y, seed):
    part = splits.by_fraction(y, (0.6, 0.2, 0.2), seed)
    for c in range(5):
        size = (y == c).sum()
        assert abs((part[y == c] == splits.TRAIN).sum() - 0.6 * size) <= 0.5 + 1e-9


def test_counts_and_seed():
    y = np.repeat(np.arange(3), 100)
    part = splits.by_count(y, per_class=20, num_val=50, seed=0)
    assert [(part[y == c] == splits.TRAIN).sum() for c in range(3)] == [20, 20, 20]
    assert [(part == v).sum() for v in range(3)] == [60, 50, 190]
    assert (part == splits.by_count(y, 20, 50, seed=0)).all()
    assert (part != splits.by_count(y, 20, 50, seed=1)).any()


def test_fractions_below_one_leave_items_out_and_among_limits_the_split():
    y = np.zeros(100, np.int64)
    part = splits.by_fraction(y, (0.1, 0.1, 0.1), seed=0)
    assert [(part == v).sum() for v in (0, 1, 2, -1)] == [10, 10, 10, 70]
    some = np.arange(100) < 10
    assert (splits.by_fraction(y, (0.5, 0.5, 0), seed=0, among=some)[~some] == splits.NONE).all()


def test_masks_are_disjoint_and_named_as_in_pyg():
    masks = splits.masks(np.array([0, 1, 2, -1], np.int8))
    assert list(masks) == ["train_mask", "val_mask", "test_mask"]
    assert sum(mask.int() for mask in masks.values()).tolist() == [1, 1, 1, 0]


@pytest.mark.parametrize("y", [np.empty(0, np.int64), np.array([-1, -1])])
def test_nothing_to_split(y):
    assert (splits.by_fraction(y, (0.6, 0.2, 0.2), 0) == splits.NONE).all()
    assert (splits.by_count(y, 20, 500, 0) == splits.NONE).all()
