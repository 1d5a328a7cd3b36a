"""Another commit against this tree: the time and memory of training, or the bits of the weights.

    python benchmarks/against.py COMMIT [--models gcn,gat] [--recipes tango] [--rounds 2] [--out]
    python benchmarks/against.py COMMIT --bits

Builds the commit in build/against, once. Every measurement is a process of its own that runs against_child.py; the
two trees take turns, so that a busy hour of the machine hits both. A time is the best epoch of all rounds, a peak the
smallest. Ends with exit code 1 if a ratio exceeds `--limit`.

`--bits` trains every case for a few steps instead, on the baseline instruction set and one thread, and compares the
weights bit for bit; for the float32 recipe also the distance of the gradients from those of PyG in float64. Ends with
exit code 1 if weights differ.
"""

from __future__ import annotations

import argparse
import io
import itertools
import json
import math
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from against_child import MODELS, SHAPES, WRITTEN, Case, Graph, weights_file
from harness import RESULTS, ROOT, machine, write_json
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

import gossamer as gs

STEPS = 20
EPOCHS = {"arxiv-like": 3, "cora": 60}  # a small graph's epoch takes milliseconds: the best of more is steadier
Found = dict[str, dict[str, Any]]  # tree ("old", "new") to what its child answered


def build(commit: str) -> Path:
    """The package of another commit, compiled with this interpreter's pip; a second call finds it built."""
    home = ROOT / "build" / "against" / commit[:10]
    ready = home / "package"
    if not ready.exists():
        shutil.rmtree(home, ignore_errors=True)
        archive = subprocess.run(["git", "archive", commit], cwd=ROOT, capture_output=True, check=True).stdout
        with tarfile.open(fileobj=io.BytesIO(archive)) as source:
            source.extractall(home / "source", filter="data")
        print(f"Building {commit[:10]}: a few minutes, once", flush=True)
        pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(home / "wheel")]
        subprocess.run([*pip, str(home / "source")], check=True)
        (wheel,) = (home / "wheel").glob("*.whl")
        zipfile.ZipFile(wheel).extractall(home / "unpacked")
        (home / "unpacked").rename(ready)
    return ready / "gossamer"


def ask(package: Path, job: str, environment: dict[str, str] | None = None, **request: Any) -> Iterator[Any]:
    """The answers of a child that runs on `package`, one by one."""
    text = json.dumps({"package": str(package), "job": job} | request)
    command = [sys.executable, str(Path(__file__).with_name("against_child.py")), text]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=os.environ | (environment or {})) as child:
        assert child.stdout is not None
        yield from map(json.loads, child.stdout)
    if child.returncode != 0:
        sys.exit(f"The process of {package} ended with code {child.returncode}; its messages stand above.")


def write_graphs(names: list[str], scale: float, folder: Path) -> dict[str, str]:
    """The graphs as files, so that children need not generate them and both trees see the same."""
    paths = {}
    for name in names:
        data = gs.datasets.load(name, **({"scale": scale} if name == "arxiv-like" else {}))
        paths[name] = str(folder / f"{name}.pt")
        torch.save({field: data[field] for field in Graph._fields}, paths[name])
    return paths


def time_both(
    trees: dict[str, Path], cases: list[Case], args: argparse.Namespace, graphs: dict[str, str]
) -> list[Found]:
    found: list[Found] = [{} for _ in cases]
    turns = [
        (k, tree) for k in range(len(cases)) for r in range(args.rounds) for tree in sorted(trees, reverse=r % 2 == 0)
    ]
    with Progress() as progress:
        task = progress.add_task("", total=len(turns))
        for k, tree in turns:
            progress.update(task, description=f"{' '.join(cases[k])}, {tree}")
            graph = cases[k].graph
            (answer,) = ask(
                trees[tree], "epochs", threads=args.threads, cases=[cases[k]], graphs={graph: graphs[graph]},
                epochs=args.epochs or EPOCHS[graph],
            )  # fmt: skip
            found[k][tree] = better(found[k].get(tree), answer)
            progress.advance(task)
    return found


def better(before: dict[str, Any] | None, now: dict[str, Any]) -> dict[str, Any]:
    """The fastest epoch and the smallest peak: what disturbs a measurement only adds to it."""
    if before is None or "error" in now:
        return now
    return before if "error" in before else {name: min(before[name], now[name]) for name in now}


def train_both(trees: dict[str, Path], cases: list[Case], graphs: dict[str, str], folder: Path) -> list[Found]:
    def train(tree: str) -> list[dict[str, Any]]:
        (folder / tree).mkdir()
        request = {"threads": 1, "cases": cases, "graphs": graphs, "steps": STEPS, "folder": str(folder / tree)}
        answers = ask(trees[tree], "weights", {"GOSSAMER_ISA": "baseline"}, **request)
        return list(progress.track(answers, total=len(cases), description=tree))

    with Progress() as progress, ThreadPoolExecutor(len(trees)) as pool:
        answers = dict(zip(trees, pool.map(train, trees), strict=True))
    return [{tree: answers[tree][k] for tree in trees} for k in range(len(cases))]


def time_table(cases: list[Case], found: list[Found], limit: float) -> tuple[Table, list[str]]:
    """The table, and what exceeds the limit."""
    table = Table("case", *[f"{what} {column}" for what in ("s", "MB") for column in ("old", "new", "ratio")])
    complaints: list[str] = []
    ratios: list[tuple[float, float]] = []
    for case, both in zip(cases, found, strict=True):
        if errors := errors_of(both):
            table.add_row(" ".join(case), errors)
            complaints.append(f"{' '.join(case)}: {errors}")
            continue
        old, new = both["old"], both["new"]
        both["ratio"] = {name: new[name] / max(old[name], 1e-9) for name in ("seconds", "peak_bytes")}
        seconds, peak = both["ratio"].values()
        ratios.append((seconds, peak))
        table.add_row(
            " ".join(case), f"{old['seconds']:.4f}", f"{new['seconds']:.4f}", marked(seconds, limit),
            f"{old['peak_bytes'] / 2**20:.1f}", f"{new['peak_bytes'] / 2**20:.1f}", marked(peak, limit),
        )  # fmt: skip
        complaints += [f"{' '.join(case)}: {name} x {r:.3f}" for name, r in both["ratio"].items() if r > limit]
    if ratios:
        seconds, peak = (math.exp(sum(map(math.log, column)) / len(ratios)) for column in zip(*ratios, strict=True))
        table.add_row("geometric mean", "", "", f"{seconds:.3f}", "", "", f"{peak:.3f}", style="bold")
    return table, complaints


def marked(ratio: float, limit: float) -> str:
    return f"[red]{ratio:.3f}[/red]" if ratio > limit else f"{ratio:.3f}"


def errors_of(both: Found) -> str:
    return "; ".join(f"{tree}: {answer['error']}" for tree, answer in both.items() if "error" in answer)


def bits_table(cases: list[Case], found: list[Found], folder: Path) -> tuple[Table, list[str]]:
    """The table, and the cases that differ."""
    table = Table("case", "weights", "gradients against float64: old", "new")
    complaints: list[str] = []
    for case, both in zip(cases, found, strict=True):
        verdict = errors_of(both) or difference(case, both, folder)
        distances = [f"{d:.1e}" if (d := both[tree].get("gradient_distance")) else "" for tree in ("old", "new")]
        table.add_row(" ".join(case), verdict or "equal", *distances, style="red" if verdict else None)
        complaints += [f"{' '.join(case)}: {verdict}"] if verdict else []
    return table, complaints


def difference(case: Case, both: Found, folder: Path) -> str:
    """Where two trainings part; empty if they do not."""
    old, new = both["old"], both["new"]
    if old["sha256"] == new["sha256"] and old["losses"] == new["losses"]:
        return ""
    before, after = (torch.load(folder / tree / weights_file(case)) for tree in ("old", "new"))
    if before.keys() != after.keys():
        return f"differ in the names of their tensors: {sorted(before.keys() ^ after.keys())}"
    distances = [((after[n] - before[n]).abs().max() / before[n].abs().max().clamp(min=1e-30)).item() for n in before]
    steps = [step for step, (a, b) in enumerate(zip(old["losses"], new["losses"], strict=True), 1) if a != b]
    since = f"losses from step {steps[0]}" if steps else "losses equal"
    return f"differ: {since}, weights by {max(distances):.1e}"


def choose(parser: argparse.ArgumentParser, option: str, given: str, offered: list[str]) -> list[str]:
    """The comma-separated names that were given, or all that are offered."""
    names = [name for name in given.split(",") if name] or offered
    if unknown := [name for name in names if name not in offered]:
        parser.error(f"{option} must be among {', '.join(offered)} (got {', '.join(unknown)})")
    return names


def arguments() -> tuple[argparse.ArgumentParser, argparse.Namespace]:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("commit", help="what this tree is compared with: a hash, branch or tag")
    parser.add_argument("--bits", action="store_true", help=f"compare weights after {STEPS} steps instead of times")
    for option, offered in (("graph", list(SHAPES)), ("models", list(MODELS)), ("written", list(WRITTEN))):
        parser.add_argument(f"--{option}", default="", help=f"comma-separated, of {', '.join(offered)}; default: all")
    parser.add_argument("--recipes", default="", help="comma-separated names; default: all that both trees have")
    parser.add_argument("--epochs", type=int, help=f"timed epochs of each round; default: {EPOCHS}")
    parser.add_argument("--rounds", type=int, default=2, help="processes of each tree and case")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--scale", type=float, help="of arxiv-like; default: 1, with --bits 0.02")
    parser.add_argument("--limit", type=float, default=1.03, help="ratio of seconds or peak that is too much")
    default = RESULTS / "against.json"
    parser.add_argument(
        "--out", type=Path, nargs="?", const=default, help="write JSON, to benchmarks/results/against.json"
    )
    return parser, parser.parse_args()


def main() -> None:
    parser, args = arguments()
    known = subprocess.run(["git", "rev-parse", "--verify", "--quiet", f"{args.commit}^{{commit}}"],
                           cwd=ROOT, capture_output=True, text=True)  # fmt: skip
    if known.returncode != 0:
        parser.error(f"`commit` must be a commit of this repository (got {args.commit})")
    commit = known.stdout.strip()
    trees = {"old": build(commit), "new": Path(gs.__file__).parent}
    (recipes,) = ask(trees["old"], "recipes", threads=1)
    names = [
        choose(parser, "--graph", args.graph, list(SHAPES)), choose(parser, "--models", args.models, list(MODELS)),
        choose(parser, "--written", args.written, list(WRITTEN)),
        choose(parser, "--recipes", args.recipes, [name for name in gs.recipes if name in recipes]),
    ]  # fmt: skip
    cases = [Case(*case) for case in itertools.product(*names)]
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        graphs = write_graphs(names[0], args.scale or (0.02 if args.bits else 1.0), folder)
        if args.bits:
            found = train_both(trees, cases, graphs, folder)
            table, complaints = bits_table(cases, found, folder)
        else:
            found = time_both(trees, cases, args, graphs)
            table, complaints = time_table(cases, found, args.limit)
    Console().print(table)
    if args.out:
        results = [case._asdict() | both for case, both in zip(cases, found, strict=True)]
        setting = {"threads": 1, "isa": "baseline"} if args.bits else {"threads": args.threads}
        write_json(args.out, {"machine": machine() | setting, "against": commit[:10], "results": results})
    if complaints:
        sys.exit("\n".join(["Not the same:", *complaints]))


if __name__ == "__main__":
    main()
