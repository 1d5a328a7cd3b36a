"""Tables of training in int8, from results/train-int8.json and results/accuracy-int8.json."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from activation_tables import Results, accuracy_of, epochs_of, mean_difference, table

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


TABLES: dict[str, Callable[[Results], str]] = {"int8-summary": summary_table, "accuracy-int8": accuracy_table}
