"""Training on the parts of one graph: each rank has its nodes, and loss, gradients and scores are those of all.

    loss       the sum over own training nodes, divided by the number of all ranks'; its gradients are summed
    accuracy   hits and nodes, summed          micro-F1: hits, predicted and true labels, summed

No rank sees another's outputs. A rank without training nodes takes part in every exchange.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..distributed import RankPart, sum_gradients
from ..distributed.load import mean_over_ranks
from .examples import Batch
from .scores import known_entries
from .tasks import Task, labels_of, task_of

SCORES = ("accuracy", "micro_f1")


def data_of(part: RankPart) -> Any:
    """What tasks and models ask of a data set: features, labels, the number of classes of all parts."""
    if part.x is None:
        raise ValueError("the parts must have been cut with features (there is no `x`); partition the graph with them")
    told = SimpleNamespace(x=part.x, y=part.y, num_features=part.x.size(1), name=None, task=None)
    multilabel = part.y.dim() > 1 and part.y.size(1) > 1
    told.num_classes = part.y.size(1) if multilabel else part.part.num_classes
    told.task = "node multilabel" if multilabel else "node multiclass"
    return told


@final
class Parts:
    """The part of this rank."""

    def __init__(self, part: RankPart) -> None:
        self.part, self.ranks = part, part.ranks
        data = data_of(part)
        task = task_of(data)
        if task.metric not in SCORES:
            raise ValueError(f"parts of a graph are scored by accuracy or micro-F1 (got {task.metric!r})")
        self.y = labels_of(data, task)
        known = known_entries(self.y).any(1) if task.multilabel else self.y >= 0
        self.ids = [(mask & known).nonzero().view(-1) for mask in (part.train, part.val, part.test)]
        counts = part.sum(torch.tensor([float(len(ids)) for ids in self.ids])).tolist()
        for name, count in zip(("train_mask", "val_mask", "test_mask"), counts, strict=True):
            if not count:
                raise ValueError(
                    f"`{name}` must hold a node with a label on some rank (got none); choose another split"
                )
        self.num_train = int(counts[0])
        entries = known_entries(self.y[self.ids[0]]).sum() if task.multilabel else torch.tensor(len(self.ids[0]))
        self.entries = int(part.sum(entries.double()))
        self.task: Task = dataclasses.replace(task, loss=self._loss)

    def _loss(self, out: Tensor, y: Tensor) -> Tensor:
        if self.task.multilabel:
            target, weight = (y == 1).to(out.dtype), known_entries(y).to(out.dtype)
            total = F.binary_cross_entropy_with_logits(out.reshape(y.shape), target, weight, reduction="sum")
        else:
            total = F.cross_entropy(out, y, reduction="sum")
        return mean_over_ranks(total, self.ranks, self.entries)

    def after_backward(self, model: nn.Module) -> None:
        sum_gradients(model, self.ranks)

    def batches(self, model: nn.Module) -> Iterator[Batch]:
        train = self.ids[0]
        yield Batch((self.part.x, self.part.graph), self.y[train], train, len(self.y))

    def scores(self, model: nn.Module) -> tuple[float, float]:
        out = Batch((self.part.x, self.part.graph), self.y, None, len(self.y)).predict(model, self.task)
        val, test = (self._score(out[ids], self.y[ids]) for ids in self.ids[1:])
        return val, test

    def _score(self, out: Tensor, y: Tensor) -> float:
        if self.task.multilabel:
            predicted, positive = (out.reshape(y.shape) > 0) & known_entries(y), y == 1
            found = [(predicted & positive).sum(), predicted.sum() + positive.sum()]
            hits, total = self.part.sum(torch.stack(found).double()).tolist()
            return 2 * hits / total if total else 0.0
        right = (out.argmax(1) == y).sum()
        hits, total = self.part.sum(torch.stack([right, torch.tensor(len(y))]).double()).tolist()
        return hits / total

    def describe(self) -> dict[str, Any]:
        read = self.part.part
        counts = {"nodes": read.num_nodes, "edges": read.num_edges, "features": self.part.x.size(1)}
        return {"data": read.fingerprint, **counts, "training_nodes": self.num_train}
