"""The task of a dataset: its loss, its score, and the number of outputs.

    node multiclass            cross entropy          accuracy
    node binary, ROC AUC       cross entropy          area under the ROC curve of logit 1 - logit 0
    node multilabel            binary cross entropy   micro-F1, logit > 0 being a predicted label
    node multilabel, ROC AUC   binary cross entropy   mean ROC AUC over the columns that have both classes
    graph classification       cross entropy          accuracy
    graph regression           mean |out - y|         MAE, the same, lower is better

A multi-label `y` is [nodes, labels] of 0 and 1, float or integer. An entry of -1 or NaN is unknown: it is masked out of
loss and score, and a node without a known entry is in no part of the split. Formulas are in `scores`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn import functional as F

from ..datasets.splits import MASK_NAMES
from .scores import (
    accuracy,
    binary_cross_entropy,
    known_entries,
    mae,
    mean_absolute_error,
    mean_roc_auc,
    micro_f1,
    roc_auc,
    two_class_columns,
)

if TYPE_CHECKING:
    from torch_geometric.data import Data


@dataclass(frozen=True)
class Task:
    """How outputs are scored. `out` has one row per row of `y`, and `out_channels` columns.

    `y` has one label per row, or, if `multilabel`, a column of 0 and 1 for each output.
    """

    name: str
    graph_level: bool
    metric: str
    higher_is_better: bool
    out_channels: int
    loss: Callable[[Tensor, Tensor], Tensor]
    score: Callable[[Tensor, Tensor], float]
    multilabel: bool = False


def task_of(data: Data | Sequence[Data]) -> Task:
    """The task of a node-level `Data` or of a list of graphs; from `data.task` if it is set, else from the labels."""
    graph_level = isinstance(data, Sequence)
    if graph_level and not len(data):
        raise ValueError("`data` must hold at least one graph (got an empty list)")
    first = data[0] if isinstance(data, Sequence) else data
    if getattr(first, "y", None) is None:
        raise ValueError(
            f"`data` must have labels to train on ({_called(data)} has no `y`); set data.y, or choose a set with labels"
        )
    told = getattr(data, "task", None)
    name, many = told or _guess(graph_level, first.y), first.y.dim() > 1 and first.y.size(1) > 1
    multilabel, auc = "multilabel" in name, "auc" in name.lower()
    if graph_level and (many or multilabel):
        raise ValueError(
            f"`data` must have one label per graph ({_called(data)} has the task {told!r} and `y` of shape "
            f"{list(first.y.shape)}); train on one column, graph.y = graph.y[:, 0]"
        )
    if multilabel:
        return _multilabel_task(name, auc, data)
    if many:
        raise ValueError(
            f"`data.y` must hold one class id per node for the task {name!r} (got shape {list(first.y.shape)}); set "
            "data.task = 'node multilabel', or, if its rows are one-hot, data.y = data.y.argmax(1)"
        )
    if graph_level and "regression" in name:
        return Task(name, True, "mae", False, 1, mean_absolute_error, mae)
    metric, score = ("roc_auc", roc_auc) if auc else ("accuracy", accuracy)
    return Task(name, graph_level, metric, True, 2 if auc else _num_classes(data), F.cross_entropy, score)


def _multilabel_task(name: str, auc: bool, data: Any) -> Task:
    if data.y.dim() != 2:
        raise ValueError(
            f"`data.y` must be a matrix [nodes, labels] for the task {name!r} (got shape {list(data.y.shape)}); set "
            "data.task = 'node multiclass' if it holds class ids, or data.y = data.y[:, None] if it is a single label"
        )
    columns, told = data.y.size(1), getattr(data, "num_classes", None)
    if told is not None and int(told) != columns:
        raise ValueError(
            f"`data.num_classes` must be {columns}, the columns of data.y, for the task {name!r} (got {told}); set "
            "data.num_classes = data.y.size(1), or fix the labels"
        )
    metric, score = ("roc_auc", mean_roc_auc) if auc else ("micro_f1", micro_f1)
    return Task(name, False, metric, True, columns, binary_cross_entropy, score, multilabel=True)


def _guess(graph_level: bool, y: Tensor) -> str:
    if not graph_level and y.dim() > 1 and y.size(1) > 1:
        return "node multilabel"
    if not graph_level and y.is_floating_point():
        raise ValueError(
            f"`data.y` must hold integer class ids at node level (got {y.dtype}); regression is for lists of graphs"
        )
    if not graph_level:
        return "node multiclass"
    return "graph regression" if y.is_floating_point() else "graph classification"


def _num_classes(data: Any) -> int:
    told = getattr(data, "num_classes", None)
    if told is not None:
        return int(told)
    labels = data.y if not isinstance(data, Sequence) else torch.cat([graph.y.flatten() for graph in data])
    return int(labels.max()) + 1


def check_features(graph: Data, called: str) -> None:
    """A graph must have float features; one without gets an error that says where to take them from."""
    x = getattr(graph, "x", None)
    if x is None:
        raise ValueError(
            f"`data` must have node features ({called} has no `x`); set data.x, for instance to "
            "torch.ones(num_nodes, 1) or by torch_geometric.transforms.OneHotDegree"
        )
    if x.dtype not in (torch.float32, torch.float64):
        raise ValueError(f"`data.x` must be float32 ({called} has {x.dtype}); set data.x = data.x.float()")


def labels_of(data: Data, task: Task) -> Tensor:
    """The targets of all nodes: [nodes], or [nodes, labels]."""
    return data.y if task.multilabel else data.y.flatten()


def labelled_nodes(data: Data, task: Task) -> tuple[Tensor, Tensor, Tensor]:
    """Ids of the training, validation and test nodes; those without a known label are left out."""
    y = labels_of(data, task)
    if task.multilabel:
        _check_binary(y, task)
    known = known_entries(y).any(1) if task.multilabel else y >= 0
    parts = []
    for name in MASK_NAMES:
        mask = getattr(data, name, None)
        if mask is None or mask.dtype != torch.bool or mask.shape != known.shape:
            came = "nothing" if mask is None else f"{mask.dtype} of shape {list(mask.shape)}"
            raise ValueError(
                f"`data.{name}` must be a boolean mask of shape [{len(known)}], one entry per node (got {came}); "
                "split the nodes, for instance by torch_geometric.transforms.RandomNodeSplit()(data), or choose one "
                "split of many, data.train_mask = data.train_mask[:, 0] and so on"
            )
        ids = (mask & known).nonzero().flatten()
        check_part(name, y[ids], task)
        parts.append(ids)
    return parts[0], parts[1], parts[2]


def check_part(part: str, y: Tensor, task: Task) -> None:
    """No part of a split may be empty, hold labels that have no output, or be one on which every model scores alike."""
    if not len(y):
        raise ValueError(f"`data` must have labels in every part of the split ({part} has none); choose another split")
    if task.metric == "mae":
        return
    if task.multilabel:
        _check_multilabel_part(part, y, task)
        return
    if y.is_floating_point() or int(y.max()) >= task.out_channels:
        raise ValueError(
            f"`data.y` must hold integer class ids below {task.out_channels} ({part} has {y.dtype}, up to {y.max()}); "
            "set data.num_classes, or fix the labels"
        )
    if task.metric == "roc_auc" and part != "train_mask":
        roc_auc(torch.zeros(len(y)), y)


def _check_binary(y: Tensor, task: Task) -> None:
    allowed = (y == 0) | (y == 1) | (y == -1) | y.isnan()
    if not bool(allowed.all()):
        row, column = torch.nonzero(~allowed)[0].tolist()
        raise ValueError(
            f"`data.y` must hold 0 and 1, or -1 or NaN where a label is unknown, for the task {task.name!r} (got "
            f"{y[row, column]} for node {row}, label {column}); fix the labels, and leave -1 where one is unknown"
        )


def _check_multilabel_part(part: str, y: Tensor, task: Task) -> None:
    """Validation and test nodes must tell models apart."""
    if part == "train_mask":
        return
    if task.metric == "roc_auc":
        two_class_columns(y)
    elif not bool((y == 1).any()):
        raise ValueError(
            f"`data.y` must hold a 1 in every part of the split, else the micro-F1 is 0 for any model ({part} has "
            "none); choose another split"
        )


def _called(data: Any) -> str:
    name = getattr(data, "name", None)
    return repr(name) if isinstance(name, str) else type(data).__name__
