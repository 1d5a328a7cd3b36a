"""Tables and the plot of integer inference (docs/inference.md), from results/*.json."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from activation_tables import paired, table, where

Results = Mapping[str, Any]
NAMES = {
    "pyg-edge-index": "PyG `edge_index`", "pyg-csr": "PyG CSR", "PyG": "PyG", "PyG trimmed": "PyG trimmed",
    "float32": "**lightened, `float32`**", "tango": "**lightened, `tango`**", "int8": "**engine, 8 bits**",
    "int4": "**engine, 4 bits**",
}  # fmt: skip
MODELS = {"gcn": "GCN", "gin": "GIN", "gat": "GAT"}
SUMMARY = ("pyg-edge-index", "pyg-csr", "int8")
LOWEST = -12.0
"""Percentage points at which the plot ends."""
VARIANTS = ("calibrate 8", "DQ8", "QAT8", "DQ4", "QAT4")
METRICS = {"mae": "MAE"}
PUBLISHED = {
    ("tu_reddit_binary", "gin"): {"float32": "92.2", "QAT8": "76.0", "DQ8": "91.8", "QAT4": "54.1", "DQ4": "81.3"},
    ("citeseer", "gin"): {"float32": "65.8", "QAT8": "63.0", "DQ8": "67.5", "QAT4": "18.6", "DQ4": "60.8"},
    ("cora", "gin"): {"float32": "77.9", "QAT8": "75.6", "DQ8": "78.7", "QAT4": "42.5", "DQ4": "69.9"},
}
"""Of the paper's tables, in percent."""


def baselines(variants: dict[str, Any]) -> dict[str, Any]:
    return {name: one for name, one in variants.items() if "pyg" in name.lower()}


def against(variants: dict[str, Any], name: str, key: str) -> str:
    """Times less than each baseline; nothing for a baseline."""
    bases = baselines(variants)
    if name in bases:
        return ""
    return ", ".join(f"{NAMES[base]} **{one[key] / variants[name][key]:.1f}x**" for base, one in bases.items())


def models_table(results: Results) -> str:
    """Whole graphs: time, peak and file of each form of a model."""
    content, rows = results["inference-models"], []
    for row in content["results"]:
        variants, files = row["variants"], row["files"]
        for k, (name, one) in enumerate(variants.items()):
            size = files.get(name)
            ratio = "" if size is None or name == "float32" else f" ({files['float32'] / size:.1f}x smaller)"
            told = "" if size is None else f"{size / 1e3:,.0f} kB{ratio}"
            time = [f"{1e3 * one['seconds']:,.0f}", against(variants, name, "seconds")]
            peak = [f"{one['peak_bytes'] / 1e6:,.0f}", against(variants, name, "peak_bytes")]
            rows.append([row["model"] if k == 0 else "", NAMES[name], *time, *peak, told])
    heads = ["model", "as", "ms", "times faster than", "peak MB", "times smaller than", "model file"]
    g = content["graph"]
    graph = f"Graph `{g['name']}` with {g['nodes']:,} nodes and {g['edges']:,} edges, {g['features']} features"
    return f"{table(heads, rows, 2)}\n\n{graph}; best of {content['repeat']}. {where(content)}"


def summary_table(results: Results) -> str:
    """One row per model: the engine in eight bits against PyG."""
    content, rows = results["inference-models"], []
    for row in content["results"]:
        variants, files = row["variants"], row["files"]
        times = [f"{1e3 * variants[name]['seconds']:,.0f}" if name in variants else "–" for name in SUMMARY]
        faster, smaller = (against(variants, "int8", key) for key in ("seconds", "peak_bytes"))
        rows.append([row["model"], *times, faster, smaller, f"{files['float32'] / files['int8']:.1f}x"])
    heads = ["model", "PyG `edge_index`, ms", "PyG CSR, ms", "engine, 8 bits, ms", "faster than"]
    heads += ["its peak is smaller than", "model file is smaller"]
    g = content["graph"]
    told = (
        f"Evaluation on `{g['name']}` with {g['nodes']:,} nodes and {g['edges']:,} edges, best of {content['repeat']};"
    )
    return f"{table(heads, rows)}\n\n{told} {where(content)}"


def calls_table(results: Results) -> str:
    """Batches of small graphs, and single nodes."""
    rows = []
    graphs, node = results["inference-graphs"], results["inference-node"]
    size = graphs["graphs"]
    cases = [
        (f"{size['count']:,} graphs with {size['nodes'] / size['count']:.0f} nodes each", graphs),
        (f"one node, fan-outs {'-'.join(map(str, node['fanouts']))}", node),
    ]
    for task, content in cases:
        for row in content["results"]:
            for k, (name, one) in enumerate(row["variants"].items()):
                peak = f"{one['peak_bytes'] / 1e6:,.0f}" if "peak_bytes" in one else ""
                time = [f"{1e3 * one['seconds']:,.2f}", against(row["variants"], name, "seconds"), peak]
                rows.append([f"{task}; {row['model']}" if k == 0 else "", NAMES[name], *time])
    told = "A batch is new to every call; one node's time is the median, sampling and gathering included."
    return f"{table(['task', 'as', 'ms', 'times faster than', 'peak MB'], rows, 2)}\n\n{told} {where(graphs)}"


def serve_table(results: Results) -> str:
    content, rows = results["inference-serve"], []
    for one in content["served"]:
        times = [f"{1e3 * one[key]:,.0f}" for key in ("median", "p99", "slowest")]
        same = "yes" if one["same_after_kill"] else "no"
        rows.append(
            [one["case"], f"{one['requests']:,}", str(one["errors"]), f"{one['per_second']:,.0f}", *times, same]
        )
    heads = ["request", "requests", "errors", "a second", "median, ms", "p99, ms", "slowest, ms", "same after kill -9"]
    told = (
        f"{content['at_once']} requests at a time for {content['seconds']:.0f} s from a process on the same two cores, "
        f"GraphSAGE 2x256 in eight bits on `{content['graph']['name']}`."
    )
    return f"{table(heads, rows)}\n\n{told} {where(content)}"


# Accuracy -----------------------------------------------------------------------------------------------------------


def by_job(content: dict[str, Any]) -> dict[tuple[str, str], dict[str, Any]]:
    """The variants of each set and model."""
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for one in content["results"]:
        found.setdefault((one["set"], one["model"]), {})[one["variant"]] = one
    return found


def scores(one: dict[str, Any]) -> dict[int, float]:
    """By run: of the integer engine where there is one."""
    chosen = zip(one["runs"], one["engines"], one["tests"], strict=True)
    return {run: engine if engine is not None else test for run, engine, test in chosen if test is not None}


def told(one: dict[str, Any] | None, digits: int) -> str:
    if one is None or one["test_mean"] is None:
        return "–" if one is None else "diverged"
    mean = one["test_mean"] if one["engine_mean"] is None else one["engine_mean"]
    std = one["test_std"] if one["engine_mean"] is None else one["engine_std"]
    return f"{mean:.{digits}f} ± {std:.{digits}f}"


def accuracy_table(results: Results) -> str:
    """Scores of float32, and of the integer engine for every variant."""
    content, rows = results["degree-quant-accuracy"], []
    for (name, model), runs in by_job(content).items():
        digits = 4 if runs["float32"]["metric"] == "mae" else 2
        shown = f"{name}, {MODELS[model]}" + (", MAE" if digits == 4 else "")
        counts = sorted({len(one["runs"]) for one in runs.values()})
        told_runs = "-".join(dict.fromkeys((str(counts[0]), str(counts[-1]))))
        rows.append([shown, told(runs["float32"], digits), *(told(runs.get(v), digits) for v in VARIANTS), told_runs])
    heads = ["set and model", "float32", "8 bits, calibrated", "8, Degree-Quant", "8, QAT", "4, Degree-Quant", "4, QAT",
             "runs"]  # fmt: skip
    return f"{table(heads, rows)}\n\n{where(content)}"


def published_table(results: Results) -> str:
    """Ours beside the paper's."""
    content, rows = results["degree-quant-accuracy"], []
    jobs = by_job(content)
    for job, theirs in PUBLISHED.items():
        if job not in jobs:
            continue
        ours = [told(jobs[job].get(variant), 1) for variant in theirs]
        rows.append([f"{job[0]}, {MODELS[job[1]]}", "ours", *ours])
        rows.append(["", "published", *theirs.values()])
    heads = ["set and model", "", "float32", "8 bits, QAT", "8, Degree-Quant", "4 bits, QAT", "4, Degree-Quant"]
    return f"{table(heads, rows, 2)}\n\n{where(content)}"


TABLES: dict[str, Callable[[Results], str]] = {
    "inference-models": models_table,
    "inference-summary": summary_table,
    "inference-calls": calls_table,
    "inference-serve": serve_table,
    "degree-quant-accuracy": accuracy_table,
    "degree-quant-published": published_table,
}


def plots(results: Results, folder: Path) -> None:
    """What eight and four bits cost, by set and model."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    jobs = {job: runs for job, runs in by_job(results["degree-quant-accuracy"]).items() if job[0][:4] != "zinc"}
    shades = {"calibrate 8": "#bdbdbd", "DQ8": "#08519c", "QAT8": "#6baed6", "DQ4": "#a63603", "QAT4": "#fdae6b"}
    labels = {"calibrate 8": "8 bits, calibrated", "DQ8": "8 bits, Degree-Quant", "QAT8": "8 bits, QAT",
              "DQ4": "4 bits, Degree-Quant", "QAT4": "4 bits, QAT"}  # fmt: skip
    figure, axes = plt.subplots(figsize=(9, 0.55 * len(jobs) + 1.4))
    for k, runs in enumerate(reversed(jobs.values())):
        for j, variant in enumerate(shades):
            difference = None if variant not in runs else paired_scores(runs["float32"], runs[variant])
            if difference is not None:
                at = k + 0.3 - 0.15 * j
                shown = max(difference[0], LOWEST)
                axes.errorbar(shown, at, xerr=difference[1], color=shades[variant], marker="o", capsize=2, markersize=5)
                if shown > difference[0]:
                    axes.text(shown + 0.3, at, f"{difference[0]:.0f}", va="center", fontsize=8, color="#525252")
    for variant, shade in shades.items():
        axes.plot([], [], color=shade, marker="o", markersize=5, label=labels[variant])
    axes.axvline(0, color="#737373", linewidth=1)
    axes.set_yticks(range(len(jobs)), [f"{name}, {MODELS[model]}" for name, model in reversed(jobs)], fontsize=9)
    axes.set_xlabel("test accuracy of the integer engine, minus float32, percentage points")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(fontsize=8, frameon=False, loc="center left", bbox_to_anchor=(1, 0.5))
    figure.tight_layout()
    figure.savefig(folder / "degree-quant-accuracy.png", dpi=130)
    plt.close(figure)


def paired_scores(exact: dict[str, Any], other: dict[str, Any]) -> tuple[float, float] | None:
    """The mean difference of runs that both have, and its standard error."""
    before, after = scores(exact), scores(other)
    both = sorted(before.keys() & after.keys())
    return paired({"tests": [before[run] for run in both]}, {"tests": [after[run] for run in both]}) if both else None
