"""Tables and plots of RSC (docs/rsc.md), from results/rsc-*.json."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from activation_tables import paired, table, where

Results = Mapping[str, Any]
NAMES = {"gcn": "GCN 3x256", "sage": "GraphSAGE 3x256", "gin": "GIN 3x256", "gcn-small": "GCN 2x128, no norm"}
KINDS = {"density": "best rows by density", "score": "best rows by score", "sampled": "sampled, unbiased"}


def products_table(results: Results) -> str:
    content, rows = results["rsc-products"], []
    for one in content["results"]:
        for k, (kind, s) in enumerate(one["seconds"].items()):
            first = f"`{one['graph']}`, {one['rows_kept'] / one['nodes']:.0%} of the rows" if k == 0 else ""
            drawn = [f"{1e3 * s[name]:.1f}" for name in ("score", "selection", "allocation", "compaction")]
            speeds = [f"{s['exact'] / s[name]:.1f}x" for name in ("compacted", "spread", "write")]
            whole = [f"{1e3 * s[name]:.1f}" for name in ("exact", "masked", "compacted")]
            rows.append([first, kind, *whole, *drawn, speeds[0], f"**{speeds[1]}**", speeds[2]])
    heads = ["graph", "rows", "exact", "masked", "compacted", "score", "selection", "allocation", "compaction"]
    heads += ["faster", "all in all", "if only the result were written"]
    return f"{table(heads, rows, 2)}\n\nMilliseconds, best of several. {where(content)}"


def epochs_table(results: Results) -> str:
    content, rows = results["rsc-epochs"], []
    for one in content["results"]:
        seconds, model = one["seconds"], NAMES[one["model"]]
        degree = f"`{one['graph']}`, mean degree {one['edges'] / one['nodes']:.0f}"
        compute = {"Float32": "float32", "Int8": "int8"}[one["compute"]]
        times = [f"{seconds[name]:.3f}" for name in ("exact", "nonzero", "rsc", "recipe")]
        gains = [f"{one['share']:.1%}", f"{one['bound']:.2f}x", f"**{one['gain']:.2f}x**", f"{one['reached']:.0%}"]
        gains.append(f"**{one['recipe_gain']:.2f}x**")
        rows.append([degree, f"{model}, {compute}", *times, *gains])
    heads = ["graph", "model", "exact, s", "`NonzeroRows`, s", f"budget {content['budget']:g}, s", "recipe `rsc`, s"]
    heads += ["backward products", "bound", "gain", "of what can be saved", "gain of the recipe"]
    return f"{table(heads, rows, 2)}\n\nMean epoch without the slowest fifth, taking turns. {where(content)}"


def degrees_table(results: Results) -> str:
    content = results["rsc-degrees"]
    rows = [
        [f"{one['degree']:.0f}", f"{one['share']:.1%}", f"{one['bound']:.2f}x", f"**{one['gain']:.2f}x**"]
        for one in content["results"]
    ]
    heads = ["mean degree", "backward products, share of an epoch", "bound", "gain"]
    return f"{table(heads, rows, 0)}\n\n{where(content)}"


def by_job(content: dict[str, Any]) -> dict[tuple[str, str], dict[str, Any]]:
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for one in content["results"]:
        found.setdefault((one["set"], one["model"]), {})[one["variant"]] = one
    return found


def accuracy_table(results: Results) -> str:
    """The exact score, and each variant's difference to it with its standard error; seeds share weights and masks."""
    content, rows = results["rsc-accuracy"], []
    jobs = by_job(content)
    names = list(dict.fromkeys(v for runs in jobs.values() for v in runs if v != "exact"))
    names.sort(key=lambda v: (list(KINDS).index(v.split()[0]), float(v.split()[1])))
    for (name, model), runs in jobs.items():
        exact = runs["exact"]
        cells = [
            f"{name}, {model.upper() if model == 'gcn' else 'GraphSAGE'}",
            f"{exact['mean']:.2f} ± {exact['std']:.2f}",
        ]
        for variant in names:
            difference = paired(exact, runs[variant]) if variant in runs else None
            cells.append("–" if difference is None else f"{difference[0]:+.2f} ± {difference[1]:.2f}")
        rows.append(cells)
    heads = ["set and model", "exact", *names]
    seeds = sorted({one["seeds"] for one in content["results"]})
    epochs = sorted({one["epochs"] for one in content["results"]})
    told = (
        f"{' or '.join(map(str, seeds))} seeds, {' or '.join(map(str, epochs))} epochs, layers of {content['width']}."
    )
    return f"{table(heads, rows)}\n\n{told} {where(content)}"


TABLES: dict[str, Callable[[Results], str]] = {
    "rsc-products": products_table,
    "rsc-epochs": epochs_table,
    "rsc-degrees": degrees_table,
    "rsc-accuracy": accuracy_table,
}


def plots(results: Results, folder: Path) -> None:
    """Those whose results are there."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    for name, draw in (("rsc-accuracy", draw_accuracy), ("rsc-degrees", draw_degrees), ("rsc-noise", draw_noise)):
        if name in results:
            figure = draw(results[name], plt)
            figure.tight_layout()
            figure.savefig(folder / f"{name}.png", dpi=150)
            plt.close(figure)


SHADES = {"density": "#08519c", "score": "#6baed6", "sampled": "#d95f0e"}


def draw_accuracy(content: dict[str, Any], plt: Any) -> Any:
    """Test accuracy against the budget, a panel per set and model that has several budgets."""
    jobs = {job: runs for job, runs in by_job(content).items() if len(runs) > 4}
    figure, panels = plt.subplots(1, len(jobs), figsize=(4 * len(jobs), 3.6), squeeze=False)
    for axes, ((name, model), runs) in zip(panels[0], jobs.items(), strict=True):
        exact = runs["exact"]
        axes.axhspan(exact["mean"] - exact["std"], exact["mean"] + exact["std"], color="#e0e0e0")
        axes.axhline(exact["mean"], color="#737373", linestyle="--", label="exact")
        for k, kind in enumerate(KINDS):
            line = sorted((float(v.split()[1]), one) for v, one in runs.items() if v.startswith(kind))
            at = [budget * 1.04 ** (k - 1) for budget, _ in line]
            spread = [one["std"] for _, one in line]
            axes.errorbar(at, [one["mean"] for _, one in line], spread, color=SHADES[kind], marker="o", capsize=2,
                          label=KINDS[kind])  # fmt: skip
        ticks = sorted({float(v.split()[1]) for v in runs if v != "exact"})
        axes.set_xscale("log")
        axes.set_xticks(ticks, [f"{t:g}" for t in ticks])
        axes.minorticks_off()
        axes.set_xlabel("budget: share of the backward products' work")
        axes.set_title(f"test accuracy on {name}, {model}, %", fontsize=10)
        axes.spines[["top", "right"]].set_visible(False)
    panels[0][-1].legend(fontsize=8, frameon=False)
    return figure


def draw_degrees(content: dict[str, Any], plt: Any) -> Any:
    figure, axes = plt.subplots(figsize=(5.5, 3.6))
    rows = content["results"]
    degrees = [one["degree"] for one in rows]
    axes.plot(degrees, [one["bound"] for one in rows], color="#737373", linestyle="--", marker="o", label="bound")
    axes.plot(degrees, [one["gain"] for one in rows], color="#08519c", marker="o", label="measured")
    axes.set_xscale("log")
    axes.set_xticks(degrees, [f"{d:.0f}" for d in degrees])
    axes.minorticks_off()
    axes.set_ylim(bottom=1)
    axes.set_xlabel("mean degree")
    axes.set_title(f"epoch of GCN 3x256: times faster at budget {content['budget']:g}", fontsize=10)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=8)
    return figure


def draw_noise(content: dict[str, Any], plt: Any) -> Any:
    figure, panels = plt.subplots(1, 2, figsize=(9, 3.6), sharey=True)
    for axes, key, title in zip(panels, ("bias", "deviation"), ("bias", "standard deviation"), strict=True):
        for kind in KINDS:
            line = [one for one in content["results"] if one["variant"] == kind]
            axes.plot([one["budget"] for one in line], [one[key] for one in line], color=SHADES[kind], marker="o",
                      label=KINDS[kind])  # fmt: skip
        ticks = sorted({one["budget"] for one in content["results"]})
        axes.set_xscale("log")
        axes.set_xticks(ticks, [f"{t:g}" for t in ticks])
        axes.minorticks_off()
        axes.set_xlabel("budget")
        axes.set_title(f"{title} of the first weight's gradient, relative", fontsize=10)
        axes.spines[["top", "right"]].set_visible(False)
    panels[0].legend(frameon=False, fontsize=8)
    return figure
