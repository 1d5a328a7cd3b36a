"""Tables and plots from results/*.json; `python benchmarks/tables.py` writes the README's tables anew."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from harness import RESULTS, ROOT


def describe(content: dict[str, Any]) -> str:
    m, g = content["machine"], content["graph"]
    return (
        f"{m['cpu']}, {m['threads']} threads, {m['isa']}; torch {m['torch']}, PyG {m['torch_geometric']}; graph "
        f"`{g['name']}` with {g['nodes']:,} nodes and {g['edges']:,} edges, {content['columns']} columns; best of "
        f"{content['repeat']}; commit {m['commit']}."
    )


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


def update_readme() -> None:
    """Replace what stands between `<!-- table: NAME -->` and `<!-- end -->` by the table of results/NAME.json."""
    readme = ROOT / "README.md"
    text = readme.read_text()

    def fill(match: re.Match[str]) -> str:
        content = json.loads((RESULTS / f"{match[1]}.json").read_text())
        return f"<!-- table: {match[1]} -->\n{ops_table(content)}\n\n{describe(content)}\n<!-- end -->"

    readme.write_text(re.sub(r"<!-- table: ([\w-]+) -->.*?<!-- end -->", fill, text, flags=re.DOTALL))


if __name__ == "__main__":
    update_readme()
    for results in RESULTS.glob("ops-*.json"):
        ops_plot(json.loads(results.read_text()), results.with_suffix(".png"))
