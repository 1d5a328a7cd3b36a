"""Mini-batches of sampled neighbourhoods: epochs against plain PyG, features that do not fit, and large graphs.

    python benchmarks/minibatch.py epochs [--graph arxiv-like] [--batches 10]
    python benchmarks/minibatch.py mapped [--folder DIR] [--nodes 20000000] [--limit-gb 8]
    python benchmarks/minibatch.py scale  [--folder DIR] [--nodes 5000000,10000000,20000000]

Each part writes its own JSON.

epochs    GraphSAGE 3x256, fan-outs 10-10-10, 1024 seeds: plain PyG on the whole sampled subgraph and trimmed layer by
          layer (its batches come from our loader: PyG's own needs a compiled package), and recipes on blocks, with
          features in float32 and in codes. Variants take turns in one process; sampling and gathering are included.
          Then, without prefetching, where the time goes.
mapped    the same model on a generated graph whose float32 features, behind a memory map, exceed the memory that the
          process may use (a control group, which needs root), against the same features in one bit
scale     generate, compress to one bit, train for one epoch of 200,000 seeds: seconds and peak memory of each, every
          one in a process of its own
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
import warnings
from pathlib import Path
from typing import Any

import torch
from harness import RESULTS, machine, write_json
from minibatch_runs import BATCH, FANOUTS, WIDTH, Trainee, compress, epoch, generate, loader_of, model_of, train

import gossamer as gs
from gossamer.measurement import in_fresh_process

# Epochs -----------------------------------------------------------------------------------------------------------


def epochs(args: argparse.Namespace) -> None:
    data = gs.datasets.load(args.graph)
    graph = gs.Graph.from_edge_index(data.edge_index, data.num_nodes)
    seeds = data.train_mask.nonzero().flatten()[: args.batches * BATCH]
    stores = {
        "float32": data.x,
        "1 bit": gs.compress(data.x, gs.Scalar(bits=1), progress=False),
        "2 bits": gs.compress(data.x, gs.Scalar(bits=2), progress=False),
        "product": gs.compress(data.x, gs.Product(width=16, length=2048), progress=False),
    }
    sizes = data.num_features, data.num_classes
    cases = {
        "PyG": (Trainee(*sizes, None), "float32"),
        "PyG trimmed": (Trainee(*sizes, None, trim=True), "float32"),
        "float32": (Trainee(*sizes, "float32"), "float32"),
        "float32, 1-bit features": (Trainee(*sizes, "float32"), "1 bit"),
        "tango": (Trainee(*sizes, "tango"), "float32"),
        "tango, 1-bit features": (Trainee(*sizes, "tango"), "1 bit"),
        "tango, 2-bit features": (Trainee(*sizes, "tango"), "2 bits"),
        "tango, product features": (Trainee(*sizes, "tango"), "product"),
        "feather": (Trainee(*sizes, "feather"), "float32"),
        "exact-int2": (Trainee(*sizes, "exact-int2"), "float32"),
    }
    cases = {name: case for name, case in cases.items() if not args.cases or name in args.cases.split(",")}
    best: dict[str, float] = {}
    for turn in range(args.rounds):
        for name, (trainee, features) in cases.items():
            if turn >= 2 and trainee.recipe is None:
                continue  # two epochs of the baselines are minutes
            seconds = epoch(loader_of(graph, stores[features], data.y, seeds, trainee, seed=turn), trainee)
            best[name] = min(seconds, best.get(name, seconds))
            print(f"{name:26} {seconds:.2f} s", flush=True)
    parts = {name: parts_of(graph, stores[features], data.y, seeds, t) for name, (t, features) in cases.items()}
    base = min(seconds for name, seconds in best.items() if name.startswith("PyG"))
    results = [
        {"variant": name, "seconds": best[name], "times_faster": base / best[name], "parts": parts[name],
         "feature_bytes": int(stores[cases[name][1]].nbytes)}
        for name in cases
    ]  # fmt: skip
    for row in results:
        print(f"{row['variant']:26} {row['seconds']:.2f} s, {row['times_faster']:.1f}x, {row['parts']}")
    facts = {"graph": args.graph, "nodes": graph.num_nodes, "edges": graph.num_edges, "batches": args.batches}
    write("minibatch-epochs", facts | {"fanouts": FANOUTS, "batch_size": BATCH, "width": WIDTH, "results": results})


def parts_of(graph: gs.Graph, x: Any, y: Any, seeds: torch.Tensor, trainee: Trainee) -> dict[str, float]:
    """Mean seconds a batch of sampling, gathering features, forward and backward, one after the other."""
    few = seeds[: (3 if trainee.recipe is None else 8) * BATCH]
    found: dict[str, list[float]] = {name: [] for name in ("sample", "gather", "forward", "backward")}
    bare = iter(loader_of(graph, None, y, few, trainee, prefetch=0))
    while True:
        start = time.perf_counter()
        batch = next(bare, None)
        sampled = time.perf_counter()
        if batch is None:
            break
        batch.x = x[batch.n_id] if isinstance(x, gs.FeatureStore) else gs.ops.gather_rows(x, batch.n_id)
        gathered = time.perf_counter()
        forward, backward = trainee.step(batch)
        for name, seconds in zip(found, (sampled - start, gathered - sampled, forward, backward), strict=True):
            found[name].append(seconds)
    return {name: statistics.median(seconds) for name, seconds in found.items()}


# Large graphs -----------------------------------------------------------------------------------------------------


def folder_of(args: argparse.Namespace, nodes: int) -> Path:
    return Path(args.folder) / f"nodes-{nodes}"


def ran(function: Any, *args: Any) -> dict[str, Any]:
    """Seconds and peak of resident memory of a function in a process of its own, with what it returns."""
    start = time.perf_counter()
    done = in_fresh_process(function, *args)
    found = {"total_seconds": time.perf_counter() - start, "peak_bytes": done.peak_bytes}
    return found | (done.value or {})


def scale(args: argparse.Namespace) -> None:
    results = []
    for nodes in map(int, args.nodes.split(",")):
        folder = folder_of(args, nodes)
        row: dict[str, Any] = {"nodes": nodes, "edges": model_of(nodes).stored_edges, "features": 128}
        if not folder.exists():
            row["generate"] = ran(generate, folder, nodes)
        (folder / "x.gsf").unlink(missing_ok=True)
        row["compress"] = ran(compress, folder)
        for recipe in args.recipes.split(","):
            row[recipe] = ran(train, folder, min(args.seeds, nodes // 4), "codes", recipe)
        results.append(row)
        print(row, flush=True)
        write("minibatch-scale", {"fanouts": FANOUTS, "batch_size": BATCH, "width": WIDTH, "results": results})


# Features that do not fit -----------------------------------------------------------------------------------------


class Limited:
    """Memory of the processes that are started inside, page cache included: a control group, version 1 or 2."""

    def __init__(self, limit: int) -> None:
        first, second = Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup")
        old = (first / "memory.limit_in_bytes").exists()
        self.home = (first if old else second) / f"gossamer-{os.getpid()}"
        self.setting, self.limit = "memory.limit_in_bytes" if old else "memory.max", limit

    def __enter__(self) -> Limited:
        self.home.mkdir()
        (self.home / self.setting).write_text(str(self.limit))
        (self.home / "cgroup.procs").write_text(str(os.getpid()))
        return self

    def __exit__(self, *error: object) -> None:
        (self.home.parent / "cgroup.procs").write_text(str(os.getpid()))
        for _ in range(50):  # a group is removed when its last process has gone
            try:
                self.home.rmdir()
                return
            except OSError:
                time.sleep(0.1)


def forget(path: Path) -> None:
    """Drop a file from the page cache: what is cached outside of the group would not count."""
    with open(path, "rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def mapped(args: argparse.Namespace) -> None:
    nodes = int(args.nodes.split(",")[-1])
    folder, results = folder_of(args, nodes), []
    if not folder.exists():
        generate(folder, nodes)
    if not (folder / "x.gsf").exists():
        compress(folder)
    for features in ("codes", "float32"):
        for path in folder.iterdir():
            forget(path)
        with Limited(int(args.limit_gb * 2**30)):
            found = ran(train, folder, args.seeds, features, "tango", args.batches, args.batches)
        per_batch = found["seconds"] / found["batches"]
        results.append({"features": features, "seconds_per_batch": per_batch} | found)
        print(results[-1], flush=True)
    size = (folder / "x.npy").stat().st_size
    facts = {"nodes": nodes, "edges": model_of(nodes).stored_edges, "float32_bytes": size}
    write("minibatch-mapped", facts | {"limit_bytes": int(args.limit_gb * 2**30), "results": results})


def write(name: str, content: dict[str, Any]) -> None:
    write_json(RESULTS / f"{name}.json", {"machine": machine()} | content)
    print(f"wrote {RESULTS / name}.json")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("part", choices=["epochs", "mapped", "scale"])
    parser.add_argument("--graph", default="arxiv-like")
    parser.add_argument("--batches", type=int, default=10, help="of a timed epoch; mapped: timed, after as many more")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--cases", default="", help="epochs: some variants, separated by commas")
    parser.add_argument("--folder", default="build/streams", help="where large graphs are generated")
    parser.add_argument("--nodes", default="5000000,10000000,20000000")
    parser.add_argument("--seeds", type=int, default=200_000)
    parser.add_argument("--recipes", default="tango")
    parser.add_argument("--limit-gb", type=float, default=8.0)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(args.threads)
    {"epochs": epochs, "mapped": mapped, "scale": scale}[args.part](args)


if __name__ == "__main__":
    main()
