"""Tables and the plot of activations in few bits, from results/activations.json and results/accuracy.json."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

MIB = 2**20
Results = Mapping[str, Any]
"""The files in results/, by name."""


def where(measured: dict[str, Any]) -> str:
    m = measured["machine"]
    threads = f"{m['threads']} thread{'s' * (m['threads'] != 1)}"
    versions = f"torch {m['torch']}, PyG {m['torch_geometric']}"
    return f"{m['cpu']}, {threads}, {m['isa']}; {versions}; commit {m['commit']}."


def table(heads: list[str], rows: list[list[str]], numbers_from: int = 1) -> str:
    rule = ["---" if k < numbers_from else "---:" for k in range(len(heads))]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (heads, rule, *rows))


def times(before: float, after: float) -> str:
    ratio = before / after
    return f"{ratio:.0f}x" if ratio >= 9.95 else f"{ratio:.1f}x"


# Bytes ----------------------------------------------------------------------------------------------------------


def bytes_table(results: Results) -> str:
    """Kept for backward and the peak, in units of 2^20 bytes as the published figures are."""
    measured = results["activations"]["bytes"]
    found = {one["name"]: one for one in measured["results"]}
    whole, rows = found["float32"], []
    for one in found.values():
        logged = "" if one["logged_mb"] is None else f"{one['logged_mb']:.1f}"
        kept, peak = one["kept_bytes"], one["peak_bytes"]
        cells = [f"{kept / MIB:,.1f}", times(whole["kept_bytes"], kept), logged]
        rows.append([one["label"], *cells, f"{peak / MIB:,.0f}", times(whole["peak_bytes"], peak)])
    heads = ["", "kept MiB", "against `float32`", "logged by the published code", "peak MiB", "against `float32`"]
    graph = f"Graph `arxiv-like` with {whole['nodes']:,} nodes and {whole['edges']:,} edges; {where(measured)}"
    return f"{table(heads, rows)}\n\n{graph}"


# Epochs ---------------------------------------------------------------------------------------------------------

EPOCHS = ("train-int8", "train-int8-avx2")
LABELS = {"pyg-edge-index": "PyG `edge_index`", "pyg-csr": "PyG CSR", "float32": "`float32`"}


def epochs_table(results: Results) -> str:
    """Time and memory of whole epochs in two bits, on each processor that measured them."""
    heads = ["model", "processor", *TIMES, "kept MB", "peak MB", "its peak is smaller than that of"]
    rows, facts = [], []
    for content in (results[name] for name in EPOCHS):
        for row in (row for row in content["results"] if "exact-int2" in row["variants"]):
            few, others = row["variants"]["exact-int2"], row["variants"]
            peaks = {b: others[b]["peak_bytes"] / few["peak_bytes"] for b in LABELS if b in others}
            smaller = ", ".join(f"{LABELS[b]} **{ratio:.1f}x**" for b, ratio in peaks.items())
            memory = [f"{few[key] / 1e6:,.0f}" for key in ("kept_bytes", "peak_bytes")]
            rows.append([row["model"], content["machine"]["isa"], *seconds_of(row), *memory, smaller])
        facts.append(epochs_of(content))
    return "\n\n".join([table(heads, rows, numbers_from=2), *facts])


def times_table(results: Results) -> str:
    """The times alone, of a longer run without PyG."""
    content = results["train-few-bits"]
    rows = [[row["model"], *seconds_of(row)] for row in content["results"]]
    return f"{table(['model', *TIMES], rows)}\n\n{epochs_of(content)}"


TIMES = ["`float32`, s / epoch", "`exact-int2`, s / epoch", "time / `float32`'s"]


def seconds_of(row: dict[str, Any]) -> list[str]:
    """The cells of `TIMES`."""
    whole, few = (row["variants"][name]["seconds"] for name in ("float32", "exact-int2"))
    return [f"{whole:.2f}", f"{few:.2f}", f"{few / whole:.2f}"]


def epochs_of(content: dict[str, Any]) -> str:
    graph = content["graph"]
    size = f"{graph['nodes']:,} nodes and {graph['edges']:,} edges"
    return f"Graph `{graph['name']}` with {size}, best of {content['epochs']} epochs; {where(content)}"


SUMMARY = ("float32", "exact-int8", "exact-int4", "exact-int2", "exact-int2-published")


def summary_table(results: Results) -> str:
    """The front page's: bytes of the first table, accuracies of the second."""
    measured = results["activations"]["bytes"]
    found = {one["name"]: one for one in measured["results"]}
    base, rows = found["pyg"], []
    for name in ("pyg", *SUMMARY):
        one, cells = found[name], ["PyG `edge_index`" if name == "pyg" else f"`{name}`"]
        for key in ("kept_bytes", "peak_bytes"):
            less = "" if one is base else f"**{times(base[key], one[key])}**"
            cells += [f"{one[key] / 1e6:,.0f}", less]
        rows.append([*cells, "" if one is base else mean_difference(results["accuracy"], name)])
    heads = ["", "kept MB", "times less", "peak MB", "times less", "accuracy"]
    return f"{table(heads, rows)}\n\n{where(measured)}"


def mean_difference(content: dict[str, Any], recipe: str) -> str:
    """Test accuracy less that of float32, mean over data sets and models that have both."""
    runs = by_job(content)
    differences = [paired(job["float32"], job[recipe])[0] for job in runs.values() if {"float32", recipe} <= job.keys()]
    if recipe == "float32" or not differences:
        return "0" if differences else "–"
    some = "" if len(differences) == len(runs) else f" ({len(differences)} of {len(runs)} cases)"
    return f"{statistics.fmean(differences):+.2f}{some}"


# Accuracy -------------------------------------------------------------------------------------------------------

NAMES = {"gcn": "GCN", "sage": "GraphSAGE", "gin": "GIN", "gat": "GAT"}
Runs = dict[str, Any]


def by_job(content: dict[str, Any]) -> dict[tuple[str, str], dict[str, Runs]]:
    """The runs of each set and model, by recipe; sets in the order in which they were begun."""
    jobs: dict[tuple[str, str], dict[str, Runs]] = {}
    sets = list(dict.fromkeys(one["set"] for one in content["results"]))
    for one in sorted(content["results"], key=lambda one: sets.index(one["set"])):
        jobs.setdefault((one["set"], one["model"]), {})[one["recipe"]] = one
    return jobs


def paired(before: Runs, after: Runs) -> tuple[float, float]:
    """Mean difference over seeds, which share weights and masks, and its standard error."""
    both = [b - a for a, b in zip(before["tests"], after["tests"], strict=True)]
    return statistics.fmean(both), statistics.stdev(both) / math.sqrt(len(both)) if len(both) > 1 else 0.0


SCORES = {"tolokers": "ROC AUC"}
"""What is measured where it is not accuracy (benchmarks/accuracy.py, `evaluate`)."""


def accuracy_table(results: Results) -> str:
    return accuracy_of(results["accuracy"], "exact-int2", SUMMARY)


def accuracy_of(content: dict[str, Any], recipe: str, also: Sequence[str]) -> str:
    """One row per set and model: float32, `recipe`, their difference with its standard error, and `also` what there is.

    A set that is scored otherwise than by accuracy says so.
    """
    jobs = by_job(content)
    present = {name for job in jobs.values() for name in job}
    others = [name for name in also if name in present and name not in ("float32", recipe)]
    heads = ["set", "model", "`float32`", f"`{recipe}`", "difference", *(f"`{name}`" for name in others), "seeds"]
    rows = []
    for (name, model), job in jobs.items():
        cells = [spread_of(job.get(one)) for one in ("float32", recipe)]
        difference = "–"
        if {"float32", recipe} <= job.keys():
            mean, error = paired(job["float32"], job[recipe])
            difference = f"{mean:+.2f} ± {error:.2f}"
        cells += [difference, *(spread_of(job.get(one)) for one in others)]
        label = f"`{name}`, {SCORES[name]}" if name in SCORES else f"`{name}`"
        rows.append([label, NAMES.get(model, model), *cells, str(next(iter(job.values()))["seeds"])])
    epochs = [str(count) for count in sorted({one["epochs"] for one in content["results"]})]
    told = " or ".join(filter(None, [", ".join(epochs[:-1]), epochs[-1]]))
    return f"{table(heads, rows, 2)}\n\n{told} epochs. {where(content)}"


def spread_of(one: Runs | None) -> str:
    return "–" if one is None else f"{one['mean']:.2f} ± {one['std']:.2f}"


# Curve ----------------------------------------------------------------------------------------------------------


def curve_table(results: Results) -> str:
    measured = results["activations"]["curve"]
    whole, rows = measured["results"][0], []
    for one in measured["results"]:
        accuracy = f"{one['accuracy']:.2f} ± {one['accuracy_std']:.2f}"
        kept = f"{one['kept_bytes'] / 1e6:,.1f} ({times(whole['kept_bytes'], one['kept_bytes'])} less)"
        first = [str(one["bits"]), f"{one['block']:,}"] if one["block"] else ["`float32`", ""]
        against = "{:+.2f} ± {:.2f}".format(*paired(whole, one)) if one["block"] else ""
        kept = kept if one["block"] else kept.split(" (")[0]
        rows.append([*first, accuracy, against, kept, f"{one['of_float32']:.2f}"])
    heads = ["bits", "block", "accuracy", "difference", "kept MB", "time / `float32`'s"]
    graph = measured["graph"]
    told = f"{measured['seeds']} seeds, {measured['epochs']} epochs on `{measured['set']}`; bytes and times of a GCN "
    told += f"3x256 on `{graph['name']}` with {graph['nodes']:,} nodes and {graph['edges']:,} edges."
    return f"{table(heads, rows)}\n\n{told} {where(measured)}"


def curve_plot(results: Results, path: Path) -> None:
    """Accuracy, kept bytes and time against bits, a line per block length; float32 grey."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    from matplotlib.ticker import LogLocator, NullLocator

    measured = results["activations"]["curve"]
    whole, *rest = measured["results"]
    figure, panels = plt.subplots(1, 3, figsize=(12, 3.8))
    titles = (f"test accuracy on {measured['set']}, %", "kept for backward, MB", "seconds per epoch / float32's")
    keys, scales = ("accuracy", "kept_bytes", "of_float32"), (1, 1e6, 1)
    shades = ("#9ecae1", "#3182bd", "#08306b")
    for axes, key, scale, title in zip(panels, keys, scales, titles, strict=True):
        for k, (block, shade) in enumerate(zip(sorted({one["block"] for one in rest}), shades, strict=True)):
            line = [one for one in rest if one["block"] == block]
            bits = [one["bits"] * 1.05 ** (k - 1) for one in line]  # side by side, so that bars of spread are seen
            values = [one[key] / scale for one in line]
            spread = [one["accuracy_std"] for one in line] if key == "accuracy" else None
            axes.errorbar(bits, values, spread, color=shade, marker="o", capsize=2, label=f"blocks of {block:,}")
        axes.axhline(whole[key] / scale, color="#737373", linestyle="--", label="float32")
        axes.set_xscale("log", base=2)
        axes.set_xticks([1, 2, 4, 8], ["1", "2", "4", "8"])
        axes.set_xlabel("bits per element")
        axes.set_title(title, fontsize=10)
        axes.spines[["top", "right"]].set_visible(False)
    panels[1].set_yscale("log")
    panels[1].yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    panels[1].yaxis.set_major_formatter("{x:g}")
    panels[1].yaxis.set_minor_locator(NullLocator())
    panels[2].set_ylim(bottom=0)
    panels[2].legend(fontsize=8, frameon=False, loc="lower right")
    figure.tight_layout()
    figure.savefig(path, dpi=150)
    plt.close(figure)


# Improvements ---------------------------------------------------------------------------------------------------


def improvements_table(results: Results) -> str:
    measured = results["activations"]["improvements"]
    rows, last = [], ""
    for one in measured["results"]:
        what, last = ("" if one["what"] == last else one["what"]), one["what"]
        least = one.get("resolution")
        ours = f"< {figure_of(2 * least)}" if least and one["ours"] < 2 * least else figure_of(one["ours"])
        rows.append([what, one["measured"], figure_of(one["published"]), ours, one["unit"]])
    heads = ["improvement", "measured", "published form", "ours", "unit"]
    return f"{table(heads, rows, 2)}\n\n{where(measured)}"


def figure_of(value: float) -> str:
    """Three significant digits, or two below one."""
    digits = max(0, (2 if value >= 1 else 1) - math.floor(math.log10(value))) if value > 0 else 0
    return f"{value:,.{digits}f}"


TABLES: dict[str, Callable[[Results], str]] = {
    "activations-summary": summary_table,
    "activations-bytes": bytes_table,
    "train-activations": epochs_table,
    "train-few-bits": times_table,
    "activations-curve": curve_table,
    "activations-improvements": improvements_table,
    "accuracy": accuracy_table,
}
