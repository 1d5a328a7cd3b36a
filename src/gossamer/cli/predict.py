"""`gossamer predict`: outputs of an integer model for a dataset, or for features and a graph in files."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import typer
from rich.console import Console
from rich.progress import Progress
from torch import Tensor

from ..atomic import destination, replacing
from ..datasets import GraphList
from ..features import FeatureStore
from ..graph import Graph
from ..inference import Engine, load
from ..training.data import graph_split
from ..training.data import load as load_dataset
from ..training.tasks import Task, labels_of, task_of
from .errors import told_plainly
from .train import _set_threads

GRAPHS_AT_A_TIME = 1000


def predict(
    model: Annotated[Path, typer.Argument(help="File of `gossamer export` or gs.export.")],
    dataset: Annotated[str | None, typer.Option(help="A name that `gossamer datasets` lists.")] = None,
    graph: Annotated[Path | None, typer.Option(help="File of Graph.save, in place of a dataset.")] = None,
    features: Annotated[Path | None, typer.Option(help="Its features: .npy, or .gsf of `gossamer compress`.")] = None,
    out: Annotated[Path | None, typer.Option(help="File to write, .npz: `outputs` and `prediction`.")] = None,
    split: Annotated[str | None, typer.Option(help="Which split of the dataset the score is of.")] = None,
    scale: Annotated[float | None, typer.Option(help="Size of a generated set, 1 being the full one.")] = None,
    threads: Annotated[int | None, typer.Option(help="Threads; by default what torch chooses.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")] = False,
) -> None:
    """Run an integer model; without PyG where graph and features come from files."""
    with told_plainly():
        _set_threads(threads)
        if out is not None:
            destination(out, "--out")  # known to be possible before anything is computed
        engine = load(model)
        begun = time.perf_counter()
        if dataset is not None:
            if graph is not None or features is not None:
                raise ValueError("`--dataset` and `--graph` with `--features` exclude each other")
            outputs, score = _of_dataset(engine, dataset, split, scale, not as_json)
        else:
            outputs, score = engine(*_of_files(graph, features)), None
        seconds = time.perf_counter() - begun
        if out is not None:
            _write(out, outputs)
    rows, columns = outputs.shape
    facts: dict[str, Any] = {"model": str(model), "rows": rows, "outputs": columns, "seconds": seconds}
    facts |= {"score": score, "out": out and str(out)}
    if as_json:
        print(json.dumps(facts))
        return
    told = "" if score is None else "; test " + ", ".join(f"{name} {value:.4f}" for name, value in score.items())
    print(f"{engine}: {rows:,} rows in {seconds:.2f} s{told}")
    if out is not None:
        print(f"{out}: outputs, prediction")


def _of_files(graph: Path | None, features: Path | None) -> tuple[Any, Graph]:
    if graph is None or features is None:
        raise ValueError("Give `--dataset`, or `--graph` and `--features`")
    return read_features(features), Graph.load(graph)


def read_features(path: Path) -> Any:
    """Features of a .gsf file, decoded when they are used, or of a .npy file."""
    if path.suffix == ".gsf":
        return FeatureStore.open(path)
    if path.suffix != ".npy":
        raise ValueError(f"`--features` must be a .npy or a .gsf file (got {path})")
    found = np.load(path, allow_pickle=False)
    if found.ndim != 2 or found.dtype.kind not in "fiub":
        raise ValueError(
            f"`--features` must hold a matrix of numbers ({path} has {found.dtype} of shape {found.shape})"
        )
    return torch.from_numpy(found.astype(np.float32, copy=False))


def _of_dataset(
    engine: Engine, name: str, split: str | None, scale: float | None, progress: bool
) -> tuple[Tensor, dict[str, float] | None]:
    data = load_dataset(name, split, scale)
    task = task_of(data)
    if isinstance(data, GraphList):
        outputs = _of_graphs(engine, data, progress)
        ids = data.split(graph_split(split))[2]
        y = torch.cat([graph.y.flatten() for graph in data])
    else:
        outputs, y = engine(data.x, data.edge_index), labels_of(data, task)
        mask = getattr(data, "test_mask", None)
        ids = torch.empty(0, dtype=torch.int64) if mask is None else mask.nonzero().flatten()
    return outputs, _score(task, outputs, y, ids) if len(ids) else None


def _score(task: Task, outputs: Tensor, y: Tensor, ids: Tensor) -> dict[str, float]:
    if not task.multilabel and not y.is_floating_point():
        ids = ids[y[ids] >= 0]
    return {task.metric: task.score(outputs[ids], y[ids])}


def _of_graphs(engine: Engine, graphs: GraphList, progress: bool) -> Tensor:
    from torch_geometric.data import Batch

    found = []
    with Progress(console=Console(stderr=True), disable=not progress) as bar:
        task = bar.add_task("graphs", total=len(graphs))
        for first in range(0, len(graphs), GRAPHS_AT_A_TIME):
            some = [graphs[i] for i in range(first, min(first + GRAPHS_AT_A_TIME, len(graphs)))]
            joined = Batch.from_data_list(some)
            found.append(engine(joined.x, joined.edge_index, joined.batch, len(some)))
            bar.advance(task, len(some))
    return torch.cat(found)


def _write(path: Path, outputs: Tensor) -> None:
    arrays = {"outputs": outputs.numpy()}
    if outputs.size(1) > 1:
        arrays["prediction"] = outputs.argmax(1).numpy()
    with replacing(path, "--out") as temporary, open(temporary, "wb") as file:
        np.savez(file, **arrays)  # type: ignore[arg-type]
