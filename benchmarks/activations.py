"""What activations in few bits save and what they cost: bytes, and accuracy and time by bits and block length.

    python benchmarks/activations.py [--part bytes|curve|improvements] [--quick] [--scale 1] [--threads 2] [--out FILE]

    bytes          kept for backward, and the peak of a training step, beside what the published code logged
    curve          1, 2, 4 and 8 bits, blocks of 64, 256 and 1,024: accuracy on a real graph, bytes, seconds per epoch
    improvements   what each of our departures from the published form gains (activation_cases.py)

Runs the tests of activations first. A part alone replaces its own results in FILE and leaves the others.
"""

from __future__ import annotations

import argparse
import json
import statistics
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import activation_cases
import activation_tables
import torch
import train_cases
from accuracy import one_run
from harness import RESULTS, best_times, machine, require_green, write_json
from rich.progress import Progress

import gossamer as gs

QUICK_SCALE = 0.02
"""Of arxiv-like, for a trial."""


def coded(codec: gs.Codec) -> gs.Recipe:
    return gs.Recipe(activations=codec)


# Bytes ----------------------------------------------------------------------------------------------------------

BLOCKWISE_EXACT = gs.Recipe(activations=gs.Published(gs.Projected(8, gs.Blockwise(bits=2, block=1024))))
LAYOUTS: dict[str, tuple[str, gs.Recipe | None, float | None]] = {
    "pyg": ("PyG `edge_index`", None, None),
    "float32": ("`float32`", gs.recipes["float32"], 786.22),
    "exact-int8": ("`exact-int8`", gs.recipes["exact-int8"], None),
    "exact-int4": ("`exact-int4`", gs.recipes["exact-int4"], None),
    "exact-int2": ("`exact-int2`", gs.recipes["exact-int2"], None),
    "exact-int2-published": ("`exact-int2-published`, EXACT", gs.recipes["exact-int2-published"], 30.47),
    "blockwise-published": ("published layout, blocks of 1,024", BLOCKWISE_EXACT, 25.56),
}
"""Name, recipe, and MB (2^20 bytes) that the published code logged on ogbn-arxiv, 0.75 of them indices and the like."""


def bytes_part(threads: int, quick: bool, scale: float) -> dict[str, Any]:
    """GraphSAGE of three layers, 128 columns, on a graph of ogbn-arxiv's size; every layout in a fresh process."""
    results = []
    with Progress() as progress:
        for name in progress.track(LAYOUTS, description="bytes"):
            label, recipe, logged = LAYOUTS[name]
            found = gs.measure.in_fresh_process(activation_cases.sage_bytes, recipe, scale, threads).value
            said = {"name": name, "label": label, "recipe": repr(recipe), "logged_mb": logged}
            results.append(said | found)
    return {"graph": {"name": "arxiv-like", "scale": scale}, "results": results}


# Curve ----------------------------------------------------------------------------------------------------------

BITS, BLOCKS = (1, 2, 4, 8), (64, 256, 1024)
ACCURACY_SET = "amazon_computers"


def settings() -> dict[str, gs.Recipe]:
    """float32, and bits x block; levels of least variance where recipes use them."""
    codecs = [gs.Blockwise(b, n, bins="optimal" if b in (2, 4) else "uniform") for b in BITS for n in BLOCKS]
    return {"float32": gs.recipes["float32"]} | {f"{c.bits} x {c.block}": coded(c) for c in codecs}


def curve_part(threads: int, quick: bool, scale: float) -> dict[str, Any]:
    recipes = settings()
    seeds, epochs = (1, 4) if quick else (5, 60)
    accuracies = accuracies_of(recipes, seeds, epochs)
    data: Any = gs.datasets.load("arxiv-like", scale=scale)
    costs = costs_of(recipes, data)
    results = []
    for name, recipe in recipes.items():
        codec: Any = recipe.activations
        tests = accuracies[name]
        spread = statistics.stdev(tests) if len(tests) > 1 else 0.0
        one = {"name": name, "bits": getattr(codec, "bits", 32), "block": getattr(codec, "block", None)}
        one |= {"accuracy": statistics.fmean(tests), "accuracy_std": spread, "tests": tests}
        results.append(one | costs[name])
    graph = {"name": "arxiv-like", "nodes": data.num_nodes, "edges": data.num_edges}
    return {"set": ACCURACY_SET, "seeds": seeds, "epochs": epochs, "graph": graph, "results": results}


def accuracies_of(recipes: dict[str, gs.Recipe], seeds: int, epochs: int) -> dict[str, list[float]]:
    """Test accuracies in percent, GCN of two layers; the same weights and dropout masks for all."""
    data = gs.datasets.load(ACCURACY_SET)
    found: dict[str, list[float]] = {name: [] for name in recipes}
    with Progress() as progress:
        task = progress.add_task("accuracy", total=seeds * len(recipes))
        for seed in range(seeds):
            for name, recipe in recipes.items():
                progress.update(task, description=f"{ACCURACY_SET}, {name}, seed {seed}")
                found[name].append(one_run(data, "gcn", recipe, seed, epochs, every=2))
                progress.advance(task)
    return found


def costs_of(recipes: dict[str, gs.Recipe], data: Any) -> dict[str, dict[str, float]]:
    """Kept bytes without the loss, and best seconds per epoch of a GCN of three layers, 256 columns, taking turns."""
    steps: dict[str, Callable[[], Any]] = {}
    kept: dict[str, int] = {}
    for name, recipe in recipes.items():
        model = train_cases.make("gcn", data, small=False)
        gs.lighten_(model, recipe)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        kept[name] = gs.measure.kept_bytes(partial(model, data.x, data.edge_index), exclude=[model, data])
        steps[name] = partial(train_cases.step, model, optimizer, data, data.edge_index)
    print(f"Seconds per epoch, {len(steps)} settings in turn ...", flush=True)
    seconds = best_times(steps, repeat=3)
    whole = seconds["float32"]
    return {n: {"kept_bytes": kept[n], "seconds": seconds[n], "of_float32": seconds[n] / whole} for n in recipes}


# The whole ------------------------------------------------------------------------------------------------------

PARTS = {"bytes": bytes_part, "curve": curve_part, "improvements": activation_cases.improvements_part}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--part", choices=PARTS, help="this part alone")
    parser.add_argument("--quick", action="store_true", help="a trial: small graphs, few epochs, no tests first")
    parser.add_argument("--scale", type=float, help="size of arxiv-like, 1 being the full one")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--out", type=Path, default=RESULTS / "activations.json")
    args = parser.parse_args()
    if args.quick and args.out == RESULTS / "activations.json":
        parser.error("--quick gives figures of a trial: choose another file with --out")
    args.scale = args.scale or (QUICK_SCALE if args.quick else 1.0)
    if not args.quick:
        require_green(["engine/saved", "codecs"])
    warnings.simplefilter("ignore")
    torch.set_num_threads(args.threads)
    for name in [args.part] if args.part else PARTS:
        found = PARTS[name](args.threads, args.quick, args.scale)
        before = json.loads(args.out.read_text()) if args.out.exists() else {}
        write_json(args.out, before | {name: {"machine": machine() | {"threads": args.threads}, **found}})
        print(activation_tables.TABLES[f"activations-{name}"]({"activations": json.loads(args.out.read_text())}))
    print(f"Written: {args.out}")


if __name__ == "__main__":
    main()
