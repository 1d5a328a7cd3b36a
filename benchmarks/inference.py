"""Inference: plain PyG in float32 against the integer engine, each in a process of its own.

    python benchmarks/inference.py models [--only gcn,gat] [--repeat 5] [--rounds 2]
    python benchmarks/inference.py graphs [--count 10000]
    python benchmarks/inference.py node   [--nodes 200]
    python benchmarks/inference.py serve  [--at-once 200] [--seconds 60]

Each part writes its own JSON.

models    3x256 on the whole graph of ogbn-arxiv's size: PyG with `edge_index` and with CSR, lightened float32 and
          tango, the engine with eight and four bits. Graphs are prepared for all alike before anything is timed.
graphs    10,000 graphs of the size of molecules in one batch, given as an edge_index: GIN and GCN with a pool
node      one node at a time with fan-outs 15-10, sampling and gathering included, on GraphSAGE 2x256
serve     `gossamer serve` under many requests at a time, on loopback
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

import inference_runs as runs
import torch
from harness import RESULTS, machine, require_green, write_json
from rich.progress import Progress

import gossamer as gs

MODELS = {
    "gcn": "GCN 3x256, batch norm",
    "sage": "GraphSAGE 3x256, batch norm",
    "gin": "GIN 3x256, batch norm",
    "gat": "GAT 3x(4x64), batch norm",
}


def in_turns(cases: dict[str, list[tuple[Any, ...]]], rounds: int, measure: Any) -> dict[str, dict[str, Any]]:
    """For each case the best of all rounds of its variants, which take turns."""
    found: dict[str, dict[str, Any]] = {case: {} for case in cases}
    jobs = [(case, job) for case, listed in cases.items() for _ in range(rounds) for job in listed]
    with Progress() as progress:
        task = progress.add_task("", total=len(jobs))
        for case, (variant, *arguments) in jobs:
            progress.update(task, description=f"{case}: {variant}")
            measured = gs.measure.in_fresh_process(measure, variant, *arguments).value
            before = found[case].get(variant, measured)
            found[case][variant] = {
                name: min(before[name], value) if name in ("seconds", "peak_bytes") else value
                for name, value in measured.items()
            }
            progress.advance(task)
    return found


def models(args: argparse.Namespace) -> dict[str, Any]:
    names = [name for name in args.only.split(",") if name] or list(MODELS)
    with tempfile.TemporaryDirectory() as temporary:
        made = {
            case: gs.measure.in_fresh_process(runs.prepare_node_model, case, args.graph, temporary).value
            for case in names
        }
        cases = {
            case: [
                (variant, case, args.graph, temporary, args.repeat, args.threads) for variant in runs.variants_of(case)
            ]
            for case in names
        }
        found = in_turns(cases, args.rounds, runs.node_model)
    data = gs.datasets.load(args.graph)
    results = [{"case": c, "model": MODELS[c], "variants": found[c], "files": made[c]} for c in names]
    facts = {"name": args.graph, "nodes": data.num_nodes, "edges": data.num_edges, "features": data.num_features}
    return {"graph": facts, "repeat": args.repeat * args.rounds, "results": results}


def graphs(args: argparse.Namespace) -> dict[str, Any]:
    names = ("gin", "gcn")
    variants = (runs.EDGE_INDEX, "float32", "int8", "int4")
    with tempfile.TemporaryDirectory() as temporary:
        facts = gs.measure.in_fresh_process(runs.prepare_graph_models, names, args.count, temporary).value
        cases = {c: [(variant, c, temporary, args.repeat, args.threads) for variant in variants] for c in names}
        found = in_turns(cases, args.rounds, runs.graph_model)
    results = [{"case": c, "model": f"{c.upper()} 4x128, mean pool", "variants": found[c]} for c in names]
    return {"graphs": facts, "repeat": args.repeat * args.rounds, "results": results}


def node(args: argparse.Namespace) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as temporary:
        gs.measure.in_fresh_process(runs.prepare_sampled_model, args.graph, temporary)
        variants = ("PyG", "PyG trimmed", "float32", "int8", "int4")
        cases = {"sage": [(variant, args.graph, temporary, args.nodes, args.threads) for variant in variants]}
        found = in_turns(cases, args.rounds, runs.one_node)
    return {"graph": {"name": args.graph}, "fanouts": runs.FANOUTS, "nodes": args.nodes, "results": [
        {"case": "sage", "model": "GraphSAGE 2x256", "variants": found["sage"]}
    ]}  # fmt: skip


def serve(args: argparse.Namespace) -> dict[str, Any]:
    import inference_load

    return inference_load.run(args.graph, args.at_once, args.seconds)


PARTS = {"models": models, "graphs": graphs, "node": node, "serve": serve}
TESTS = ["inference", "conversion", "ops/test_integer_linear.py", "ops/test_integer_sum.py"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("part", choices=PARTS)
    parser.add_argument("--graph", default="arxiv-like")
    parser.add_argument("--only", default="", help="comma-separated models, e.g. gcn,gat")
    parser.add_argument("--repeat", type=int, default=5, help="timed calls of each round")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--count", type=int, default=10_000, help="graphs in a batch")
    parser.add_argument("--nodes", type=int, default=200, help="nodes asked for, one after the other")
    parser.add_argument("--at-once", type=int, default=200, help="requests at a time")
    parser.add_argument("--seconds", type=float, default=60.0, help="of requests")
    parser.add_argument("--no-tests", action="store_true", help="do not run the tests of what is measured first")
    parser.add_argument("--out", type=Path, help="default: benchmarks/results/inference-PART.json")
    args = parser.parse_args()
    if not args.no_tests:
        require_green(TESTS)
    content = {"machine": machine() | {"threads": args.threads}} | PARTS[args.part](args)
    for row in content.get("results", []):
        base = {name: one["seconds"] for name, one in row["variants"].items() if "PyG" in name or "pyg" in name}
        for name, one in row["variants"].items():
            told = ", ".join(f"{seconds / one['seconds']:.1f}x {of}" for of, seconds in base.items())
            peak = f", peak {one['peak_bytes'] / 1e6:.0f} MB" if "peak_bytes" in one else ""
            print(f"{row['model']:28} {name:16} {one['seconds'] * 1e3:9.2f} ms{peak}: {told}")
    out = args.out or RESULTS / f"inference-{args.part}.json"
    write_json(out, content)
    print(f"Written: {out}")


if __name__ == "__main__":
    main()
