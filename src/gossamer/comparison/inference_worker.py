"""One form of a trained model, in a process of its own: its weights, its file, and what a call costs.

    seconds      the best of at least five calls, after two that are not timed: they fill caches and compile
    per_second   nodes of the graph, or graphs of the batch, that are evaluated in a second
    peak_bytes   peak of resident memory in those calls, above that before them: libraries, data, graph and model loaded
    file_bytes   the model on disk: float32 weights as safetensors, or the exported file

A call is one over the whole graph, which is prepared beforehand for all forms alike; of a list of graphs, one over a
batch of its test graphs, whose `edge_index` is new to each call.
"""

from __future__ import annotations

import contextlib
import logging
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from .. import measurement
from ..conversion import calibrate, export
from ..datasets import GraphList
from ..graph import Graph
from ..inference import load as load_engine
from ..pyg import lighten_
from ..recipe import recipes
from ..training import models
from ..training.data import graph_split
from ..training.examples import Batch, Graphs, Nodes, examples_of
from ..training.random_state import seed_all
from ..training.tasks import task_of
from . import onnx_model
from .forms import COMPILED, LIGHTENED, ONNX, Form
from .settings import Settings
from .variants import CSR, EDGE_INDEX, Variant, adjacency_of, prepare
from .worker import Job, load_data, tell_epoch, train_variant

MOST_GRAPHS = 10_000
"""Test graphs in the batch that is measured."""
CALIBRATION_GRAPHS = 256
WARMUP, LEAST_CALLS, MOST_CALLS, SECONDS = 2, 5, 50, 1.0
"""So many calls are timed that they take about SECONDS, within these bounds."""


def train_weights(settings: Settings, recipe: str, folder: Path) -> float:
    """Train the model and leave its best weights in the folder; the test score."""
    with _quiet(settings):
        data = load_data(settings)
        model, result = train_variant(
            Job(settings, Variant(recipe, recipe, recipes[recipe]), 0), data, None, tell_epoch
        )
        save_file({name: value.contiguous() for name, value in model.state_dict().items()}, _weights(folder, recipe))
    return result.test


def write_model(settings: Settings, form: Form, folder: Path) -> None:
    """The file of a form that has its own."""
    with _quiet(settings):
        data = load_data(settings)
        model = _trained(settings, form, data, folder)
        if form.name == ONNX:
            inputs = _inputs(settings, form, model, data, _tested(settings, data).inputs)
            onnx_model.write(model, inputs, _file(form, folder))
            return
        example = _example(settings, model, data)
        if form.trained == "float32":
            calibrate(model, example, bits=8, check=False)  # the export checks the program
        export(model, _file(form, folder), example)


def measure_form(settings: Settings, form: Form, folder: Path) -> dict[str, Any]:
    """The figures of a form."""
    with _quiet(settings), torch.inference_mode():
        data = load_data(settings)
        many, batch = isinstance(data, GraphList), _tested(settings, data)
        model, inputs = _ready(settings, form, data, batch.inputs, folder)
        call = _call(model, inputs, anew=many)
        estimate = measurement.epoch_seconds(call, warmup=WARMUP - 1, repeats=1).best
        calls = min(MOST_CALLS, max(LEAST_CALLS, round(SECONDS / estimate)))
        with measurement.peak() as peak:
            seconds = measurement.epoch_seconds(call, warmup=0, repeats=calls).best
        task = task_of(data)
        out = call()
        test = task.score(out if batch.rows is None else out[batch.rows], batch.y)
    count = len(batch.y) if many else data.num_nodes
    return {
        "test": test, "count": count, "seconds": seconds, "per_second": count / seconds, "peak_bytes": peak.bytes,
        "file_bytes": _file(form, folder).stat().st_size,
    }  # fmt: skip


@contextlib.contextmanager
def _quiet(settings: Settings) -> Iterator[None]:
    """With the threads of the comparison, and without what compilers and exporters tell their developers."""
    torch.set_num_threads(settings.threads)
    logged = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(None):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(logged)


def _weights(folder: Path, recipe: str) -> Path:
    return folder / f"{recipe}.safetensors"


def _file(form: Form, folder: Path) -> Path:
    return folder / f"{form.name}.model" if form.is_written else _weights(folder, form.trained)


def _trained(settings: Settings, form: Form, data: Any, folder: Path) -> nn.Module:
    """The model with its trained weights, as the recipe that it was trained by made it; PyG's own for float32."""
    model = models.build(settings.model, data, **settings.model_options)
    if form.trained != "float32":
        lighten_(model, recipes[form.trained])
    model.load_state_dict(load_file(_weights(folder, form.trained)))
    return model.eval()


def _tested(settings: Settings, data: Any) -> Batch:
    """The call that is measured, and the rows of its result that are scored."""
    if isinstance(data, GraphList):
        return Graphs(data, MOST_GRAPHS, graph_split(settings.split)).test[0]
    nodes = Nodes(data, None)
    return Batch(nodes.inputs, nodes.y[nodes.test_ids], nodes.test_ids, len(nodes.y))


def _example(settings: Settings, model: nn.Module, data: Any) -> tuple[Any, ...]:
    """What ranges are taken from: the whole graph, or some training graphs."""
    seed_all(0)
    split = graph_split(settings.split) if isinstance(data, GraphList) else 0
    return next(iter(examples_of(data, CALIBRATION_GRAPHS, split, None).batches(model))).inputs


def _ready(
    settings: Settings, form: Form, data: Any, inputs: tuple[Any, ...], folder: Path
) -> tuple[Callable[..., Tensor], tuple[Any, ...]]:
    """What is called, and with what."""
    if form.is_engine:
        return load_engine(_file(form, folder)), _inputs(settings, form, None, data, inputs)
    model = _trained(settings, form, data, folder)
    inputs = _inputs(settings, form, model, data, inputs)
    if form.name == ONNX:
        return onnx_model.load(_file(form, folder), settings.threads), inputs
    if form.name == LIGHTENED:
        lighten_(model, "float32")
    return torch.compile(model) if form.name == COMPILED else model, inputs


def _inputs(
    settings: Settings, form: Form, model: nn.Module | None, data: Any, inputs: tuple[Any, ...]
) -> tuple[Any, ...]:
    """The arguments of a call, the graph in the form that suits best; PyG's model is prepared for it."""
    if isinstance(data, GraphList):
        return inputs
    x, edge_index = inputs
    if form.ours:
        return x, Graph.from_edge_index(edge_index, data.num_nodes)
    assert model is not None
    # GCN's normalised edges go into the ONNX model as an input; PyG keeps them
    form_of_graph = CSR if form.name == CSR or (form.name, settings.model) == (ONNX, "gcn") else EDGE_INDEX
    variant = Variant(form_of_graph, form.label)
    prepare(variant, model, one_graph=True)
    if form_of_graph == EDGE_INDEX:
        return inputs
    if form.name == ONNX:
        return onnx_model.normalised(x, edge_index)
    return x, adjacency_of(variant, settings.model, data)


def _call(model: Callable[..., Tensor], inputs: tuple[Any, ...], anew: bool) -> Callable[[], Tensor]:
    """A call without arguments; `anew`: with a copy of the `edge_index`, of which nothing is known from before."""
    x, edges, *others = inputs
    return lambda: model(x, edges.clone() if anew else edges, *others)
