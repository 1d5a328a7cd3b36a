"""Tables of training in int8, from results/train-int8.json, accuracy-int8.json and outlier-columns.json."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from activation_tables import NAMES, Results, accuracy_of, epochs_of, mean_difference, table, where

COLUMNS = {"pyg-edge-index": "PyG `edge_index`", "pyg-csr": "PyG CSR", "float32": "`float32`", "tango": "`tango`"}


def summary_table(results: Results) -> str:
    """The front page's: seconds of an epoch, tango's speed and peak against each of the others, and its accuracy."""
    content = results["train-int8"]
    rows = []
    for row in content["results"]:
        measured = {name: row["variants"][name] for name in COLUMNS if name in row["variants"]}
        seconds = [f"{measured[name]['seconds']:.2f}" if name in measured else "–" for name in COLUMNS]
        peak = f"{measured['tango']['peak_bytes'] / 1e6:,.0f}"
        faster, smaller = against(measured, "seconds"), against(measured, "peak_bytes")
        rows.append([row["model"], *seconds, faster, peak, smaller, accuracy(results, row["case"])])
    heads = ["model", *(f"{name}, s" for name in COLUMNS.values()), "`tango` is faster than"]
    heads += ["its peak, MB", "smaller than", "accuracy"]
    return f"{table(heads, rows)}\n\n{epochs_of(content)}"


def against(measured: dict[str, dict[str, Any]], key: str) -> str:
    """How many times less tango takes than each of the others."""
    ratios = {name: one[key] / measured["tango"][key] for name, one in measured.items() if name != "tango"}
    return ", ".join(f"{COLUMNS[name].removeprefix('PyG ')} **{ratio:.1f}x**" for name, ratio in ratios.items())


def accuracy(results: Results, model: str) -> str:
    """Test accuracy less that of float32 in points, mean over the sets on which this model was trained."""
    if "accuracy-int8" not in results:
        return "–"
    rows = [one for one in results["accuracy-int8"]["results"] if one["model"] == model]
    return mean_difference({"results": rows}, "tango")


def accuracy_table(results: Results) -> str:
    return accuracy_of(results["accuracy-int8"], "tango", ("feather", "tango-auto"))


def outlier_table(results: Results) -> str:
    """One row per model and kind of column, one cell per recipe."""
    content, jobs = results["outlier-columns"], {}
    for one in content["results"]:
        norm = "batch norm" if one["norm"] == "batch" else "no norm"
        model = f"{NAMES.get(one['model'], one['model'])}, {one['layers']} layers, {norm}"
        jobs.setdefault((model, one["column"]), {})[one["recipe"]] = one
    recipes = list(dict.fromkeys(one["recipe"] for one in content["results"]))
    heads = ["model", "column", *(f"`{name}`" for name in recipes)]
    rows = []
    for (model, column), job in jobs.items():
        means = [f"{job[name]['mean']:.1f}" if name in job else "–" for name in recipes]
        rows.append([model if not rows or all(row[0] != model for row in rows) else "", column, *means])
    seeds = max(len(one["tests"]) for one in content["results"])
    return f"{table(heads, rows, 2)}\n\nMean of {seeds} seeds. {where(content)}"


TABLES: dict[str, Callable[[Results], str]] = {
    "int8-summary": summary_table,
    "accuracy-int8": accuracy_table,
    "outlier-columns": outlier_table,
}
