"""Accuracy of integer inference: trained for it (gs.DegreeQuant, gs.QAT), or calibrated after training in float32.

    python benchmarks/degree_quant.py [--sets cora,citeseer] [--models gcn,gin] [--variants float32,DQ8] [--runs 10]
                                      [--epochs 100] [--threads 1] [--out FILE]

Test score at best validation, of the model as it was trained (`tests`: every rounding simulated in float32) and of the
integer engine that its export gives (`engines`), which must agree; `agreements` is the share of test rows with the same
largest output. `float32` also gives `calibrate 8`: the same weights with ranges from a few training batches.

    cora, citeseer, pubmed   two layers of 64 columns (GAT: 8 heads of 8), dropout 0.5; a run is a seed
    tu_reddit_binary         the GIN of the released code; a run is a fold. Its first layer, on one column of degrees,
                             stays in float32 there, and here. The learning rate is halved after every quarter
    mnist_superpixels_18k, zinc12k_rebuilt
                             four layers of 64 columns with batch norm; a run is a seed. Cosine schedule

The same run gives every variant the same weights to begin with. Accuracy in percent; MAE for zinc12k_rebuilt. FILE is
read, merged and written after every run: several processes may add to it, and what it has is not run again.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import dataclasses
import fcntl
import json
import os
import statistics
import tempfile
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from harness import RESULTS, machine, write_json
from torch import Tensor, nn
from torch.optim.lr_scheduler import CosineAnnealingLR, StepLR
from torch_geometric.nn import GINConv, global_mean_pool

import gossamer as gs
from gossamer.training import TrainingDiverged, models
from gossamer.training.examples import Examples, Nodes, examples_of
from gossamer.training.loop import evaluate, train_epoch
from gossamer.training.random_state import seed_all

VARIANTS: dict[str, Any] = {
    "float32": None,
    "DQ8": gs.DegreeQuant(bits=8),
    "QAT8": gs.QAT(bits=8),
    "DQ4": gs.DegreeQuant(bits=4, low=0.1, high=0.2),
    "QAT4": gs.QAT(bits=4),
    "DQ8 released": gs.DegreeQuant.published(bits=8),
    "QAT8 released": gs.QAT.published(bits=8),
    "DQ4 released": gs.DegreeQuant.published(bits=4),
    "QAT4 released": gs.QAT.published(bits=4),
}
CALIBRATED = "calibrate 8"
CALIBRATION_BATCHES = 4


@dataclass(frozen=True)
class Setting:
    """How a set is trained on; `special`: learning rate and weight decay of some variants."""

    epochs: int
    runs: int
    lr: float
    weight_decay: float
    schedule: str = "constant"
    batch_size: int = 0
    skip: tuple[str, ...] = ()
    special: tuple[tuple[str, float, float], ...] = ()

    def adam(self, variant: str) -> tuple[float, float]:
        found = [numbers for name, *numbers in self.special if name == variant.removesuffix(" released")]
        return tuple(found[0]) if found else (self.lr, self.weight_decay)


CITATIONS = Setting(epochs=100, runs=10, lr=0.01, weight_decay=5e-4)
REDDIT = Setting(
    40, 3, 5e-3, 2e-4, "halved", 128, ("convs.0.nn.0",), (("DQ4", 1e-3, 4e-5), ("QAT4", 5e-2, 2e-4))
)  # fmt: skip
SETS = {
    "cora": CITATIONS,
    "citeseer": CITATIONS,
    "pubmed": CITATIONS,
    "tu_reddit_binary": REDDIT,
    "zinc12k_rebuilt": Setting(20, 3, 5e-3, 0.0, "cosine", 128),
    "mnist_superpixels_18k": Setting(10, 2, 5e-3, 0.0, "cosine", 128),
}


# Data and models --------------------------------------------------------------------------------------------------


def load(name: str) -> Any:
    """The set; nodes of tu_reddit_binary have their standardised degree as their one feature, as released."""
    if name != "tu_reddit_binary":
        return gs.datasets.load(name)
    graphs = gs.datasets.load(name, features="constant")
    degrees = [torch.bincount(graph.edge_index[1], minlength=graph.num_nodes).float() for graph in graphs]
    joined = torch.cat(degrees)
    for graph, degree in zip(graphs, degrees, strict=True):
        graph.x = ((degree - joined.mean()) / joined.std()).unsqueeze(1)
    return graphs


class ReleasedGIN(nn.Module):
    """Five layers of 64 columns, mean pooling, two linear layers: 42,503 parameters on one feature and two classes."""

    def __init__(self, features: int, classes: int, width: int = 64, layers: int = 5) -> None:
        super().__init__()
        self.convs = nn.ModuleList(
            GINConv(self._network(features if k == 0 else width, width), train_eps=True) for k in range(layers)
        )
        self.first, self.last = nn.Linear(width, width), nn.Linear(width, classes)

    @staticmethod
    def _network(columns: int, width: int) -> nn.Sequential:
        inner, outer = nn.Linear(columns, width), nn.Linear(width, width)
        return nn.Sequential(inner, nn.ReLU(), outer, nn.ReLU(), nn.BatchNorm1d(width))

    def forward(self, x: Tensor, edge_index: Any, batch: Tensor) -> Tensor:
        for conv in self.convs:
            x = conv(x, edge_index)
        x = torch.relu(self.first(global_mean_pool(x, batch)))
        return self.last(nn.functional.dropout(x, 0.5, self.training))


def build(name: str, kind: str, data: Any) -> nn.Module:
    if name == "tu_reddit_binary":
        return ReleasedGIN(data.num_features, data.num_classes)
    if not SETS[name].batch_size:
        return models.build(kind, data, layers=2, width=64, norm="none", dropout=0.5, heads=8)
    return models.build(kind, data, layers=4, width=64, norm="batch", dropout=0.0)


# One run ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Score:
    """One run: test score at best validation, simulated and by the integer engine."""

    val: float
    test: float | None
    engine: float | None = None
    agreement: float | None = None
    best_epoch: int = 0


def run(name: str, kind: str, variant: str, number: int, data: Any, setting: Setting) -> Iterator[tuple[str, Score]]:
    """The score of a variant, and after float32 that of its calibration."""
    graph_level = setting.batch_size > 0
    split = number if getattr(data, "num_splits", 1) > 1 else 0
    examples = examples_of(data, setting.batch_size or 1, split, None)
    torch.manual_seed(number)
    model = build(name, kind, data)
    training = VARIANTS[variant]
    if training is not None and setting.skip:
        training = dataclasses.replace(training, skip=setting.skip)
    seed_all(number)
    gs.lighten_(model, gs.Recipe(training=training))
    try:
        score = fit(model, examples, setting, variant)
    except TrainingDiverged:
        yield variant, Score(0.0, None)
        return
    if training is not None:
        yield variant, with_engine(score, model, examples)
        return
    yield variant, score
    batches = first_of(examples.batches(model), CALIBRATION_BATCHES if graph_level else 1)
    gs.calibrate(model, [batch.inputs for batch in batches], bits=8, skip=setting.skip)
    _, test = evaluate(model, examples)
    yield CALIBRATED, with_engine(dataclasses.replace(score, test=test), model, examples)


def first_of(batches: Iterator[Any], count: int) -> list[Any]:
    return [batch for _, batch in zip(range(count), batches, strict=False)]


def fit(model: nn.Module, examples: Examples, setting: Setting, variant: str) -> Score:
    """As gs.train does, with a schedule; the model ends with its best weights."""
    lr, weight_decay = setting.adam(variant)
    optimizer = torch.optim.Adam(model.parameters(), lr=lr, weight_decay=weight_decay)
    schedules = {
        "constant": lambda: StepLR(optimizer, setting.epochs, 1.0),
        "halved": lambda: StepLR(optimizer, max(1, setting.epochs // 4), 0.5),
        "cosine": lambda: CosineAnnealingLR(optimizer, setting.epochs),
    }
    schedule, sign = schedules[setting.schedule](), 1 if examples.task.higher_is_better else -1
    best, weights = Score(-sign * float("inf"), None), copy.deepcopy(model.state_dict())
    for epoch in range(1, setting.epochs + 1):
        train_epoch(model, optimizer, examples, f"in epoch {epoch}")
        schedule.step()
        val, test = evaluate(model, examples)
        if sign * val > sign * best.val:
            best, weights = Score(val, test, best_epoch=epoch), copy.deepcopy(model.state_dict())
    model.load_state_dict(weights)
    return best


@torch.no_grad()
def with_engine(score: Score, model: nn.Module, examples: Any) -> Score:
    """And the integer engine's on the same test nodes or graphs."""
    with tempfile.TemporaryDirectory() as folder:
        gs.export(model, Path(folder) / "model.safetensors")
        engine = gs.load(Path(folder) / "model.safetensors")
    model.eval()
    if isinstance(examples, Nodes):
        ids = examples.test_ids
        want, got, y = model(*examples.inputs)[ids], engine(*examples.inputs)[ids], examples.y[ids]
    else:
        want = torch.cat([model(*batch.inputs) for batch in examples.test])
        got = torch.cat([engine(*batch.inputs, len(batch.y)) for batch in examples.test])
        y = torch.cat([batch.y for batch in examples.test])
    if want.size(1) > 1:
        agreement = float((want.argmax(1) == got.argmax(1)).float().mean())
    else:
        agreement = 1 - float((want - got).abs().mean() / want.abs().mean())
    return dataclasses.replace(score, engine=examples.task.score(got, y), agreement=agreement)


# The file ---------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """One process at a time."""
    folder.mkdir(parents=True, exist_ok=True)
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def read(path: Path) -> list[dict[str, Any]]:
    return json.loads(path.read_text())["results"] if path.exists() else []


def is_done(path: Path, job: tuple[str, str, str], number: int) -> bool:
    return any((one["set"], one["model"], one["variant"]) == job and number in one["runs"] for one in read(path))


def merge(path: Path, job: tuple[str, str, str], setting: Setting, number: int, score: Score, metric: str) -> None:
    """Add one run to the file."""
    name, kind, variant = job
    lr, weight_decay = setting.adam(variant)
    facts = {"set": name, "model": kind, "variant": variant, "metric": metric, "epochs": setting.epochs, "lr": lr}
    facts |= {"weight_decay": weight_decay, "schedule": setting.schedule, "batch_size": setting.batch_size}
    facts |= {"setting": repr(VARIANTS.get(variant)), "skip": list(setting.skip)}
    unit = 1.0 if metric == "mae" else 100.0
    columns = {"runs": number, "vals": scaled(score.val, unit), "tests": scaled(score.test, unit)}
    columns |= {"engines": scaled(score.engine, unit), "agreements": score.agreement, "best_epochs": score.best_epoch}
    with locked(path.parent):
        found = read(path)
        key = ("set", "model", "variant", "epochs")
        row = next((one for one in found if all(one[k] == facts[k] for k in key)), None)
        if row is None:
            found.append(row := facts | {column: [] for column in columns})
        for column, value in columns.items():
            row[column].append(value)
        for column in ("tests", "engines"):
            known = [value for value in row[column] if value is not None]
            of = column.removesuffix("s")
            row[f"{of}_mean"] = statistics.fmean(known) if known else None
            row[f"{of}_std"] = statistics.stdev(known) if len(known) > 1 else 0.0
        write_json(path, {"machine": machine(), "results": found})
    told = "diverged" if score.test is None else f"{row['tests'][-1]:.3f}"
    engine = "" if score.engine is None else f", engine {row['engines'][-1]:.3f}, agrees {score.agreement:.4f}"
    print(f"{name:22} {kind:4} {variant:14} {number}: {told}{engine}; epoch {score.best_epoch}", flush=True)


def scaled(value: float | None, unit: float) -> float | None:
    return None if value is None else unit * value


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sets", default=",".join(SETS))
    parser.add_argument("--models", default="gcn,gin,gat", help="tu_reddit_binary has gin alone")
    parser.add_argument("--variants", default="float32,DQ8,QAT8,DQ4,QAT4")
    parser.add_argument("--runs", type=int, default=None, help="seeds or folds; by default those of the set")
    parser.add_argument("--epochs", type=int, default=None)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--out", type=Path, default=RESULTS / "degree-quant-accuracy.json")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(args.threads)
    loaded: dict[str, Any] = {}
    for kind in args.models.split(","):
        for name in args.sets.split(","):
            setting = dataclasses.replace(SETS[name], epochs=args.epochs) if args.epochs else SETS[name]
            if name == "tu_reddit_binary" and kind != "gin":
                continue
            for number in range(args.runs or setting.runs):
                for variant in args.variants.split(","):
                    if is_done(args.out, (name, kind, variant), number):
                        continue
                    if name not in loaded:
                        loaded[name] = load(name)
                    metric = "mae" if name.startswith("zinc") else "accuracy"
                    for made, score in run(name, kind, variant, number, loaded[name], setting):
                        merge(args.out, (name, kind, made), setting, number, score, metric)


if __name__ == "__main__":
    main()
