"""The task of a dataset: its loss, its score, and the number of outputs.

    node multiclass        cross entropy    accuracy
    node binary, ROC AUC   cross entropy    area under the ROC curve of logit 1 - logit 0
    graph classification   cross entropy    accuracy
    graph regression       mean |out - y|   MAE, the same, lower is better

The area under the ROC curve is the chance that a positive scores above a negative, ties counting half: with ranks from
1 upwards, equal scores sharing their mean rank,

    AUC = (sum of the positives' ranks - P (P + 1) / 2) / (P N)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn import functional as F

from ..datasets.splits import MASK_NAMES

if TYPE_CHECKING:
    from torch_geometric.data import Data


@dataclass(frozen=True)
class Task:
    """How outputs are scored. `out` has one row per label in `y`, and `out_channels` columns."""

    name: str
    graph_level: bool
    metric: str
    higher_is_better: bool
    out_channels: int
    loss: Callable[[Tensor, Tensor], Tensor]
    score: Callable[[Tensor, Tensor], float]


def accuracy(out: Tensor, y: Tensor) -> float:
    """The share of rows whose largest output is at the label."""
    return float((out.argmax(1) == y).double().mean())


def roc_auc(out: Tensor, y: Tensor) -> float:
    """The area under the ROC curve; `out` holds two logits per row, or one score."""
    score = out[:, 1] - out[:, 0] if out.dim() == 2 and out.size(1) == 2 else out.flatten()
    positive = y == 1
    num_positive, num_negative = int(positive.sum()), int((~positive).sum())
    if not num_positive or not num_negative:
        raise ValueError(
            f"`y` must hold both classes for a ROC AUC (got {num_positive} of class 1 and {num_negative} others); "
            "choose a split with both classes in every part"
        )
    _, group, count = score.unique(return_inverse=True, return_counts=True)
    mean_rank = count.cumsum(0).double() - (count.double() - 1) / 2
    rank_sum = float(mean_rank[group][positive].sum())
    return (rank_sum - num_positive * (num_positive + 1) / 2) / (num_positive * num_negative)


def mean_absolute_error(out: Tensor, y: Tensor) -> Tensor:
    return F.l1_loss(out.flatten(), y.flatten())


def _mae(out: Tensor, y: Tensor) -> float:
    return float(mean_absolute_error(out.double(), y.double()))


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
    if "multilabel" in (told or "") or (first.y.dim() > 1 and first.y.size(1) > 1):
        raise ValueError(
            f"`data` must have one label per {'graph' if graph_level else 'node'} ({_called(data)} has "
            f"the task {told!r} and `y` of shape {list(first.y.shape)}); train on one column, data.y = data.y[:, 0]"
        )
    name = told or _guess(graph_level, first.y)
    if graph_level and "regression" in name:
        return Task(name, True, "mae", False, 1, mean_absolute_error, _mae)
    auc = "auc" in name.lower()
    metric, score = ("roc_auc", roc_auc) if auc else ("accuracy", accuracy)
    return Task(name, graph_level, metric, True, 2 if auc else _num_classes(data), F.cross_entropy, score)


def _guess(graph_level: bool, y: Tensor) -> str:
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


def labelled_nodes(data: Data, task: Task) -> tuple[Tensor, Tensor, Tensor]:
    """Ids of the training, validation and test nodes; labels of -1 are left out."""
    known = data.y.flatten() >= 0
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
        check_part(name, data.y.flatten()[ids], task)
        parts.append(ids)
    return parts[0], parts[1], parts[2]


def check_part(part: str, y: Tensor, task: Task) -> None:
    """No part of a split may be empty, hold labels that have no output, or, for a ROC AUC, one class alone."""
    if not len(y):
        raise ValueError(f"`data` must have labels in every part of the split ({part} has none); choose another split")
    if task.metric == "mae":
        return
    if y.is_floating_point() or int(y.max()) >= task.out_channels:
        raise ValueError(
            f"`data.y` must hold integer class ids below {task.out_channels} ({part} has {y.dtype}, up to {y.max()}); "
            "set data.num_classes, or fix the labels"
        )
    if task.metric == "roc_auc" and part != "train_mask":
        roc_auc(torch.zeros(len(y)), y)


def _called(data: Any) -> str:
    name = getattr(data, "name", None)
    return repr(name) if isinstance(name, str) else type(data).__name__
