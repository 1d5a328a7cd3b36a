from __future__ import annotations

import functools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gossamer.datasets import load, powerlaw
from gossamer.datasets.generated import MODELS
from gossamer.datasets.powerlaw import generate


@functools.cache
def tenth_of(name):
    return generate(MODELS[name].scaled(0.1))


def homophily_of(data) -> float:
    row, col = data.edge_index
    return float((data.y[row] == data.y[col]).float().mean())


@settings(max_examples=25, deadline=None)
@given(
    num_nodes=st.integers(40, 300),
    mean_degree=st.floats(0.1, 8),
    num_classes=st.integers(2, 5),
    directed=st.booleans(),
    exponent=st.floats(2.05, 5),
    seed=st.integers(0, 3),
)
def test_edges_are_exactly_as_many_distinct_and_without_loops(
    num_nodes, mean_degree, num_classes, directed, exponent, seed
):
    num_edges = max(1, int(num_nodes * mean_degree / 2))
    data = powerlaw(num_nodes, num_edges, 3, num_classes, directed=directed, exponent=exponent, seed=seed)
    assert data.num_edges == (num_edges if directed else 2 * num_edges)
    assert data.is_coalesced() and not data.has_self_loops()
    assert directed or data.is_undirected()
    assert data.edge_index.max() < num_nodes == data.num_nodes


@pytest.mark.parametrize("homophily", [0.2, 0.35, 0.6])
def test_homophily_is_as_asked(homophily):
    data = powerlaw(20_000, 100_000, 2, 10, homophily=homophily, confusion=0.15)
    assert homophily_of(data) == pytest.approx(homophily, abs=0.02)


@pytest.mark.parametrize("homophily", [0.0, 0.9, 1.0])
def test_without_confusion_homophily_is_exact(homophily):
    data = powerlaw(2000, 5000, 2, 4, homophily=homophily, confusion=0.0)
    assert homophily_of(data) == pytest.approx(homophily, abs=1e-6)


def test_the_seed_determines_everything():
    first, again, other = (powerlaw(500, 2000, 4, 3, seed=seed) for seed in (0, 0, 1))
    for key in ("x", "y", "edge_index", "train_mask", "val_mask", "test_mask"):
        assert torch.equal(first[key], again[key])
        assert not torch.equal(first[key], other[key])


def test_the_seed_determines_binary_labels():
    first, again, other = (powerlaw(500, 2000, 4, 3, labels=6, seed=seed) for seed in (0, 0, 1))
    assert torch.equal(first.y, again.y) and not torch.equal(first.y, other.y)
    assert first.y.shape == (500, 6) and first.y.dtype == torch.float32 and first.y.unique().tolist() == [0, 1]
    assert (first.task, first.num_classes) == ("node multilabel", 6)
    plain = powerlaw(500, 2000, 4, 3)
    for key in ("x", "edge_index", "train_mask", "val_mask", "test_mask"):
        assert torch.equal(first[key], plain[key])


@pytest.mark.parametrize("num_classes", [2, 3, 12])
def test_binary_labels_are_neither_rare_nor_common_and_tell_classes_apart(num_classes):
    options = {"num_nodes": 4000, "num_edges": 8000, "num_features": 2, "num_classes": num_classes, "homophily": 0.5}
    many, plain = powerlaw(**options, labels=5), powerlaw(**options)
    assert many.y.mean(0).min() > 0.05 and many.y.mean(0).max() < 0.7
    rate = torch.stack([many.y[plain.y == c].mean(0) for c in range(num_classes)])
    assert (rate.max(0).values - rate.min(0).values).min() > 0.7


def test_the_arxiv_like_shape_at_a_tenth():
    data = tenth_of("arxiv-like")
    assert (data.num_nodes, data.num_edges, data.num_features) == (16_935, 2 * 116_625, 128)
    assert data.x.dtype == torch.float32 and data.y.dtype == torch.int64
    assert int(data.y.max()) == 39 and torch.bincount(data.y).min() > 100
    degree = torch.bincount(data.edge_index[0], minlength=data.num_nodes).float()
    assert 300 < degree.max() < 3000  # a hub, of 14 on average
    assert degree.quantile(0.5) < degree.mean() * 0.75
    assert homophily_of(data) == pytest.approx(0.35, abs=0.02)
    shares = [float(data[m].float().mean()) for m in ("train_mask", "val_mask", "test_mask")]
    assert shares == pytest.approx([0.54, 0.18, 0.28], abs=0.02)


def test_the_reddit_like_shape_at_a_tenth():
    """Nodes and edges shrink together: the mean degree stays."""
    data = tenth_of("reddit-like")
    assert (data.num_nodes, data.num_edges, data.num_features) == (6_000, 2 * 1_200_000, 256)
    degree = torch.bincount(data.edge_index[0], minlength=data.num_nodes).float()
    assert float(degree.mean()) == 400 and degree.min() > 50 and degree.max() > 1000
    assert homophily_of(data) == pytest.approx(0.2, abs=0.02)
    shares = [float(data[m].float().mean()) for m in ("train_mask", "val_mask", "test_mask")]
    assert shares == pytest.approx([0.66, 0.10, 0.24], abs=0.02)


@pytest.mark.parametrize(("name", "most"), [("arxiv-like", 0.85), ("reddit-like", 0.92)])
def test_neighbours_tell_more_than_features(name, most):
    """A linear classifier on features averaged over two hops beats one on the features, and stays below the ceiling.

    Of 400 neighbours the average tells the class of nearly every node: only confused labels are missed.
    """
    data = tenth_of(name)
    row, col = data.edge_index
    degree = torch.bincount(row, minlength=data.num_nodes).clamp(min=1)[:, None]
    smooth = data.x
    for _ in range(2):
        smooth = (smooth + torch.zeros_like(smooth).index_add_(0, row, smooth[col])) / (degree + 1)
    alone, averaged = (_ridge_accuracy(x, data) for x in (data.x, smooth))
    assert 0.1 < alone < 0.45
    assert 0.5 < averaged < most
    assert averaged > alone + 0.2


def _ridge_accuracy(x: torch.Tensor, data) -> float:
    x = torch.cat([x / x.std(), torch.ones(len(x), 1)], 1)
    train = x[data.train_mask]
    target = torch.nn.functional.one_hot(data.y[data.train_mask]).float()
    weight = torch.linalg.solve(train.T @ train + 10 * torch.eye(x.shape[1]), train.T @ target)
    hit = (x @ weight).argmax(1) == data.y
    return float(hit[data.test_mask].float().mean())


def test_dense_graphs_come_to_an_end():
    """Hubs have no new partners left long before: the rest is drawn evenly."""
    data = powerlaw(64, 150, 2, 2, homophily=0.5, confusion=0.0, exponent=2.1)
    assert data.num_edges == 300 and data.is_coalesced()


def test_a_dense_graph_has_a_least_scale():
    """Its mean degree stays, so that few nodes leave no room."""
    with pytest.raises(ValueError, match=r"`num_edges` 600000 .* more nodes \(a larger `scale` of a named set\)"):
        load("reddit-like", scale=0.05)


def test_more_edges_than_there_is_room_for():
    with pytest.raises(ValueError, match=r"`num_edges` 1900 .* more than half of the .* Remedy: fewer"):
        powerlaw(64, 1900, 2, 2)
