"""What one epoch trains on and how a model is scored: one graph with masks, or many graphs in batches.

* `Nodes`: one batch, the whole graph; labelled training nodes make the loss; one pass scores validation and test.
* `SampledNodes` (sampled.py): batches of training nodes with sampled neighbours.
* `Parts` (parts.py): the part of one rank, whole; losses, gradients and scores are those of all ranks.
* `Graphs`: shuffled batches of whole graphs; the order is drawn from torch's generator, so a resumed run repeats it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, final

import numpy as np
import torch
from torch import Tensor, nn

from ..datasets.graph_list import GraphList
from ..distributed import RankPart
from ..ranks import Ranks
from .tasks import Task, check_features, check_part, labelled_nodes, labels_of, task_of

if TYPE_CHECKING:
    from torch_geometric.data import Data


class Batch(NamedTuple):
    """One call of the model: `model(*inputs, **named)[rows]` is compared with `y`. `rows` None means all rows.

    `num_rows` is how many rows the model gives; None: at least as many as `y` has.
    """

    inputs: tuple[Any, ...]
    y: Tensor
    rows: Tensor | slice | None
    num_rows: int | None
    named: Mapping[str, Any] = {}

    def predict(self, model: nn.Module, task: Task) -> Tensor:
        out = model(*self.inputs, **self.named)
        if self.num_rows is None and isinstance(out, Tensor) and out.dim() and len(out) >= len(self.y):
            out = out[self.rows]
            _check_output(out, len(self.y), task)
            return out
        _check_output(out, len(self.y) if self.num_rows is None else self.num_rows, task)
        return out if self.rows is None else out[self.rows]


class Examples(Protocol):
    """The training batches of one epoch, in the form that a model takes, and its two scores in evaluation mode."""

    task: Task

    @property
    def ranks(self) -> Ranks | None:
        """The processes that train together."""

    def after_backward(self, model: nn.Module) -> None:
        """Make the gradients of parameters those of all ranks."""

    def batches(self, model: nn.Module) -> Iterator[Batch]: ...

    def scores(self, model: nn.Module) -> tuple[float, float]: ...

    def describe(self) -> dict[str, Any]: ...


class OneProcess:
    """Examples that this process has alone."""

    ranks: Ranks | None = None

    def after_backward(self, model: nn.Module) -> None:
        pass


@final
class Nodes(OneProcess):
    """One graph: the model sees all of it, the masks say which outputs count."""

    def __init__(self, data: Data, adjacency: Any) -> None:
        self.task, self.data = task_of(data), data
        check_features(data, "it")
        self.train_ids, self.val_ids, self.test_ids = labelled_nodes(data, self.task)
        if adjacency is None and getattr(data, "edge_index", None) is None:
            raise ValueError(
                "`data` must have an `edge_index` (it has none); pass another form of the graph as `adjacency`, for "
                "instance gs.Graph or a torch.sparse tensor"
            )
        self.inputs = (data.x, data.edge_index if adjacency is None else adjacency)
        self.y = labels_of(data, self.task)

    def batches(self, model: nn.Module) -> Iterator[Batch]:
        yield Batch(self.inputs, self.y[self.train_ids], self.train_ids, len(self.y))

    def scores(self, model: nn.Module) -> tuple[float, float]:
        out = Batch(self.inputs, self.y, None, len(self.y)).predict(model, self.task)
        val, test = (self.task.score(out[ids], self.y[ids]) for ids in (self.val_ids, self.test_ids))
        return val, test

    def describe(self) -> dict[str, Any]:
        name, edges = getattr(self.data, "name", None), getattr(self.data, "edge_index", None)
        counts = {"nodes": len(self.y), "edges": None if edges is None else edges.size(1)}
        return {"data": name, **counts, "features": self.data.x.size(1), "training_nodes": len(self.train_ids)}


@final
class Graphs(OneProcess):
    """Many graphs, in shuffled batches. The batches for evaluation are put together once."""

    def __init__(self, graphs: Sequence[Data], batch_size: int, split: int) -> None:
        self.task, self.graphs, self.batch_size = task_of(graphs), graphs, batch_size
        for i, graph in enumerate(graphs):
            check_features(graph, f"graph {i}")
        listed = graphs if isinstance(graphs, GraphList) else _as_graph_list(graphs, self.task)
        self.name, self.split, self.features = listed.name, split, listed.num_features
        self.y = torch.cat([graph.y.flatten() for graph in graphs])
        if len(self.y) != len(graphs):
            raise ValueError(f"`data` must have one label per graph (got {len(self.y)} labels, {len(graphs)} graphs)")
        self.train_ids, *held_out = (self._labelled(ids) for ids in listed.split(split))
        for part, ids in zip(("training", "validation", "test"), (self.train_ids, *held_out), strict=True):
            check_part(part, self.y[ids], self.task)
        self.val, self.test = ([self._collate(ids) for ids in part.split(batch_size)] for part in held_out)

    def batches(self, model: nn.Module) -> Iterator[Batch]:
        shuffled = self.train_ids[torch.randperm(len(self.train_ids))]
        yield from (self._collate(ids) for ids in shuffled.split(self.batch_size))

    def scores(self, model: nn.Module) -> tuple[float, float]:
        val, test = (self._score(model, batches) for batches in (self.val, self.test))
        return val, test

    def describe(self) -> dict[str, Any]:
        counts = {"graphs": len(self.graphs), "training_graphs": len(self.train_ids), "features": self.features}
        return {"data": self.name, **counts, "batch_size": self.batch_size, "split": self.split}

    def _score(self, model: nn.Module, batches: list[Batch]) -> float:
        out = torch.cat([batch.predict(model, self.task) for batch in batches])
        return self.task.score(out, torch.cat([batch.y for batch in batches]))

    def _labelled(self, ids: Tensor) -> Tensor:
        return ids if self.y.is_floating_point() else ids[self.y[ids] >= 0]

    def _collate(self, ids: Tensor) -> Batch:
        from torch_geometric.data import Batch as PygBatch

        joined = PygBatch.from_data_list([self.graphs[i] for i in ids.tolist()])
        return Batch((joined.x, joined.edge_index, joined.batch), self.y[ids], None, len(ids))


class Sampling(NamedTuple):
    """How neighbours are sampled in training, and for the scores (None: all neighbours)."""

    batch_size: int
    fanouts: tuple[int, ...]
    eval_fanouts: tuple[int, ...] | None = None


def examples_of(
    data: Data | Sequence[Data] | RankPart,
    batch_size: int,
    split: int,
    adjacency: Any,
    sampling: Sampling | None = None,
) -> Examples:
    """The examples in a node-level `Data`, whole or sampled, in a list of graphs, or in the parts of a graph."""
    if isinstance(data, RankPart):
        if adjacency is not None or sampling is not None:
            raise ValueError(
                "`adjacency` and `fanouts` must be left out for a part of a graph, which is trained on whole"
            )
        from .parts import Parts

        return Parts(data)
    if not isinstance(data, Sequence):
        if not hasattr(data, "edge_index") and not hasattr(data, "x"):
            raise TypeError(f"`data` must be a PyG Data or a list of them (got {type(data).__name__})")
        if sampling is None:
            return Nodes(data, adjacency)
        from .sampled import SampledNodes

        return SampledNodes(data, adjacency, sampling)
    if adjacency is not None:
        raise ValueError("`adjacency` must be left out for a list of graphs, which are batched by their edge_index")
    if sampling is not None:
        raise ValueError("`fanouts` must be left out for a list of graphs, which are batched whole (got fan-outs)")
    return Graphs(data, batch_size, split)


def _as_graph_list(graphs: Sequence[Data], task: Task) -> GraphList:
    classes = None if task.metric == "mae" else task.out_channels
    return GraphList(graphs, "graphs", task.name, classes, np.empty((0, len(graphs)), np.int8))


def _check_output(out: Any, num_rows: int, task: Task) -> None:
    expected = [num_rows, task.out_channels]
    came = list(out.shape) if isinstance(out, Tensor) else type(out).__name__
    if came == expected or (task.out_channels == 1 and came == [num_rows]):
        return
    raise ValueError(
        f"`model` must give outputs of shape {expected} for {task.name!r} (got {came}); build it with "
        f"out_channels={task.out_channels}" + (" and one row per graph" if task.graph_level else "")
    )
