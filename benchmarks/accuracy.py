"""Accuracy of recipes on real graphs: several seeds, mean and standard deviation, test at best validation.

    python benchmarks/accuracy.py [--sets cora,pubmed] [--models gcn,sage] [--recipes float32,exact-int2] [--seeds 10]
                                  [--layers 2] [--epochs 100] [--every 1] [--threads 1] [--out FILE]

Layers of 64 columns with batch norm and dropout 0.5, Adam with learning rate 0.01 and weight decay 5e-4. The same seed
gives every recipe the same weights to begin with and the same dropout masks. Accuracy in percent; the area under the
ROC curve, times 100, for sets that are scored by it. Results that FILE has already are kept: several runs may add to
one file, one after the other.
"""

from __future__ import annotations

import argparse
import json
import statistics
import warnings
from pathlib import Path
from typing import Any

import torch
from harness import RESULTS, machine, write_json
from rich.progress import Progress
from sklearn.metrics import roc_auc_score
from torch.nn import functional

import gossamer as gs
from gossamer.training import models

WIDTH, LAYERS = 64, 2


def one_run(
    data: Any, kind: str, recipe: str | gs.Recipe, seed: int, epochs: int, every: int, layers: int = LAYERS
) -> float:
    """Test accuracy in percent at the best validation accuracy."""
    torch.manual_seed(seed)
    model = models.build(kind, data, layers=layers, width=WIDTH, norm="batch", dropout=0.5)
    gs.lighten_(model, recipe)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=5e-4)
    best = (-1.0, 0.0)
    for epoch in range(1, epochs + 1):
        model.train()
        optimizer.zero_grad()
        out = model(data.x, data.edge_index)
        functional.cross_entropy(out[data.train_mask], data.y[data.train_mask]).backward()
        optimizer.step()
        if epoch % every == 0:
            best = max(best, evaluate(model, data), key=lambda pair: pair[0])
    return best[1]


@torch.no_grad()
def evaluate(model: torch.nn.Module, data: Any) -> tuple[float, float]:
    """Validation and test accuracy in percent, or the area under the ROC curve times 100."""
    model.eval()
    out = model(data.x, data.edge_index)
    if "ROC AUC" in str(getattr(data, "task", "")):
        score = (out[:, 1] - out[:, 0]).numpy()
        masks = (data.val_mask, data.test_mask)
        val, test = (100 * float(roc_auc_score(data.y[mask], score[mask])) for mask in masks)
        return val, test
    right = (out.argmax(1) == data.y).float()
    return 100 * right[data.val_mask].mean().item(), 100 * right[data.test_mask].mean().item()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sets", default="cora,pubmed,amazon_computers,coauthor_physics")
    parser.add_argument("--models", default="gcn,sage")
    parser.add_argument("--recipes", default="float32,exact-int2")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--layers", type=int, default=LAYERS)
    parser.add_argument("--epochs", type=int, default=100)
    parser.add_argument("--every", type=int, default=1, help="epochs between two evaluations")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--out", type=Path, default=RESULTS / "accuracy.json")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(args.threads)
    recipes = {name: gs.recipes[name] for name in args.recipes.split(",")}
    found = json.loads(args.out.read_text())["results"] if args.out.exists() else []
    done = {(row["set"], row["model"], row["recipe"]) for row in found}
    jobs = [(s, m, r) for s in args.sets.split(",") for m in args.models.split(",") for r in recipes]
    with Progress() as progress:
        task = progress.add_task("accuracy", total=len(jobs) * args.seeds)
        loaded: tuple[str, Any] = ("", None)
        for job in jobs:
            name, kind, recipe = job
            if job in done:
                progress.advance(task, args.seeds)
                continue
            loaded = loaded if loaded[0] == name else (name, gs.datasets.load(name))
            tests = []
            for seed in range(args.seeds):
                progress.update(task, description=f"{name}, {kind}, {recipe}")
                tests.append(one_run(loaded[1], kind, recipes[recipe], seed, args.epochs, args.every, args.layers))
                progress.advance(task)
            spread = statistics.stdev(tests) if len(tests) > 1 else 0.0
            facts = {"set": name, "model": kind, "recipe": recipe, "seeds": args.seeds, "epochs": args.epochs}
            facts["layers"] = args.layers
            found.append(facts | {"mean": statistics.fmean(tests), "std": spread, "tests": tests})
            write_json(args.out, {"machine": machine() | {"threads": args.threads}, "results": found})
            print(f"{name:20} {kind:6} {recipe:24} {found[-1]['mean']:.2f} ± {spread:.2f}", flush=True)


if __name__ == "__main__":
    main()
