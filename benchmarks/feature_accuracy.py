"""Accuracy with features in few bits: test at best validation over seeds, and an MLP as control.

    python benchmarks/feature_accuracy.py [--sets arxiv-like,pubmed,tolokers,digits] [--seeds 10] [--out FILE]

Every codec is fitted to the features of the set, encodes them, and the model trains on what they decode to, on the
whole graph; mini-batches read the same rows. An MLP averages nothing, so what a codec loses shows there first. Finished
rows are kept: a second run continues.
"""

from __future__ import annotations

import argparse
import copy
import json
import statistics
import warnings
from pathlib import Path
from typing import Any

import torch
from harness import RESULTS, machine, write_json
from rich.progress import Progress
from torch import nn

import gossamer as gs
from gossamer.training import models

CODECS: dict[str, Any] = {
    "float32": None,
    "8 bits": gs.Scalar(bits=8),
    "4 bits": gs.Scalar(bits=4),
    "2 bits": gs.Scalar(bits=2),
    "1 bit": gs.Scalar(bits=1),
    "2 bits optimal": gs.Scalar(bits=2, scale="optimal"),
    "principal 2 x 4 bits": gs.Principal(ratio=2, then=gs.Scalar(bits=4)),
    "principal 2 x 2 bits": gs.Principal(ratio=2, then=gs.Scalar(bits=2)),
    "product 16x256": gs.Product(width=16, length=256),
    "product 8x256": gs.Product(width=8, length=256),
}
SETS = {
    "digits": (2, 60),
    "pubmed": (2, 100),
    "tolokers": (3, 60),
    "arxiv-like": (3, 30),
    "amazon_computers": (2, 60),
    "cora": (2, 100),
}
"""Layers and epochs."""


class Perceptron(nn.Module):
    """Sees no neighbours."""

    def __init__(self, data: Any, width: int) -> None:
        super().__init__()
        self.first, self.norm = nn.Linear(data.num_features, width), nn.BatchNorm1d(width)
        self.last = nn.Linear(width, data.num_classes)

    def forward(self, x: torch.Tensor, edge_index: Any) -> torch.Tensor:
        hidden = torch.relu(self.norm(self.first(x)))
        return self.last(nn.functional.dropout(hidden, 0.5, self.training))


def build(kind: str, data: Any, layers: int) -> nn.Module:
    if kind == "mlp":
        return Perceptron(data, 64)
    return models.build(kind, data, layers=layers, width=64, norm="batch", dropout=0.5)


def test_score(data: Any, kind: str, layers: int, epochs: int, seed: int) -> float:
    torch.manual_seed(seed)
    settings = {"epochs": epochs, "lr": 0.01, "weight_decay": 5e-4, "seed": seed, "progress": False}
    return 100 * gs.train(build(kind, data, layers), data, "float32", **settings).test


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sets", default=",".join(SETS))
    parser.add_argument("--models", default="sage,gcn,mlp")
    parser.add_argument("--codecs", default=",".join(CODECS))
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--out", type=Path, default=RESULTS / "features-accuracy.json")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(args.threads)
    found = json.loads(args.out.read_text())["results"] if args.out.exists() else []
    done = {(row["set"], row["model"], row["codec"]) for row in found}
    jobs = [(s, m, c) for s in args.sets.split(",") for m in args.models.split(",") for c in args.codecs.split(",")]
    jobs = [job for job in jobs if job not in done]
    loaded: dict[str, Any] = {}
    with Progress() as progress:
        task = progress.add_task("", total=len(jobs) * args.seeds)
        for name, kind, codec in jobs:
            if name not in loaded:
                loaded = {name: gs.datasets.load(name)}
            data, (layers, epochs), ratio, error = copy.copy(loaded[name]), SETS[name], 1.0, 0.0
            if CODECS[codec] is not None:
                store = gs.compress(data.x, CODECS[codec], progress=False)
                data.x, ratio = store.decode(), store.ratio
                error = float((data.x - loaded[name].x).norm() / loaded[name].x.norm())
            tests = []
            for seed in range(args.seeds):
                progress.update(task, description=f"{name}, {kind}, {codec}")
                tests.append(test_score(data, kind, layers, epochs, seed))
                progress.advance(task)
            spread = statistics.stdev(tests) if len(tests) > 1 else 0.0
            facts = {"set": name, "model": kind, "codec": codec, "setting": repr(CODECS[codec]), "ratio": ratio}
            facts |= {"error": error, "layers": layers, "epochs": epochs, "seeds": args.seeds}
            found.append(facts | {"mean": statistics.fmean(tests), "std": spread, "tests": tests})
            write_json(args.out, {"machine": machine(), "width": 64, "results": found})
            print(f"{name:18} {kind:5} {codec:16} {ratio:6.1f}x {found[-1]['mean']:.2f} ± {spread:.2f}", flush=True)


if __name__ == "__main__":
    main()
