"""Tasks: which loss and score a dataset gets, and what is refused."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch_geometric.data import Data

import gossamer as gs
from gossamer.datasets import GraphList
from gossamer.training.tasks import check_features, labelled_nodes, task_of

LABELS = torch.tensor([[0.0, 0, 1], [0, 1, 1]]).repeat(3, 1)
"""Of three labels, the second has both classes in every part of `nodes`."""


def without(y: Tensor, start: int, end: int, value: float) -> Tensor:
    """`y` with one value in the rows from `start` to `end`."""
    changed = y.clone()
    changed[start:end] = value
    return changed


def nodes(**changes: Any) -> Data:
    """Six nodes of two classes, two in each part."""
    part = torch.tensor([0, 0, 1, 1, 2, 2])
    fields: dict[str, Any] = {"x": torch.ones(6, 3), "edge_index": torch.tensor([[0, 1], [1, 0]])}
    fields |= {"y": torch.tensor([0, 1, 0, 1, 0, 1])}
    fields |= {f"{name}_mask": part == i for i, name in enumerate(("train", "val", "test"))}
    return Data(**{name: value for name, value in (fields | changes).items() if value is not None})


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


@pytest.mark.parametrize(
    ("task", "metric"),
    [(None, "micro_f1"), ("node multilabel", "micro_f1"), ("node multilabel (ROC AUC)", "roc_auc")],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.bool])
def test_multilabel_tasks(task: str | None, metric: str, dtype: torch.dtype) -> None:
    data = nodes(y=LABELS.to(dtype), task=task)
    found = task_of(data)
    assert (found.name, found.metric) == (task or "node multilabel", metric)
    assert (found.out_channels, found.higher_is_better, found.graph_level, found.multilabel) == (3, True, False, True)
    assert [ids.tolist() for ids in labelled_nodes(data, found)] == [[0, 1], [2, 3], [4, 5]]
    assert found.score(2 * LABELS - 1, data.y) == 1.0


def test_one_column_of_labels_is_multilabel_only_where_the_data_says_so() -> None:
    column = torch.tensor([[0], [1]]).repeat(3, 1)
    assert task_of(nodes(y=column)).metric == "accuracy"
    assert task_of(nodes(y=column, task="node multilabel")).out_channels == 1


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


@pytest.mark.parametrize("unknown", [-1, math.nan])
def test_nodes_without_a_known_entry_are_left_out(unknown: float) -> None:
    y = without(LABELS, 0, 1, unknown)
    y[1, 0] = y[3, 2] = unknown
    data = nodes(y=y)
    assert [ids.tolist() for ids in labelled_nodes(data, task_of(data))] == [[1], [2, 3], [4, 5]]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"y": None}, r"must have labels to train on .*has no `y`"),
        (
            {"y": torch.zeros(6, 4), "task": "node multiclass"},
            r"one class id per node for the task 'node multiclass' \(got shape \[6, 4\]\); set data.task = .*argmax",
        ),
        ({"y": torch.zeros(6)}, r"integer class ids at node level \(got torch.float32\)"),
        (
            {"task": "node multilabel"},
            r"matrix \[nodes, labels\] for the task 'node multilabel' \(got shape \[6\]\); set data.task",
        ),
        (
            {"y": LABELS, "num_classes": 7},
            r"`data.num_classes` must be 3, the columns of data.y, .*'node multilabel' \(got 7\); set data.num_classes",
        ),
    ],
)
def test_labels_that_cannot_be_trained_on(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        task_of(nodes(**changes))


@pytest.mark.parametrize("changes", [{"y": torch.ones(1, 2)}, {"y": torch.ones(1, 2).long()}])
@pytest.mark.parametrize("task", [None, "graph multilabel"])
def test_graphs_have_one_label(changes: dict[str, Any], task: str | None) -> None:
    graphs = GraphList([Data(x=torch.ones(2, 1), **changes)], "many", task or "", None, np.empty((0, 1), np.int8))
    with pytest.raises(ValueError, match=r"one label per graph \('many' has the task .*shape \[1, 2\].*y\[:, 0\]"):
        task_of(graphs)


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
        ({"y": LABELS + torch.eye(6, 3)}, r"0 and 1, or -1 or NaN .*\(got 2.0 for node 1, label 1\); fix the labels"),
        ({"y": LABELS / 2}, r"`data.y` must hold 0 and 1, .*\(got 0.5 for node 0, label 2\)"),
        ({"y": LABELS - 2}, r"`data.y` must hold 0 and 1, .*\(got -2.0 for node 0, label 0\)"),
        ({"y": LABELS * math.inf}, r"`data.y` must hold 0 and 1, .*\(got inf for node 0, label 2\)"),
        ({"y": without(LABELS, 2, 4, -1)}, r"labels in every part of the split \(val_mask has none\); choose another"),
        ({"y": without(LABELS, 0, 2, math.nan)}, r"labels in every part .*\(train_mask has none\)"),
        ({"y": without(LABELS, 4, 6, 0)}, r"a 1 in every part .*micro-F1 is 0 .*\(test_mask has none\); choose"),
        ({"y": without(LABELS, 2, 4, 1), "task": "node multilabel (ROC AUC)"}, r"at least one column .*got 3 columns"),
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
