from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from gossamer.datasets import BlockModel
from gossamer.datasets.block_model import LABEL_IF_TYPICAL, LABEL_OTHERWISE
from gossamer.datasets.planted import Planted

MODEL = BlockModel(num_nodes=2000, num_edges=6000, num_features=8, num_classes=5)


@pytest.mark.parametrize("flat", [False, True])
def test_pairs_are_of_the_kind_asked_for_and_never_one_node_twice(flat):
    planted = Planted(MODEL, seed=0)
    rng = np.random.default_rng(0)
    same = rng.random(50_000) < 0.5
    i, j = planted.pairs(rng, same, flat)
    assert (i != j).all()
    assert min(i.min(), j.min()) >= 0 and max(i.max(), j.max()) < MODEL.num_nodes
    block = np.searchsorted(MODEL.class_bounds, np.stack([i, j]), side="right")
    assert ((block[0] == block[1]) == same).all()


def test_the_ends_of_the_unit_interval(monkeypatch):
    planted = Planted(MODEL, seed=0)

    class Extreme:
        def random(self, count):
            return np.resize(
                [0.0, np.nextafter(1, 0), *np.nextafter(planted.cuts[1:-1], 0), *planted.cuts[1:-1]], count
            )

    for kind in (True, False):
        i, j = planted.pairs(Extreme(), np.full(100, kind))
        block = np.searchsorted(MODEL.class_bounds, np.stack([i, j]), side="right")
        assert (i != j).all() and ((block[0] == block[1]) == kind).all()
        assert j.min() >= 0 and j.max() < MODEL.num_nodes


def test_propensities_follow_the_exponent():
    """Cumulative propensity of the ranks below r is ((r + 1)^b - 1) / ((n + 1)^b - 1)."""
    planted = Planted(MODEL, seed=0)
    n = planted.sizes[0]
    i, _ = planted.pairs(np.random.default_rng(0), np.ones(200_000, bool))
    ranks = i[i < n]
    b = 1 - 1 / (MODEL.exponent - 1)
    for r in (1, 10, 100):
        expected = ((r + 1) ** b - 1) / ((n + 1) ** b - 1)
        assert (ranks < r).mean() == pytest.approx(expected, abs=0.01)  # 5 standard deviations of 60,000 draws


def test_nodes_are_shuffled_and_labels_confused_as_often_as_asked():
    planted = Planted(MODEL, seed=0)
    assert (np.sort(planted.node_at) == np.arange(2000)).all()
    assert (np.diff(planted.class_of) != 0).mean() > 0.5
    y = planted.nodes(0).y
    share = np.diff(MODEL.class_bounds) / 2000
    expected = MODEL.confusion * (1 - (share**2).sum())
    assert (y != planted.class_of).mean() == pytest.approx(expected, abs=0.03)


def test_features_have_unit_variance_and_class_means():
    model = BlockModel(4000, 4000, 64, 2, noise=2.0)
    planted = Planted(model, seed=3)
    x = planted.nodes(0).x
    assert x.dtype == np.float32 and x.std() == pytest.approx(1, abs=0.1)
    for c in range(2):
        mean = x[planted.class_of == c].mean(0) * np.sqrt(1 + model.noise**2)
        assert np.abs(mean - planted.means[c]).max() < 0.25  # noise 2 over 1,600 nodes: 5 standard deviations


def test_binary_labels_have_the_rates_of_the_classes():
    model = replace(MODEL, num_nodes=20_000, labels=7)
    y, classes = (Planted(m, seed=1).nodes(0).y for m in (model, replace(model, labels=None)))
    assert y.shape == (20_000, 7) and y.dtype == np.float32 and set(np.unique(y)) == {0, 1}
    rate = np.stack([y[classes == c].mean(0) for c in range(5)])
    typical = rate > 0.5
    assert (typical.sum(0) == model.classes_per_label).all()
    expected = np.where(typical, LABEL_IF_TYPICAL, LABEL_OTHERWISE)
    assert np.abs(rate - expected).max() < 0.03  # 5 standard deviations of 2,700 draws


def test_binary_labels_change_nothing_else():
    plain, many = (Planted(replace(MODEL, labels=labels), seed=0).nodes(0) for labels in (None, 4))
    assert (plain.x == many.x).all() and (plain.part == many.part).all()


def test_negative_seed():
    with pytest.raises(ValueError, match=r"`seed` must not be negative \(got -1\)"):
        Planted(MODEL, seed=-1)
