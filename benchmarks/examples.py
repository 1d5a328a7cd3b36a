"""Small and odd models, in the shapes of PyG's examples: a lightened model must not be slower than plain PyG.

    python benchmarks/examples.py [--cases graph,cora] [--recipes float32,tango] [--rounds 30] [--out FILE]

Every variant of a case is trained and evaluated in one process; the variants take turns, epoch by epoch. Each epoch of
the baseline is followed by one of each recipe, and a speed is the ratio of the medians; `best` that of the fastest.
"""

from __future__ import annotations

import argparse
import copy
import gc
import statistics
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import example_cases
import torch
from harness import RESULTS, machine, write_json
from rich.console import Console
from rich.table import Table

import gossamer as gs

PYG = "PyG"
ENOUGH = 0.02
"""Seconds that a timed stretch of epochs takes at least."""


def seconds_of(clock: Callable[[], float], run: Callable[[str, Any], None], which: str, epochs: list[Any]) -> float:
    gc.collect()
    start = clock()
    for steps in epochs:
        run(which, steps)
    return (clock() - start) / len(epochs)


def measure(
    name: str, make: Callable[[], example_cases.Case], recipes: list[str], rounds: int, clock: Callable[[], float]
) -> dict[str, Any]:
    torch.manual_seed(0)
    case = make()
    models = {PYG: case.model} | {recipe: copy.deepcopy(case.model) for recipe in recipes}
    for recipe in recipes:
        gs.lighten_(models[recipe], recipe)
    optimizers = {which: torch.optim.Adam(model.parameters(), lr=0.001) for which, model in models.items()}
    jobs: dict[str, Callable[[str, Any], None]] = {
        "train": lambda which, steps: example_cases.train(case, models[which], optimizers[which], steps),
        "evaluate": lambda which, steps: example_cases.evaluate(case, models[which], steps),
    }
    found: dict[str, Any] = {}
    for job, run in jobs.items():
        for which in models:
            run(which, case.steps())
            run(which, case.steps())
        once = min(seconds_of(clock, run, PYG, [case.steps()]) for _ in range(3))
        epochs = max(1, round(ENOUGH / once))
        seconds: dict[str, list[float]] = {which: [] for which in models}
        for k in range(rounds):
            for which in list(models)[:: 1 if k % 2 else -1]:
                seconds[which].append(seconds_of(clock, run, which, [case.steps() for _ in range(epochs)]))
        found[job] = {
            which: {"median": statistics.median(times), "best": min(times)} for which, times in seconds.items()
        }
    return {"case": name, "seconds": found}


def ratios(result: dict[str, Any], job: str, which: str) -> tuple[float, float]:
    times = result["seconds"][job]
    return tuple(times[PYG][key] / times[which][key] for key in ("median", "best"))  # type: ignore[return-value]


def show(results: list[dict[str, Any]], recipes: list[str]) -> None:
    table = Table("case", "", "PyG, ms", *recipes)
    for result in results:
        for job in ("train", "evaluate"):
            cells = []
            for recipe in recipes:
                median, best = ratios(result, job, recipe)
                colour = "red" if max(median, best) < 0.97 else "yellow" if median < 0.97 else "green"
                cells.append(f"[{colour}]{median:.2f}[/] {best:.2f}")
            table.add_row(result["case"], job, f"{1e3 * result['seconds'][job][PYG]['median']:.2f}", *cells)
    Console(width=170).print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", default="", help="comma-separated parts of the names of cases; default: all")
    parser.add_argument("--recipes", default="float32,exact-int2,tango,feather,rsc,degree-quant-int8")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--out", type=Path, nargs="?", const=RESULTS / "examples.json", help="write JSON")
    parser.add_argument("--cpu", action="store_true", help="CPU time of one thread: for a machine that is busy")
    args = parser.parse_args()
    clock = time.thread_time if args.cpu else time.perf_counter
    warnings.simplefilter("ignore")
    torch.set_num_threads(1 if args.cpu else args.threads)
    recipes, wanted = args.recipes.split(","), args.cases.split(",")
    chosen = {n: make for n, make in example_cases.cases().items() if any(part in n for part in wanted)}
    results = []
    for name, make in chosen.items():
        results.append(measure(name, make, recipes, args.rounds, clock))
        show(results[-1:], recipes)
    show(results, recipes)
    if args.out:
        write_json(args.out, {"machine": machine(), "rounds": args.rounds, "clock": clock.__name__, "results": results})
        print(f"Written: {args.out}")


if __name__ == "__main__":
    main()
