"""Timing, facts about the machine, and files, for every benchmark here.

A time is the best of several runs after a warm-up; ours and the baselines take turns inside one process with the same
threads, so that a busy neighbour hits both. Speeds are ratios: absolute times belong to one machine and one hour.
"""

from __future__ import annotations

import gc
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

import gossamer as gs
from gossamer.atomic import replacing

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"


def best_times(functions: dict[str, Callable[[], Any]], repeat: int, budget: float = 8.0) -> dict[str, float]:
    """Seconds of each function, best of `repeat` rounds (fewer, but two at least, if one takes more than `budget`)."""
    best: dict[str, float] = {}
    spent = dict.fromkeys(functions, 0.0)
    for function in functions.values():
        function()
    for done in range(repeat):
        for name, function in functions.items():
            if spent[name] > budget and done >= 2:
                continue
            gc.collect()
            start = time.perf_counter()
            result = function()
            seconds = time.perf_counter() - start
            del result  # outside the timed part for all alike
            spent[name] += seconds
            best[name] = min(seconds, best.get(name, seconds))
    return best


def machine() -> dict[str, Any]:
    """What a reader needs to place the numbers."""
    cpu = platform.processor()
    for line in Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []:
        if line.startswith("model name"):
            cpu = line.split(":", 1)[1].strip()
            break
    return {
        "cpu": cpu,
        "cores": os.cpu_count(),
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "threads": torch.get_num_threads(),
        "isa": gs.kernels.isa(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "torch_geometric": version("torch_geometric"),
        "gossamer": gs.__version__,
        "commit": commit(),
    }


def commit() -> str:
    """The commit measured, with a plus sign if the tree differs from it outside the results."""
    try:
        head = subprocess.run(["git", "rev-parse", "--short=10", "HEAD"], cwd=ROOT, capture_output=True, text=True)
        changes = ["git", "status", "--porcelain", "--", ".", ":!benchmarks/results", ":!README.md"]
        dirty = subprocess.run(changes, cwd=ROOT, capture_output=True, text=True)
    except OSError:
        return "unknown"
    return head.stdout.strip() + ("+" if dirty.stdout.strip() else "") if head.returncode == 0 else "unknown"


def require_green(tests: list[str]) -> None:
    """Run the tests of what is to be measured; no speed is reported on a red one."""
    files = [str(ROOT / "tests" / test) for test in tests]
    print(f"First the tests of what is measured: {' '.join(tests)}", flush=True)
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *files]
    if subprocess.run(command, cwd=ROOT).returncode != 0:
        sys.exit("A test failed: no speed is reported for code that is wrong. Fix it, then measure.")


def write_json(path: Path, content: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as temporary:
        Path(temporary).write_text(json.dumps(content, indent=1) + "\n")
