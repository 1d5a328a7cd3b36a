"""Every op against what PyG users have today, in one run.

    python benchmarks/ops.py [--graph arxiv-like] [--columns 256] [--threads 2] [--only spmm,pack] [--out FILE]

Runs the ops' tests first. Writes JSON, a Markdown table and a plot next to it.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import layer_op_cases
import op_cases
import tables
import torch
from harness import RESULTS, best_times, machine, require_green, write_json
from rich.progress import Progress

import gossamer as gs

CASES = [*op_cases.CASES, *layer_op_cases.CASES]


def bench_graph(name: str) -> tuple[gs.Graph, torch.Tensor, int]:
    """The symmetrised graph with self-loops and GCN weights, and its plain edge_index."""
    from torch_geometric.utils import add_remaining_self_loops, to_undirected

    data = gs.datasets.load(name)
    num_nodes = int(data.num_nodes)
    edge_index = to_undirected(data.edge_index, num_nodes=num_nodes)
    edge_index, _ = add_remaining_self_loops(edge_index, num_nodes=num_nodes)
    return gs.Graph.from_edge_index(edge_index, num_nodes).gcn_norm(), edge_index, num_nodes


def run(graph_name: str, columns: int, repeat: int, only: set[str]) -> dict[str, object]:
    graph, edge_index, num_nodes = bench_graph(graph_name)
    bench = op_cases.Bench(graph, edge_index, num_nodes, columns)
    cases = [make for make in CASES if not only or make.__name__ in only]
    results = []
    with Progress() as progress:
        task = progress.add_task(f"{graph_name}, {columns} columns", total=len(cases))
        for make in cases:
            case = make(bench)
            seconds = best_times({"ours": case.ours, "copy": bench.copy, **case.baselines}, repeat)
            results.append(case.report(seconds))
            progress.advance(task)
    facts = {"name": graph_name, "nodes": num_nodes, "edges": graph.num_edges, "max_degree": graph.max_degree}
    return {"machine": machine(), "graph": facts, "columns": columns, "repeat": repeat, "results": results}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--graph", default="arxiv-like", help="a node-level set that fits in memory")
    parser.add_argument("--columns", type=int, default=256)
    parser.add_argument("--repeat", type=int, default=7)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--only", default="", help="comma-separated case names, e.g. spmm,pack")
    parser.add_argument("--out", type=Path, help="default: benchmarks/results/ops-GRAPH.json")
    args = parser.parse_args()
    only = {name for name in args.only.split(",") if name}
    unknown = only - {make.__name__ for make in CASES}
    if unknown:
        parser.error(f"--only names no case: {sorted(unknown)}; cases: {[m.__name__ for m in CASES]}")
    require_green(["ops", "graph/test_graph.py", "test_memory.py"])
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    content = run(args.graph, args.columns, args.repeat, only)
    out = args.out or RESULTS / f"ops-{args.graph}.json"
    write_json(out, content)
    print(tables.ops_table(content))
    print(f"Written: {out}; `make readme` draws it")


if __name__ == "__main__":
    main()
