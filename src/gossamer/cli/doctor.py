"""`gossamer doctor`: what is installed, which kernel each op will use, where data is searched, and what to fix."""

from __future__ import annotations

import json
import os
import platform
import re
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from rich.table import Table

from .. import distributed, memory, native, ops
from ..datasets.folders import cache_folder, data_folder
from ..measurement.machine import WITHOUT_AMX, amx_is_broken, cpu_name

PACKAGES = (
    "gossamer-gnn",
    "torch",
    "torch_geometric",
    "numpy",
    "scipy",
    "safetensors",
    "scikit-learn",
    "ogb",
    "pyarrow",
)


def openmp_runtimes() -> list[str]:
    """Files of the OpenMP runtimes mapped into this process; more than one slows down or crashes programs."""
    maps = Path("/proc/self/maps")
    lines = maps.read_text().splitlines() if maps.exists() else []
    paths = {line.split(maxsplit=5)[-1] for line in lines if re.search(r"/lib(gomp|iomp5|omp)[^/]*\.so", line)}
    return sorted(paths)


def package_version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def examine() -> dict[str, Any]:
    """Everything that doctor reports, as plain data."""
    folder, on_cpu = data_folder(), ops.IMPLEMENTED.get("cpu", set())
    files = len(list(folder.glob("*.npz"))) if folder else 0
    report: dict[str, Any] = {
        "versions": {"python": platform.python_version()} | {name: package_version(name) for name in PACKAGES},
        "cpu": {
            "name": cpu_name(),
            "cores": os.cpu_count(),
            "threads": torch.get_num_threads(),
            "amx_is_broken": amx_is_broken(),
        },
        "isa": {"in_use": native.isa(), "available": native.available_isas(), "why_missing": native.why_missing},
        "openmp_runtimes": openmp_runtimes(),
        "ops": {name: native.isa() if name in on_cpu else native.REFERENCE for name in sorted(ops.OPS)},
        "pool": memory.stats(),
        "data": {
            "GOSSAMER_DATA": os.environ.get("GOSSAMER_DATA"),
            "files": files,
            "cache": str(cache_folder()),
        },
    }
    report["network"] = distributed.network()
    report["advice"] = advice(report)
    return report


def advice(report: dict[str, Any]) -> list[str]:
    """One sentence per problem that the user should fix; empty if there is none."""
    found = []
    if report["isa"]["in_use"] == native.REFERENCE:
        reason = report["isa"]["why_missing"]
        found.append(f"Native kernels are not in use: {reason}. Everything works, slowly; `pip install .` builds them.")
    if len(report["openmp_runtimes"]) > 1:
        found.append("Several OpenMP runtimes are loaded; import torch (or gossamer) before other packages.")
    if report["cpu"]["amx_is_broken"]:
        setting = " ".join(f"{name}={value}" for name, value in WITHOUT_AMX.items())
        found.append(
            f"torch's bfloat16 products (autocast) crash: this machine announces AMX but lacks it. Set {setting}."
        )
    folder = report["data"]["GOSSAMER_DATA"]
    if folder and not report["data"]["files"]:
        found.append(f"GOSSAMER_DATA names {folder}, which holds no .npz file; point it to the folder with the graphs.")
    return found


def show(report: dict[str, Any], console: Console) -> None:
    facts = Table(show_header=False, box=None, pad_edge=False)
    facts.add_column(style="bold")
    facts.add_column(overflow="fold")
    isa, cpu, data = report["isa"], report["cpu"], report["data"]
    facts.add_row("processor", f"{cpu['name']}, {cpu['cores']} cores")
    facts.add_row("instruction set", f"{isa['in_use']}  (available: {', '.join(isa['available']) or 'none'})")
    facts.add_row("threads", f"{cpu['threads']}  (torch.set_num_threads)")
    facts.add_row("OpenMP", "\n".join(report["openmp_runtimes"]) or "none found")
    facts.add_row(
        "buffer pool", f"up to {report['pool']['limit_bytes'] / 2**30:.1f} GB free buffers  (GOSSAMER_POOL_BYTES)"
    )
    where = f"{data['GOSSAMER_DATA']}, {data['files']} files" if data["GOSSAMER_DATA"] else "GOSSAMER_DATA is not set"
    facts.add_row("local data", where)
    network = report["network"]
    facts.add_row(
        "network", f"{network['backend']}, {network['interface']}  (there are {', '.join(network['interfaces'])})"
    )
    for line in network["bandwidth"]:
        facts.add_row("", line)
    facts.add_row("downloads", f"{data['cache']}  (GOSSAMER_CACHE)")
    for name, found in report["versions"].items():
        facts.add_row(name, found or "[dim]not installed[/dim]")
    console.print(facts)
    table = Table("op", "runs on", title="ops on the CPU", title_justify="left")
    for name, implementation in report["ops"].items():
        table.add_row(name, implementation)
    console.print(table)
    for line in report["advice"] or ["No problems found."]:
        console.print(line, style="yellow" if report["advice"] else "green")


def doctor(as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False) -> None:
    """Say what is installed, which implementation each op will use, and where data is searched."""
    report = examine()
    if report["network"]["rank"] != 0:
        distributed.stop()
        return
    if as_json:
        print(json.dumps(report, indent=1))
    else:
        show(report, Console())
    distributed.stop()
