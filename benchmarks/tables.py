"""Tables and plots from results/*.json; `python benchmarks/tables.py` writes those of the README and docs anew."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import activation_tables
import distributed_tables
import example_tables
import feature_tables
import inference_tables
import int8_tables
import rsc_tables
from harness import RESULTS, ROOT

IMAGES = ROOT / "docs" / "images"


class NotMeasured(KeyError):
    """A file of results that is not there."""


NOT_MEASURED = "*Not measured yet.*"
"""What stands in a page in place of a table whose results are still to come."""


class Results(Mapping[str, Any]):
    """The files in results/, by name, each read when it is asked for."""

    def __getitem__(self, name: str) -> Any:
        path = RESULTS / f"{name}.json"
        if not path.exists():
            raise NotMeasured(name)
        return json.loads(path.read_text())

    def __iter__(self) -> Iterator[str]:
        return (path.stem for path in sorted(RESULTS.glob("*.json")))

    def __len__(self) -> int:
        return len(list(iter(self)))


def describe(content: dict[str, Any]) -> str:
    m, g = content["machine"], content["graph"]
    how = f", {content['columns']} columns; best of {content['repeat']}" if "columns" in content else ""
    how = how or f"; best of {content['epochs']} epochs"
    return (
        f"{m['cpu']}, {m['threads']} threads, {m['isa']}; torch {m['torch']}, PyG {m['torch_geometric']}; graph "
        f"`{g['name']}` with {g['nodes']:,} nodes and {g['edges']:,} edges{how}; commit {m['commit']}."
    )


MADE = (
    activation_tables.TABLES
    | distributed_tables.TABLES
    | example_tables.TABLES
    | feature_tables.TABLES
    | inference_tables.TABLES
    | int8_tables.TABLES
    | rsc_tables.TABLES
)


def table(name: str) -> str:
    """The table of that name with what it was measured on: of results/NAME.json, unless another file here has it."""
    if name in MADE:
        return MADE[name](Results())
    content = Results()[name]
    rows = train_table(content) if name.startswith("train-") else ops_table(content)
    return f"{rows}\n\n{describe(content)}"


BASELINES = {"pyg-edge-index": "PyG `edge_index`", "pyg-csr": "PyG CSR"}


def train_table(content: dict[str, Any]) -> str:
    """One row per model and variant: time and peak against what PyG users have, and the time against our float32."""
    lines = [
        "| model | variant | s / epoch | times faster than | peak MB | times smaller than | kept MB |",
        "| --- | --- | ---: | --- | ---: | --- | ---: |",
    ]
    for row in content["results"]:
        measured = row["variants"]
        for k, (name, one) in enumerate(measured.items()):
            ours = name not in BASELINES
            cells = [row["model"] if k == 0 else "", f"**{name}**" if ours else BASELINES[name], seconds_of(one)]
            for key in ("seconds", "peak_bytes"):
                ratios = [f"{BASELINES[b]} **{ratio(measured[b], one, key)}**" for b in BASELINES if b in measured]
                if key == "seconds" and name != "float32" and "float32" in measured:
                    ratios.append(f"float32 **{ratio(measured['float32'], one, key)}**")
                cells += [", ".join(ratios) if ours else ""] + (
                    [megabytes(one["peak_bytes"])] if key == "seconds" else []
                )
            lines.append(f"| {' | '.join([*cells, megabytes(one['kept_bytes'])])} |")
    return "\n".join(lines)


def seconds_of(one: dict[str, Any]) -> str:
    return f"{one['seconds']:.2f}" if one["seconds"] >= 0.1 else f"{one['seconds']:.4f}"


def ratio(baseline: dict[str, Any], one: dict[str, Any], key: str) -> str:
    return f"{baseline[key] / one[key]:.1f}x"


def megabytes(count: int) -> str:
    return f"{count / 1e6:,.0f}" if count >= 10e6 else f"{count / 1e6:.1f}"


def ops_table(content: dict[str, Any]) -> str:
    """One row per op: how many times faster than each baseline, and the share of the copy bandwidth reached."""
    lines = [
        "| op | ms | times faster than | of copying float32 x | bandwidth / copy's |",
        "| --- | ---: | --- | ---: | ---: |",
    ]
    copy_bytes = 2 * 4 * content["graph"]["nodes"] * content["columns"]
    for row in content["results"]:
        seconds, ratios = row["seconds"], row["times_faster_than"]
        against = ", ".join(f"{name} **{ratio:.1f}x**" for name, ratio in ratios.items() if name != "copy") or "–"
        share = (row["bytes_moved"] / seconds["ours"]) / (copy_bytes / seconds["copy"])
        of_copy = f"{ratios['copy']:.2f}x"
        lines.append(f"| {row['op']} | {seconds['ours'] * 1e3:.1f} | {against} | {of_copy} | {share:.2f} |")
    return "\n".join(lines)


def ops_plot(content: dict[str, Any], path: Path) -> None:
    """Horizontal bars on a logarithmic axis: times faster than the best and the worst baseline of each op."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    rows = [r for r in content["results"] if len(r["times_faster_than"]) > 1][::-1]
    figure, axes = plt.subplots(figsize=(9, 0.42 * len(rows) + 1.3))
    for k, row in enumerate(rows):
        ratios = {name: ratio for name, ratio in row["times_faster_than"].items() if name != "copy"}
        low, high = min(ratios, key=ratios.__getitem__), max(ratios, key=ratios.__getitem__)
        axes.plot([ratios[low], ratios[high]], [k, k], color="#9ecae1", linewidth=5, solid_capstyle="round", zorder=1)
        axes.scatter(list(ratios.values()), [k] * len(ratios), color="#08519c", s=28, zorder=2)
        axes.annotate(
            f"{ratios[high]:.1f}x {high}", (ratios[high], k), xytext=(7, -3), textcoords="offset points", fontsize=7.5
        )
    axes.set_yticks(range(len(rows)), [r["op"] for r in rows], fontsize=8.5)
    axes.set_xscale("log")
    axes.set_xlim(left=min(0.9, axes.get_xlim()[0]), right=axes.get_xlim()[1] * 4)
    axes.xaxis.set_major_formatter("{x:g}x")
    axes.axvline(1.0, color="#cb181d", linewidth=1)
    axes.set_xlabel("times faster than what PyG users have today (1 = equal)")
    axes.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    figure.savefig(path, dpi=150)
    plt.close(figure)


def train_plot(content: dict[str, Any], path: Path) -> None:
    """Bars: seconds per epoch and peak memory of every model; PyG grey, ours blue with the ratio to the better PyG.

    Without PyG, to our float32.
    """
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    rows = content["results"][::-1]
    bars = sum(len(row["variants"]) for row in rows)
    figure, panels = plt.subplots(1, 2, figsize=(11, bars * 0.27 + 1.2), sharey=True)
    shades = {"pyg-edge-index": "#bdbdbd", "pyg-csr": "#737373"}
    for axes, key, title in zip(
        panels, ("seconds", "peak_bytes"), ("seconds per epoch", "peak memory, GB"), strict=True
    ):
        for k, row in enumerate(rows):
            compared = [name for name in shades if name in row["variants"]] or ["float32"]
            best = min(row["variants"][name][key] for name in compared)
            blues = itertools.cycle(("#08519c", "#3182bd", "#6baed6", "#9ecae1", "#c6dbef"))
            for j, (name, one) in enumerate(row["variants"].items()):
                value = one[key] / (1e9 if key == "peak_bytes" else 1)
                height = 0.78 / len(row["variants"])
                at = k + 0.39 - height * (j + 0.5)
                color = shades.get(name) or next(blues)
                label = BASELINES.get(name, name).replace("`", "")
                axes.barh(at, value, 0.92 * height, color=color, label=label if k == 0 else None)
                if name not in shades:
                    note = f" {best / one[key]:.1f}x"
                    axes.text(value, at, note, va="center", fontsize=8, color="#08519c", fontweight="bold")
        axes.set_xlabel(title)
        axes.spines[["top", "right"]].set_visible(False)
    panels[0].set_yticks(range(len(rows)), [row["model"] for row in rows], fontsize=9)
    panels[1].legend(fontsize=8, frameon=False, loc="lower right")
    figure.tight_layout()
    figure.savefig(path, dpi=150)
    plt.close(figure)


def pages() -> list[Path]:
    """The pages that hold tables."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def update_pages() -> None:
    """Replace what stands between `<!-- table: NAME -->` and `<!-- end -->` by the table of that name.

    A table whose results are not there stays as it is, and is told.
    """

    def fill(match: re.Match[str]) -> str:
        try:
            return f"<!-- table: {match[1]} -->\n{table(match[1])}\n<!-- end -->"
        except NotMeasured as missing:
            print(f"Left as it is: the table {match[1]}, as {RESULTS / missing.args[0]}.json is not there")
            return match[0]

    for page in pages():
        page.write_text(re.sub(r"<!-- table: ([\w-]+) -->.*?<!-- end -->", fill, page.read_text(), flags=re.DOTALL))


if __name__ == "__main__":
    update_pages()
    shown = "".join(page.read_text() for page in pages())
    for plot, pattern in ((ops_plot, "ops-*.json"), (train_plot, "train-*.json")):
        for results in RESULTS.glob(pattern):
            if f"images/{results.stem}.png" in shown:
                plot(json.loads(results.read_text()), IMAGES / f"{results.stem}.png")
    activation_tables.curve_plot(Results(), IMAGES / "activations-curve.png")
    feature_tables.plots(Results(), IMAGES)
    inference_tables.plots(Results(), IMAGES)
    rsc_tables.plots(Results(), IMAGES)
