"""Training epochs of whole models: plain PyG against each recipe, in one run, each in a process of its own.

    python benchmarks/train.py [--graph arxiv-like] [--epochs 4] [--threads 2] [--only gcn,gat] [--out FILE]

Runs the layers' tests first. The variants of a model take turns, `--rounds` times, so that a busy hour of the machine
hits all of them; a time is the best epoch of all rounds. Writes JSON and a plot, prints a Markdown table.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import tables
import torch
import train_cases
from harness import RESULTS, machine, require_green, write_json
from rich.progress import Progress

import gossamer as gs


def run(
    dataset: str, cases: dict[str, str], recipes: list[str], epochs: int, rounds: int, threads: int, baselines: bool
) -> dict[str, Any]:
    in_turn = {case: train_cases.variants(case, recipes, baselines) for case in cases}
    jobs = [(case, variant) for case in cases for _ in range(rounds) for variant in in_turn[case]]
    found: dict[str, dict[str, dict[str, Any]]] = {case: {} for case in cases}
    with Progress() as progress:
        task = progress.add_task(dataset, total=len(jobs))
        for case, variant in jobs:
            progress.update(task, description=f"{dataset}: {case}, {variant}")
            measured = gs.measure.in_fresh_process(
                train_cases.measure_epochs, dataset, case, variant, epochs, threads
            ).value
            found[case][variant] = better(found[case].get(variant), measured)
            progress.advance(task)
    data = gs.datasets.load(dataset)
    facts = {"name": dataset, "nodes": data.num_nodes, "edges": data.num_edges, "features": data.num_features}
    results = [{"case": case, "model": cases[case], "variants": found[case]} for case in cases]
    return {
        "machine": machine() | {"threads": threads}, "graph": facts, "epochs": epochs * rounds, "results": results,
    }  # fmt: skip


def better(before: dict[str, Any] | None, now: dict[str, Any]) -> dict[str, Any]:
    """The fastest epoch and the smallest peak of all rounds: what disturbs a measurement only adds to it."""
    if before is None:
        return now
    return now | {name: min(before[name], now[name]) for name in ("seconds", "first_seconds", "peak_bytes")}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--graph", default="arxiv-like", help="a node-level set that fits in memory")
    parser.add_argument("--epochs", type=int, default=3, help="timed epochs of each round")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--only", default="", help="comma-separated models, e.g. gcn,gat")
    parser.add_argument("--recipes", default="float32,exact-int2", help="comma-separated names")
    parser.add_argument("--no-baselines", action="store_true", help="recipes alone: more rounds in the same time")
    parser.add_argument("--out", type=Path, help="default: benchmarks/results/train-GRAPH.json")
    args = parser.parse_args()
    cases = train_cases.SMALL if gs.datasets.load(args.graph).num_nodes < 10000 else train_cases.LARGE
    only = [name for name in args.only.split(",") if name]
    if unknown := set(only) - set(cases):
        parser.error(f"--only names no model: {sorted(unknown)}; models: {list(cases)}")
    require_green(["layers", "test_pyg.py", "measurement"])
    chosen, recipes = {c: cases[c] for c in only or cases}, args.recipes.split(",")
    content = run(args.graph, chosen, recipes, args.epochs, args.rounds, args.threads, not args.no_baselines)
    out = args.out or RESULTS / f"train-{args.graph}.json"
    write_json(out, content)
    print(tables.train_table(content))
    print(f"Written: {out}; `make readme` draws it")


if __name__ == "__main__":
    main()
