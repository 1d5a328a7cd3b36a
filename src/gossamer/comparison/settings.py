"""The settings that all variants of a comparison share, and a description of the dataset."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ..datasets import GraphList
from ..training import models, tasks
from ..training.checks import check_adam, check_counts
from ..training.data import graph_split, load
from ..training.examples import Sampling

MODEL_FIELDS = ("layers", "width", "dropout", "norm", "heads")
RECIPES = ("float32", "tango", "exact-int2", "feather")
"""Default: the recipes that are compared with PyG."""
SAMPLED_RECIPES = ("float32", "tango", "bifeat-1bit", "bifeat-vq")
"""Default where neighbours are sampled."""
RUN_FIELDS = ("epochs", "lr", "weight_decay", "batch_size", "fanouts", "seeds", "threads", "scale", "split")


@dataclass(frozen=True)
class Settings:
    """One comparison. `scale` and `split` are passed to the dataset unless they are None."""

    dataset: str
    model: str
    layers: int
    width: int
    dropout: float
    norm: str
    heads: int
    epochs: int
    lr: float
    weight_decay: float
    batch_size: int
    seeds: tuple[int, ...]
    threads: int
    scale: float | None = None
    split: int | str | None = None
    fanouts: tuple[int, ...] | None = None
    """Neighbours per layer of sampled batches; None: the whole graph."""

    def __post_init__(self) -> None:
        check_counts(epochs=self.epochs, batch_size=self.batch_size, threads=self.threads)
        check_adam(self.lr, self.weight_decay)

    @property
    def sampling(self) -> Sampling | None:
        return None if self.fanouts is None else Sampling(self.batch_size, self.fanouts)

    @property
    def model_options(self) -> dict[str, Any]:
        """The keyword arguments of `models.build`."""
        return {name: getattr(self, name) for name in MODEL_FIELDS}

    def describe(self) -> dict[str, Any]:
        """The parts "model" and "settings" of a comparison, as JSON gives them back."""
        plain = asdict(self)
        model = {"name": self.model} | {name: plain[name] for name in MODEL_FIELDS}
        model["heads"] = self.heads if self.model == "gat" else None
        return {"model": model, "settings": {name: _listed(plain[name]) for name in RUN_FIELDS}}


def _listed(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def seeds_of(seeds: int | Sequence[int]) -> tuple[int, ...]:
    """A number of seeds, counted from 0, or the seeds themselves."""
    chosen = tuple(range(seeds)) if isinstance(seeds, int) else tuple(dict.fromkeys(seeds))
    if not chosen or any(not isinstance(seed, int) or seed < 0 for seed in chosen):
        raise ValueError(f"`seeds` must be at least 1, or a list of whole numbers of at least 0 (got {seeds!r})")
    return chosen


def examine(settings: Settings) -> dict[str, Any]:
    """The part "dataset" of a comparison; raises for a set or model that could not be trained."""
    data = load(settings.dataset, settings.split, settings.scale)
    task = tasks.task_of(data)
    models.build(settings.model, data, **settings.model_options)
    if isinstance(data, GraphList):
        data.split(graph_split(settings.split))
        nodes, edges = (sum(getattr(graph, count) for graph in data) for count in ("num_nodes", "num_edges"))
    else:
        tasks.labelled_nodes(data, task)
        nodes, edges = data.num_nodes, data.col.numel() if "rowptr" in data else data.num_edges
    classes = None if task.metric == "mae" else task.out_channels
    found = {"name": settings.dataset, "nodes": nodes, "edges": edges, "features": data.num_features}
    facts = {"classes": classes, "task": task.name, "metric": task.metric, "higher_is_better": task.higher_is_better}
    return found | facts
