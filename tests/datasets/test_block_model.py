from __future__ import annotations

import pytest

from gossamer.datasets import BlockModel

SMALL = {"num_nodes": 400, "num_edges": 1000, "num_features": 4, "num_classes": 4}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_nodes": 31}, r"`num_nodes` must be at least 8 per class, here 32 \(got 31\)"),
        ({"num_nodes": 2**31}, r"`num_nodes` must be at most 2147483647.*int32"),
        ({"num_edges": 0}, r"`num_edges` must be an integer of at least 1 \(got 0\)"),
        ({"num_features": 1.5}, r"`num_features` must be an integer of at least 1 \(got 1.5\)"),
        ({"num_classes": 1}, r"`num_classes` must be an integer of at least 2 \(got 1\)"),
        ({"exponent": 2.0}, r"`exponent` must be above 2"),
        ({"exponent": float("nan")}, r"`exponent` must be above 2"),
        ({"noise": -1.0}, r"`noise` must be finite and not negative"),
        ({"confusion": 1.0}, r"`confusion` is a share of the nodes"),
        ({"split": (0.5, 0.5, 0.5)}, r"`split` must be three shares"),
        ({"homophily": 0.99}, r"`homophily` must lie between .* and .* \(got 0.99\); a smaller `confusion`"),
        ({"homophily": -0.1}, r"`homophily` must lie between"),
        ({"labels": 0}, r"`labels` must be an integer of at least 1, or None for one class per node \(got 0\)"),
        ({"labels": 2.5}, r"`labels` must be an integer of at least 1, .*\(got 2.5\)"),
    ],
)
def test_every_parameter_is_checked(change, message):
    with pytest.raises(ValueError, match=message):
        BlockModel(**{**SMALL, **change})


def test_without_confusion_any_homophily_is_possible():
    for homophily in (0.0, 0.5, 1.0):
        model = BlockModel(**SMALL, homophily=homophily, confusion=0.0)
        assert model.planted_homophily == pytest.approx(homophily)


def test_scaling():
    model = BlockModel(**SMALL)
    assert model.scaled(1) == model
    half = model.scaled(0.5)
    assert (half.num_nodes, half.num_edges, half.num_features, half.num_classes) == (200, 500, 4, 4)
    assert model.scaled(32 / 400).num_nodes == 32


@pytest.mark.parametrize("scale", [0, -1, 1.01, 0.01, float("nan"), float("inf")])
def test_scale_out_of_range(scale):
    with pytest.raises(ValueError, match=r"`scale` must lie between .* and 1 \(got"):
        BlockModel(**SMALL).scaled(scale)


def test_classes_fill_the_nodes_and_get_smaller():
    model = BlockModel(1000, 1000, 4, 20)
    sizes = model.class_bounds[1:] - model.class_bounds[:-1]
    assert sizes.sum() == 1000 and sizes.min() >= 2
    assert sizes[0] > sizes[5] > sizes[19]


@pytest.mark.parametrize(("num_classes", "count"), [(2, 1), (5, 1), (10, 2), (40, 8)])
def test_a_binary_label_is_typical_of_a_fifth_of_the_classes_and_never_of_all(num_classes, count):
    assert BlockModel(**{**SMALL, "num_classes": num_classes}, labels=3).classes_per_label == count


def test_edges_are_counted_in_both_directions_unless_directed():
    assert BlockModel(**SMALL).stored_edges == 2000
    assert BlockModel(**SMALL, directed=True).stored_edges == 1000
