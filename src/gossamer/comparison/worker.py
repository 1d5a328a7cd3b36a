"""One run of one variant, in a process of its own: train, then return scores, time and memory.

    peak_bytes          peak of resident memory, above that before the model is built (libraries and data loaded)
    kept_bytes          saved for backward in the forward pass of one training batch, without features and graph
    seconds_per_epoch   the median over the epochs after the first few, evaluation left out

The CSR adjacency of a baseline is prepared before, like the data, and does not count; what a recipe builds does.
"""

from __future__ import annotations

import statistics
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import nn

from .. import datasets, measurement
from ..datasets import GraphList
from ..datasets.pyg_data import make_data
from ..measurement import fresh_process
from ..training import models, train
from ..training.data import graph_split, is_graph_level, is_multilabel, load
from ..training.examples import examples_of
from ..training.features import with_features
from ..training.history import Epoch, TrainResult
from ..training.random_state import seed_all
from .settings import Settings
from .variants import Variant, adjacency_of, prepare

WARMUP_EPOCHS = 3


@dataclass(frozen=True)
class Job:
    settings: Settings
    variant: Variant
    seed: int


def run(job: Job) -> dict[str, Any]:
    """One entry of "runs" in a comparison."""
    torch.set_num_threads(job.settings.threads)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch warns about sparse tensors; users cannot act on that
        rehearse(job)
        data = load_data(job.settings)
        adjacency = adjacency_of(job.variant, job.settings.model, data)
        with measurement.peak() as peak:
            model, result = train_variant(job, data, adjacency, tell_epoch)
        kept = kept_bytes(job, model, data, adjacency)
    found = {"seed": job.seed, "test": result.test, "val": result.val, "best_epoch": result.best_epoch}
    found |= {"seconds_per_epoch": steady_seconds(result.history["seconds"])}
    return found | {"peak_bytes": peak.bytes, "kept_bytes": kept, "curve": result.history, "error": None}


def load_data(settings: Settings) -> Any:
    """The dataset, with an `edge_index` if it is one graph."""
    data = load(settings.dataset, settings.split, settings.scale)
    if not isinstance(data, GraphList) and data.edge_index is None:
        data.edge_index = datasets.edge_index(data)  # a stored stream has rowptr and col
    return data


def train_variant(
    job: Job, data: Any, adjacency: Any, on_epoch: Callable[[Epoch], object] | None = None
) -> tuple[nn.Module, TrainResult]:
    """Build the model, convert it as the variant says, train it."""
    settings = job.settings
    seed_all(job.seed)
    model = models.build(settings.model, data, **settings.model_options)
    prepare(job.variant, model, one_graph=not isinstance(data, GraphList) and settings.fanouts is None)
    result = train(
        model,
        data,
        job.variant.recipe,
        epochs=settings.epochs,
        lr=settings.lr,
        weight_decay=settings.weight_decay,
        seed=job.seed,
        batch_size=settings.batch_size,
        fanouts=settings.fanouts,
        split=graph_split(settings.split) if isinstance(data, GraphList) else 0,
        adjacency=adjacency,
        progress=False,
        on_epoch=on_epoch,
    )
    return model, result


def tell_epoch(epoch: Epoch) -> None:
    """What the bar of the run shows."""
    fresh_process.tell((epoch.number, epoch.val, epoch.seconds))


def steady_seconds(seconds: list[float]) -> float:
    """The median after the first epochs, which allocate memory and fill caches; for a short run the last epoch."""
    return statistics.median(seconds[WARMUP_EPOCHS:] or seconds[-1:])


def kept_bytes(job: Job, model: nn.Module, data: Any, adjacency: Any) -> int:
    """Bytes saved for backward in the forward pass of one training batch."""
    split = graph_split(job.settings.split) if isinstance(data, GraphList) else 0
    recipe, settings = job.variant.recipe, job.settings
    if recipe is not None and recipe.features is not None:
        data = with_features(data, recipe.features, settings.fanouts is not None, progress=False)
    examples = examples_of(data, settings.batch_size, split, adjacency, settings.sampling)
    seed_all(job.seed)  # the same batch for all variants
    batch = next(iter(examples.batches(model)))
    model.train()
    return measurement.kept_bytes(
        lambda: examples.task.loss(batch.predict(model, examples.task), batch.y), exclude=[model, batch, data]
    )


def rehearse(job: Job) -> None:
    """Train a tiny model first, so that what PyTorch and PyG load at first use is not counted for the model."""
    small = replace(job.settings, width=4 * job.settings.heads, layers=2, epochs=1, split=None)
    small = replace(small, fanouts=None if small.fanouts is None else (2, 2))
    toy = toy_graphs() if is_graph_level(small.dataset) else toy_nodes(multilabel=is_multilabel(small.dataset))
    adjacency = adjacency_of(job.variant, small.model, toy)
    model, _ = train_variant(replace(job, settings=small), toy, adjacency)
    kept_bytes(replace(job, settings=small), model, toy, adjacency)


def toy_nodes(num_nodes: int = 12, multilabel: bool = False) -> Any:
    """A ring whose nodes are of two classes, in turn, or have one of two binary labels."""
    nodes = torch.arange(num_nodes)
    masks = {f"{part}_mask": nodes % 3 == i for i, part in enumerate(("train", "val", "test"))}
    edge_index = torch.stack([nodes, (nodes + 1) % num_nodes])
    y = torch.nn.functional.one_hot(nodes % 2).float() if multilabel else nodes % 2
    return make_data(x=torch.ones(num_nodes, 4), edge_index=edge_index, y=y, num_classes=2, **masks)


def toy_graphs(num_graphs: int = 12) -> GraphList:
    """Rings of two classes, in turn."""
    graphs = [toy_nodes() for _ in range(num_graphs)]
    for i, graph in enumerate(graphs):
        graph.y = torch.tensor([i % 2])
    parts = (np.arange(num_graphs, dtype=np.int8) % 3)[None]
    return GraphList(graphs, "toy", "graph classification", 2, parts)
