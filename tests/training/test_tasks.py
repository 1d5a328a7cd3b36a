"""Tasks: which loss and score a dataset gets, the AUC against its definition, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch_geometric.data import Data

import gossamer as gs
from gossamer.training.tasks import accuracy, check_features, labelled_nodes, roc_auc, task_of


def nodes(**changes: Any) -> Data:
    """Six nodes of two classes, two in each part."""
    part = torch.tensor([0, 0, 1, 1, 2, 2])
    fields: dict[str, Any] = {"x": torch.ones(6, 3), "edge_index": torch.tensor([[0, 1], [1, 0]])}
    fields |= {"y": torch.tensor([0, 1, 0, 1, 0, 1])}
    fields |= {f"{name}_mask": part == i for i, name in enumerate(("train", "val", "test"))}
    return Data(**{name: value for name, value in (fields | changes).items() if value is not None})


def by_pairs(score: Tensor, y: Tensor) -> float:
    """The AUC by its definition: over all pairs of a positive and a negative, ties counting half."""
    positive, negative = score[y == 1][:, None], score[y == 0][None]
    return float(((positive > negative).double() + (positive == negative).double() / 2).mean())


@pytest.mark.parametrize("levels", [2, 5, 10**6])
@pytest.mark.parametrize("seed", range(4))
def test_auc_equals_its_definition_also_with_ties(levels: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    score = torch.randint(levels, (83,), generator=generator).float()
    y = torch.randint(2, (83,), generator=generator)
    assert roc_auc(score, y) == pytest.approx(by_pairs(score, y), abs=1e-12)  # both sums are exact halves
    logits = torch.stack([-score, score], 1) / 2
    assert roc_auc(logits, y) == pytest.approx(by_pairs(score, y), abs=1e-12)


def test_auc_of_perfect_reversed_and_constant_scores() -> None:
    y = torch.tensor([0, 0, 1, 1, 1])
    assert roc_auc(y.float(), y) == 1.0
    assert roc_auc(-y.float(), y) == 0.0
    assert roc_auc(torch.zeros(5), y) == 0.5


def test_auc_of_one_class_is_refused() -> None:
    with pytest.raises(ValueError, match=r"both classes.*got 3 of class 1 and 0 others.*choose a split"):
        roc_auc(torch.rand(3), torch.ones(3))


def test_accuracy() -> None:
    assert accuracy(torch.tensor([[1.0, 0], [0, 1], [2, 1], [0, 1]]), torch.tensor([0, 1, 1, 1])) == 0.75


@pytest.mark.parametrize(
    ("task", "metric", "channels"),
    [
        ("node multiclass", "accuracy", 2),
        ("node multiclass, few labels", "accuracy", 2),
        ("node binary", "accuracy", 2),
        ("node binary (ROC AUC)", "roc_auc", 2),
        (None, "accuracy", 2),
    ],
)
def test_node_tasks(task: str | None, metric: str, channels: int) -> None:
    found = task_of(nodes(task=task))
    assert (found.metric, found.out_channels, found.higher_is_better, found.graph_level) == (
        metric,
        channels,
        True,
        False,
    )


def test_num_classes_of_the_data_decides_over_the_labels() -> None:
    assert task_of(nodes(num_classes=7)).out_channels == 7


def test_graph_tasks_are_told_by_the_labels() -> None:
    classes = task_of([Data(x=torch.ones(2, 1), y=torch.tensor([label])) for label in (0, 2, 1)])
    assert (classes.metric, classes.out_channels, classes.graph_level) == ("accuracy", 3, True)
    values = task_of([Data(x=torch.ones(2, 1), y=torch.tensor([value])) for value in (0.5, 2.0)])
    assert (values.metric, values.out_channels, values.higher_is_better) == ("mae", 1, False)
    assert values.score(torch.tensor([[1.0], [2.0]]), torch.tensor([0.5, 4.0])) == 1.25
    assert float(values.loss(torch.tensor([[1.0], [2.0]]), torch.tensor([0.5, 4.0]))) == 1.25


def test_every_ready_dataset_with_labels_has_a_task() -> None:
    assert task_of(gs.datasets.load("digits")).out_channels == 10
    assert task_of(gs.datasets.load("arxiv-like", scale=0.01)).out_channels == 40


def test_unknown_labels_are_left_out() -> None:
    data = nodes(y=torch.tensor([0, -1, 0, 1, -1, 1]))
    train, val, test = labelled_nodes(data, task_of(data))
    assert (train.tolist(), val.tolist(), test.tolist()) == ([0], [2, 3], [5])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"y": None}, r"must have labels to train on .*has no `y`"),
        ({"y": torch.zeros(6, 4)}, r"one label per node.*shape \[6, 4\].*data.y\[:, 0\]"),
        ({"y": torch.zeros(6)}, r"integer class ids at node level \(got torch.float32\)"),
        ({"task": "node multilabel"}, r"one label per node .*'node multilabel'"),
    ],
)
def test_labels_that_cannot_be_trained_on(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        task_of(nodes(**changes))


def test_an_empty_list_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one graph"):
        task_of([])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"val_mask": None}, r"`data.val_mask` must be a boolean mask of shape \[6\].*got nothing.*RandomNodeSplit"),
        ({"train_mask": torch.ones(6)}, r"got torch.float32 of shape \[6\]"),
        ({"test_mask": torch.ones(6, 10, dtype=torch.bool)}, r"shape \[6, 10\].*train_mask\[:, 0\]"),
        ({"val_mask": torch.zeros(6, dtype=torch.bool)}, r"val_mask has none\); choose another split"),
        ({"num_classes": 1}, r"class ids below 1 \(train_mask has torch.int64, up to 1\)"),
        ({"task": "node binary (ROC AUC)", "y": torch.zeros(6, dtype=torch.long)}, "both classes"),
    ],
)
def test_masks_that_cannot_be_trained_on(changes: dict[str, Any], message: str) -> None:
    data = nodes(**changes)
    with pytest.raises(ValueError, match=message):
        labelled_nodes(data, task_of(data))


def test_features_that_cannot_be_trained_on() -> None:
    with pytest.raises(ValueError, match=r"node features \(graph 3 has no `x`\); set data.x"):
        check_features(Data(num_nodes=4), "graph 3")
    with pytest.raises(ValueError, match=r"float32 \(it has torch.int64\); set data.x = data.x.float\(\)"):
        check_features(Data(x=torch.ones(4, 1, dtype=torch.long)), "it")
