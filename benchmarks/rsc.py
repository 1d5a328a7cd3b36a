"""RSC (gs.TopRows): what selecting rows of backward products costs, gains and keeps.

    python benchmarks/rsc.py products [--graphs arxiv-like,web_google_structure]
    python benchmarks/rsc.py epochs   [--graphs arxiv-like,reddit-like] [--models gcn,sage,gin,gcn-small]
    python benchmarks/rsc.py degrees  [--degrees 14,60,150,400]
    python benchmarks/rsc.py accuracy [--sets pubmed,amazon_computers] [--budgets 0.1,0.3] [--seeds 10]
    python benchmarks/rsc.py noise    [--set amazon_computers]

Each part writes its own JSON, from which `make readme` makes the tables and plots of docs/rsc.md.

products   one backward product of 256 columns, exact, masked and by the compacted matrix, in float32 and int8; score,
           selection and compaction apart, and spread over ten passes
epochs     training epochs of the exact recipe and of TopRows taking turns in one process, and the bound that the share
           of backward products allows
degrees    the same of a GCN over graphs of rising mean degree
accuracy   test at best validation over budgets, for the best rows and for sampled ones
noise      bias and deviation of the gradient of the first layer's weight, over budgets
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import statistics
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from harness import RESULTS, best_times, machine, write_json
from rich.progress import Progress

import gossamer as gs
from gossamer.aggregate import Adjacency
from gossamer.aggregate.budget import curve_of
from gossamer.aggregate.policy import Transposed
from gossamer.aggregate.selection import row_norms
from gossamer.ops.quantize_rows import QRows
from gossamer.ops.row_selection import kept_matrix
from gossamer.ops.spmm import row_sums
from gossamer.ops.spmm_int8 import spmm_int8_op
from gossamer.training import models

COLUMNS, REFRESH = 256, 10
PUBLISHED = gs.TopRows(refresh=REFRESH, sample=False, rank="score", allocation="greedy")
BEST = gs.TopRows(refresh=REFRESH, sample=False)


def graph_of(name: str, **options: Any) -> gs.Graph:
    data = gs.datasets.load(name, **options)
    return gs.Graph.from_edge_index(data.edge_index, data.num_nodes)


def write(part: str, args: argparse.Namespace, results: Any) -> None:
    out = RESULTS / f"rsc-{part}.json"
    write_json(out, {"machine": machine(), "budget": args.budget, "results": results})
    print(f"wrote {out}")


# One product ------------------------------------------------------------------------------------------------------


def products(args: argparse.Namespace) -> None:
    results = [product_of(name, args) for name in args.graphs.split(",")]
    write("products", args, results)


def product_of(name: str, args: argparse.Namespace) -> dict[str, Any]:
    """A^T dZ of a sum without weights; rows of dZ have norms that spread as those of a trained model's gradients."""
    adjacency = Adjacency.of(graph_of(name))
    graph, rng = adjacency.graph, torch.Generator().manual_seed(0)
    spread = torch.randn(graph.num_dst, 1, generator=rng).exp()
    dz = torch.randn(graph.num_dst, COLUMNS, generator=rng) * spread
    rows, matrix, degree = QRows(*gs.ops.quantize_rows(dz)), adjacency.transpose(), graph.degree
    norms, factor, edges = row_norms(adjacency), torch.ones(COLUMNS), math.floor(args.budget * graph.num_edges)
    score = torch.linalg.vector_norm(dz, dim=1) * norms
    key = score * degree.clamp(min=1).float().rsqrt()
    keep = gs.ops.top_rows(key, degree, edges)
    kept = kept_matrix(matrix, keep)
    float32 = {
        "exact": lambda: row_sums(matrix, dz),
        "masked": lambda: row_sums(matrix, dz, None, keep),
        "compacted": lambda: row_sums(kept, dz),
        "score": lambda: gs.ops.row_norms(dz) * norms,
    }
    int8 = {
        "exact": lambda: spmm_int8_op(matrix, rows),
        "masked": lambda: spmm_int8_op(matrix, rows, None, None, None, keep),
        "compacted": lambda: spmm_int8_op(kept, rows),
        "score": lambda: gs.ops.row_norms_int8(rows) * norms,
    }
    int8_rows = {
        "exact": lambda: gs.ops.spmm_rows(matrix, rows, None, None, None, factor, 1),
        "masked": lambda: gs.ops.spmm_rows(matrix, rows, None, None, None, factor, 1, keep),
        "compacted": lambda: gs.ops.spmm_rows(kept, rows, None, None, None, factor, 1),
        "score": int8["score"],
    }
    none = matrix._replace(rowptr=torch.zeros_like(matrix.rowptr), col=matrix.col[:0])
    float32["write"], int8["write"] = lambda: row_sums(none, dz), lambda: spmm_int8_op(none, rows)
    int8_rows["write"] = lambda: gs.ops.spmm_rows(none, rows, None, None, None, factor, 1)
    shared = {
        "selection": lambda: gs.ops.top_rows(key, degree, edges),
        "allocation": lambda: curve_of(key, degree, score, "threshold"),
        "compaction": lambda: kept_matrix(matrix, keep),
    }
    found = {
        kind: best_times(of, args.repeat)
        for kind, of in (("float32", float32), ("int8", int8), ("int8 rows", int8_rows))
    }
    costs = best_times(shared, args.repeat)
    for kind, times in found.items():
        drawn = times["score"] + costs["selection"] + costs["allocation"] + costs["compaction"] + times["masked"]
        times |= costs | {"spread": (drawn + (REFRESH - 1) * times["compacted"]) / REFRESH}
        print(
            f"{name} {kind}: " + ", ".join(f"{k} {1e3 * v:.1f}" for k, v in times.items()) + " ms,"
            f" {times['exact'] / times['compacted']:.1f}x, all in all {times['exact'] / times['spread']:.1f}x"
        )
    facts = {"graph": name, "nodes": graph.num_dst, "edges": graph.num_edges, "rows_kept": int(keep.sum())}
    return facts | {"bytes": sum(t.nbytes for t in (kept.rowptr, kept.col, keep)), "seconds": found}


# Epochs -----------------------------------------------------------------------------------------------------------

MODELS: dict[str, dict[str, Any]] = {
    "gcn": {"kind": "gcn", "layers": 3, "width": 256, "norm": "batch"},
    "sage": {"kind": "sage", "layers": 3, "width": 256, "norm": "batch"},
    "gin": {"kind": "gin", "layers": 3, "width": 256, "norm": "batch"},
    "gcn-small": {"kind": "gcn", "layers": 2, "width": 128, "norm": "none"},
}


class Trainee:
    """A model in training, one epoch at a time."""

    def __init__(self, data: Any, model: dict[str, Any], recipe: gs.Recipe) -> None:
        torch.manual_seed(0)
        settings = dict(model)
        self.model = models.build(settings.pop("kind"), data, dropout=0.5, **settings)
        gs.lighten_(self.model, recipe)
        self.optimizer, self.data = torch.optim.Adam(self.model.parameters(), lr=0.01), data

    def epoch(self) -> float:
        start = time.perf_counter()
        self.model.train()
        self.optimizer.zero_grad()
        out, known = self.model(self.data.x, self.data.edge_index), self.data.train_mask
        torch.nn.functional.cross_entropy(out[known], self.data.y[known]).backward()
        self.optimizer.step()
        return time.perf_counter() - start


def epochs_of(data: Any, model: dict[str, Any], compute: Any, args: argparse.Namespace) -> dict[str, Any]:
    """Median seconds of epochs that take turns, the exact one's share of backward products, and the bound."""
    setting = dataclasses.replace(BEST, budget=args.budget, exact_after=None)
    recipe = dataclasses.replace(gs.recipes["rsc"].backward, exact_after=None)
    policies = {"exact": gs.Exact(), "nonzero": gs.NonzeroRows(), "rsc": setting, "recipe": recipe}
    trainees = {name: Trainee(data, model, gs.Recipe(compute=compute, backward=of)) for name, of in policies.items()}
    for _ in range(setting.warmup + 1):
        for trainee in trainees.values():
            trainee.epoch()
    seconds: dict[str, list[float]] = {name: [] for name in trainees}
    for _ in range(args.epochs):  # whole periods of the selection, so that each of its costs is met as often as in use
        for name, trainee in trainees.items():
            seconds[name].append(trainee.epoch())
    report = gs.selection(trainees["rsc"].model)
    mean = {name: statistics.fmean(sorted(times)[: max(1, round(0.8 * len(times)))]) for name, times in seconds.items()}
    best = {name: min(times) for name, times in seconds.items()}
    share = product_share(trainees["exact"], best["exact"])
    bound = 1 / (1 - share * (1 - args.budget))
    gain, possible = mean["exact"] / mean["rsc"], bound
    found = {"seconds": mean, "best": best, "share": share, "bound": bound, "kept": report.kept, "bytes": report.bytes}
    found |= {
        "gain": gain,
        "reached": (1 - 1 / gain) / (1 - 1 / possible),
        "recipe_gain": mean["exact"] / mean["recipe"],
    }
    print(
        ", ".join(f"{name} {s:.3f} s" for name, s in mean.items()) + f", share {share:.1%}, bound {bound:.3f}x, "
        f"gain {gain:.3f}x, {found['reached']:.0%} of what can be saved",
        flush=True,
    )
    return found


class Timed:
    """A policy that is exact and adds up the time of its products."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def multiply(self, adjacency: Adjacency, gradient: Any, product: Callable[..., Any], factor: Any = None) -> Any:
        start = time.perf_counter()
        out = product(Transposed(adjacency.transpose()))
        self.seconds += time.perf_counter() - start
        return out

    def edge_rows(self) -> None:
        return None


def product_share(trainee: Trainee, epoch: float) -> float:
    """The share of an epoch that exact backward products take, best of some epochs."""
    best = math.inf
    for _ in range(5):
        timed = Timed()
        for module in trainee.model.modules():
            state = module.__dict__.get("_gossamer")
            if state is not None:
                state.policy = timed
        trainee.epoch()
        best = min(best, timed.seconds)
    return best / epoch


def epochs(args: argparse.Namespace) -> None:
    results = []
    for name in args.graphs.split(","):
        data = gs.datasets.load(name)
        for model in args.models.split(","):
            for compute in (gs.Float32(), gs.Int8()) if args.int8 else (gs.Float32(),):
                print(name, model, compute, end=": ", flush=True)
                facts = {"graph": name, "nodes": data.num_nodes, "edges": data.num_edges, "model": model}
                found = epochs_of(data, MODELS[model], compute, args)
                results.append(facts | {"compute": type(compute).__name__} | found)
                write("epochs", args, results)


def degrees(args: argparse.Namespace) -> None:
    results = []
    for degree in map(int, args.degrees.split(",")):
        nodes = min(169_343, 16_000_000 // degree)
        data = gs.datasets.powerlaw(nodes, nodes * degree // 2, 128, 40)
        print(f"mean degree {data.num_edges / nodes:.0f}", end=": ", flush=True)
        found = epochs_of(data, MODELS["gcn"], gs.Float32(), args)
        results.append({"degree": data.num_edges / nodes, "nodes": nodes, "edges": data.num_edges} | found)
        write("degrees", args, results)


# Accuracy ---------------------------------------------------------------------------------------------------------


def variants(budgets: list[float]) -> dict[str, gs.Recipe]:
    found = {"exact": gs.Recipe(backward=gs.Exact())}
    for budget in budgets:
        settings = {
            "density": BEST,
            "score": PUBLISHED,
            "sampled": gs.TopRows(),
        }
        for name, setting in settings.items():
            found[f"{name} {budget:g}"] = gs.Recipe(backward=dataclasses.replace(setting, budget=budget))
    return found


def accuracy(args: argparse.Namespace) -> None:
    path = args.out or RESULTS / "rsc-accuracy.json"
    found = json.loads(path.read_text())["results"] if path.exists() else []
    done = {(row["set"], row["model"], row["variant"]) for row in found}
    recipes = variants([float(b) for b in args.budgets.split(",")])
    wanted = args.variants.split(",") if args.variants else list(recipes)
    jobs = [(s, m, v) for s in args.sets.split(",") for m in args.models.split(",") for v in wanted]
    loaded: tuple[str, Any] = ("", None)
    with Progress() as progress:
        task = progress.add_task("accuracy", total=len(jobs) * args.seeds)
        for job in jobs:
            name, kind, variant = job
            if job in done:
                progress.advance(task, args.seeds)
                continue
            loaded = loaded if loaded[0] == name else (name, gs.datasets.load(name))
            tests = []
            for seed in range(args.seeds):
                progress.update(task, description=f"{name}, {kind}, {variant}")
                tests.append(100 * test_score(loaded[1], kind, recipes[variant], seed, args))
                progress.advance(task)
            facts = {"set": name, "model": kind, "variant": variant, "layers": args.layers, "epochs": args.train_epochs}
            spread = statistics.stdev(tests) if len(tests) > 1 else 0.0
            found.append(facts | {"seeds": args.seeds, "mean": statistics.fmean(tests), "std": spread, "tests": tests})
            write_json(path, {"machine": machine(), "width": args.width, "results": found})
            print(f"{name:20} {kind:6} {variant:16} {found[-1]['mean']:.2f} ± {spread:.2f}", flush=True)


def test_score(data: Any, kind: str, recipe: gs.Recipe, seed: int, args: argparse.Namespace) -> float:
    torch.manual_seed(seed)
    model = models.build(kind, data, layers=args.layers, width=args.width, norm="batch", dropout=0.5)
    settings = {"epochs": args.train_epochs, "lr": 0.01, "weight_decay": 5e-4, "seed": seed, "progress": False}
    return gs.train(model, data, recipe, **settings).test


# Bias and deviation -----------------------------------------------------------------------------------------------


def noise(args: argparse.Namespace) -> None:
    """Of the first weight's gradient, relative to its norm: the best rows have a bias, sampled ones noise."""
    data, results = gs.datasets.load(args.set), []
    for budget in map(float, args.budgets.split(",")):
        exact = first_gradient(data, gs.Exact(), 1)[0]
        size = float(exact.norm())
        for name, setting, draws in (
            ("density", BEST, 1),
            ("score", PUBLISHED, 1),
            ("sampled", gs.TopRows(), args.draws),
        ):
            setting = dataclasses.replace(setting, budget=budget, warmup=1, refresh=1)
            grads = torch.stack(first_gradient(data, setting, draws))
            bias = float((grads.mean(0) - exact).norm()) / size
            deviation = float((grads - grads.mean(0)).square().sum((1, 2)).mean().sqrt()) / size
            results.append({"budget": budget, "variant": name, "bias": bias, "deviation": deviation, "draws": draws})
            print(results[-1], flush=True)
    write_json(RESULTS / "rsc-noise.json", {"machine": machine(), "set": args.set, "results": results})


def first_gradient(data: Any, policy: Any, draws: int) -> list[torch.Tensor]:
    """The gradient after some exact steps; the model stands still while rows are drawn."""
    torch.manual_seed(0)
    model = models.build("gcn", data, layers=3, width=64, norm="batch", dropout=0.0)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    gs.lighten_(model)
    for step in range(20 + 2 + draws):
        if step == 20:
            gs.lighten_(model, gs.Recipe(backward=policy))
        model.zero_grad()
        out = model(data.x, data.edge_index)
        torch.nn.functional.cross_entropy(out[data.train_mask], data.y[data.train_mask]).backward()
        if step < 20:
            optimizer.step()
        elif step == 21:
            grads = []
        elif step > 21:
            grads.append(model.convs[0].lin.weight.grad.clone())
    return grads


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("part", choices=["products", "epochs", "degrees", "accuracy", "noise"])
    parser.add_argument("--graphs", default="")
    parser.add_argument("--models", default="")
    parser.add_argument("--degrees", default="14,60,150,400")
    parser.add_argument("--budget", type=float, default=0.1)
    parser.add_argument("--budgets", default="0.05,0.1,0.2,0.3,0.5")
    parser.add_argument("--variants", default="", help="accuracy: some of them, as 'exact,density 0.1'")
    parser.add_argument("--sets", default="pubmed,amazon_computers,coauthor_physics,arxiv-like")
    parser.add_argument("--set", default="amazon_computers")
    parser.add_argument("--epochs", type=int, default=20, help="timed epochs of each variant")
    parser.add_argument("--int8", action="store_true", help="epochs: also with compute=gs.Int8()")
    parser.add_argument("--repeat", type=int, default=9)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--train-epochs", type=int, default=100)
    parser.add_argument("--draws", type=int, default=200)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--out", type=Path, default=None)
    args = parser.parse_args()
    graphs = {"products": "arxiv-like,web_google_structure", "epochs": "arxiv-like,reddit-like"}
    args.graphs = args.graphs or graphs.get(args.part, "")
    args.models = args.models or {"epochs": ",".join(MODELS), "accuracy": "gcn,sage"}.get(args.part, "")
    warnings.simplefilter("ignore")
    torch.set_num_threads(args.threads)
    {"products": products, "epochs": epochs, "degrees": degrees, "accuracy": accuracy, "noise": noise}[args.part](args)


if __name__ == "__main__":
    main()
