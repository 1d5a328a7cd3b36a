"""Neighbour sampling: edges per second of `gs.ops.sample_neighbours`, and of DGL's CPU sampler beside it.

    python benchmarks/sampling.py [--nodes 1000000] [--edges 12500000] [--fanouts 15,10,5] [--dgl PYTHON]

The graph is gs.datasets.load("powerlaw") with `edges` edges in both directions. `--dgl` names the interpreter of an
environment that has DGL (1.1.3 runs beside a current torch: pip install dgl==1.1.3 "setuptools<70" packaging pandas
pydantic psutil requests tqdm networkx); without it ours alone is measured. Both have the same batches of seeds and the
same number of threads, and take turns; each side's time is the best of several rounds over all batches.

DGL is measured with ids of 64 and of 32 bits, with its fused sampler and without, and compared with the fastest of
these that draws all edges (in 1.1.3 the fused one draws a part of them if ids have 32 bits). DGL draws the edges of a
node anew in every layer that needs it, ours once, so the two differ in the edges of a batch: the JSON has both, and
seconds per batch beside edges per second.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from harness import RESULTS, machine, require_green, write_json

import gossamer as gs


def measure(graph: gs.Graph, batches: torch.Tensor, fanouts: list[int]) -> dict[str, float]:
    """One round over all batches."""
    start, edges = time.perf_counter(), 0
    for number, seeds in enumerate(batches):
        drawn = gs.ops.sample_neighbours(graph.rowptr, graph.col, None, seeds, fanouts, False, number, False)
        edges += drawn.col.numel()
    return {"seconds": time.perf_counter() - start, "edges": edges}


class Child:
    """DGL in its own process, which samples when it is told to."""

    def __init__(self, python: str, graph: gs.Graph, batches: torch.Tensor, fanouts: list[int], folder: Path) -> None:
        for name, tensor in (("rowptr", graph.rowptr), ("col", graph.col), ("seeds", batches)):
            np.save(folder / f"{name}.npy", tensor.numpy())
        script = Path(__file__).with_name("sampling_dgl.py")
        command = [python, str(script), str(folder), ",".join(map(str, fanouts)), str(torch.get_num_threads())]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.versions = self._line()

    def measure(self) -> dict[str, dict[str, float]]:
        assert self.process.stdin is not None
        self.process.stdin.write("go\n")
        self.process.stdin.flush()
        return self._line()

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()

    def _line(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("{"):  # DGL greets in lines of its own
                return dict(json.loads(line))
        raise RuntimeError("the process of DGL ended; its messages are above")


def summary(rounds: list[dict[str, float]], batches: int) -> dict[str, float]:
    best = min(rounds, key=lambda each: each["seconds"])
    return {
        "edges_per_second": best["edges"] / best["seconds"],
        "seconds_per_batch": best["seconds"] / batches,
        "edges_per_batch": best["edges"] / batches,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=1_000_000)
    parser.add_argument("--edges", type=int, default=12_500_000)
    parser.add_argument("--fanouts", default="15,10,5")
    parser.add_argument("--batch-size", type=int, default=1024)
    parser.add_argument("--batches", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--dgl", metavar="PYTHON")
    parser.add_argument("--no-tests", action="store_true", help="measure without running the tests first")
    parser.add_argument("--out", type=Path, default=RESULTS / "sampling.json")
    args = parser.parse_args()
    if not args.no_tests:
        require_green(["ops/test_sample_neighbours.py"])
    torch.set_num_threads(args.threads)
    fanouts = [int(k) for k in args.fanouts.split(",")]
    data = gs.datasets.load("powerlaw", num_nodes=args.nodes, num_edges=args.edges, num_features=1, num_classes=2)
    graph = gs.Graph.from_edge_index(data.edge_index, data.num_nodes)
    del data
    order = torch.randperm(args.nodes, generator=torch.Generator().manual_seed(0))
    batches = order[: args.batches * args.batch_size].view(args.batches, args.batch_size)
    rounds: list[dict[str, dict[str, float]]] = []
    with tempfile.TemporaryDirectory() as folder:
        child = Child(args.dgl, graph, batches, fanouts, Path(folder)) if args.dgl else None
        for _ in range(args.rounds):
            own = {"gossamer": measure(graph, batches, fanouts)}
            rounds.append(own | ({} if child is None else child.measure()))
        if child is not None:
            child.close()
    sides = {name: summary([each[name] for each in rounds], args.batches) for name in rounds[0]}
    ours = sides.pop("gossamer")
    result: dict[str, Any] = {
        "machine": machine(),
        "graph": {"nodes": graph.num_nodes, "edges": graph.num_edges},
        "fanouts": fanouts,
        "batch_size": args.batch_size,
        "gossamer": ours,
    }
    if child is not None:
        most = max(side["edges_per_batch"] for side in sides.values())
        whole = {name: side for name, side in sides.items() if side["edges_per_batch"] > 0.95 * most}
        best = max(whole, key=lambda name: whole[name]["edges_per_second"])
        result["dgl"] = {"version": child.versions["dgl"], "best": best, **sides}
        result["ratio_edges_per_second"] = ours["edges_per_second"] / sides[best]["edges_per_second"]
        result["ratio_seconds_per_batch"] = sides[best]["seconds_per_batch"] / ours["seconds_per_batch"]
    write_json(args.out, result)
    print(json.dumps({name: value for name, value in result.items() if name != "machine"}, indent=1))
    print(f"wrote {args.out}")


if __name__ == "__main__":
    main()
