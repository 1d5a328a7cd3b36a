"""Tables and plots of compressed features and mini-batches (docs/features.md), from results/*.json."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from activation_tables import paired, table, where

Results = Mapping[str, Any]
LINE = ("float32", "8 bits", "4 bits", "2 bits", "1 bit")
MARKS = {"product": "s", "principal": "^", "2 bits optimal": "D"}
"""How plots show codecs: some as a line, those whose names begin so by a mark each."""
MODELS = {"sage": "GraphSAGE", "gcn": "GCN", "mlp": "MLP (control)"}


def by_job(content: dict[str, Any]) -> dict[tuple[str, str], dict[str, Any]]:
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for one in content["results"]:
        found.setdefault((one["set"], one["model"]), {})[one["codec"]] = one
    return found


def accuracy_table(results: Results) -> str:
    """The score in float32, and each codec's difference to it with its standard error, and its stored ratio."""
    content, rows = results["features-accuracy"], []
    codecs = list(dict.fromkeys(one["codec"] for one in content["results"] if one["codec"] != "float32"))
    for (name, model), runs in by_job(content).items():
        exact = runs["float32"]
        cells = [f"{name}, {MODELS[model]}", f"{exact['mean']:.2f} ± {exact['std']:.2f}"]
        for codec in codecs:
            difference = paired(exact, runs[codec]) if codec in runs else None
            told = "–" if difference is None else f"{difference[0]:+.2f} ± {difference[1]:.2f}"
            cells.append(told if difference is None else f"{told} ({runs[codec]['ratio']:.0f}x)")
        rows.append(cells)
    seeds = sorted({one["seeds"] for one in content["results"]})
    told = f"{' or '.join(map(str, seeds))} seeds, layers of {content['width']}; in parentheses the stored ratio."
    return f"{table(['set and model', 'float32', *codecs], rows)}\n\n{told} {where(content)}"


def epochs_table(results: Results) -> str:
    content, rows = results["minibatch-epochs"], []
    for one in content["results"]:
        parts = [f"{1e3 * one['parts'][name]:.1f}" for name in ("sample", "gather", "forward", "backward")]
        faster = "" if one["variant"].startswith("PyG") else f"**{one['times_faster']:.1f}x**"
        per_batch = f"{1e3 * one['seconds'] / content['batches']:.0f}"
        rows.append([one["variant"], f"{one['feature_bytes'] / 1e6:.1f}", per_batch, faster, *parts])
    heads = ["variant", "features, MB", "ms a batch", "faster than PyG", "sample", "gather", "forward", "backward"]
    told = (
        f"GraphSAGE 3x{content['width']}, fan-outs {'-'.join(map(str, content['fanouts']))}, {content['batch_size']} "
        f"seeds, graph `{content['graph']}`; best epoch of {content['batches']} batches, sampling and gathering "
        "included. The last four columns are milliseconds of its parts."
    )
    return f"{table(heads, rows)}\n\n{told} {where(content)}"


def gather_table(results: Results) -> str:
    content, rows = results["features-gather"], []
    for one in content["results"]:
        seconds, floats = one["seconds"], 4 * one["rows"] * one["columns"]
        for k, (codec, size) in enumerate(one["bytes"].items()):
            speeds = [f"{seconds[name] / seconds[codec]:.1f}x" for name in ("x[ids] float32", "x[ids] float16")]
            reused = f"{seconds['float32, result reused'] / seconds[codec]:.1f}x"
            first = f"{one['rows']:,} x {one['columns']}" if k == 0 else ""
            rows.append([first, f"`{codec}`", f"{floats / size:.1f}x", f"**{speeds[0]}**", speeds[1], reused])
    heads = ["features", "codec", "stored ratio", "against `x[ids]`, float32", "float16", "float32, result reused"]
    told = f"Rows per second of {content['results'][0]['ids']:,} random rows, decoded to float32."
    return f"{table(heads, rows, 2)}\n\n{told} {where(content)}"


def scale_table(results: Results) -> str:
    content, rows = results["minibatch-scale"], []
    for one in content["results"]:
        millions = one["nodes"] / 1e6
        cells = [f"{millions:.0f} M", f"{one['edges'] / 1e6:.0f} M"]
        for part in ("compress", "tango"):
            cells += [seconds_of(one[part]), f"{one[part]['peak_bytes'] / 1e9:.2f}"]
        rows.append([*cells, f"{one['compress']['bytes'] / 1e6:.0f}"])
    heads = ["nodes", "edges", "compress to 1 bit, s", "peak GB", "epoch of 200,000 seeds, s", "peak GB", "codes, MB"]
    return (
        f"{table(heads, rows, 0)}\n\nGraphSAGE 3x{content['width']} under `tango`. The peak of "
        "compression is above what the imports take, that of the epoch is all of the process. "
        f"{where(content)}"
    )


def seconds_of(run: dict[str, Any]) -> str:
    return f"{run.get('seconds', run['total_seconds']):.0f}"


def sampling_table(results: Results) -> str:
    content = results["sampling"]
    ours, dgl = content["gossamer"], content["dgl"]
    rows = [["`gs.NeighborSampler`", rate(ours), f"{1e3 * ours['seconds_per_batch']:.1f}"]]
    for name, one in dgl.items():
        if isinstance(one, dict) and 2 * one["edges_per_batch"] > ours["edges_per_batch"]:  # one kind draws a part
            rows.append([f"DGL {dgl['version']}, {name}", rate(one), f"{1e3 * one['seconds_per_batch']:.1f}"])
    graph = content["graph"]
    told = (
        f"Fan-outs {'-'.join(map(str, content['fanouts']))}, {content['batch_size']} seeds, {graph['nodes']:,} nodes, "
        f"{graph['edges']:,} edges; ours samples {content['ratio_edges_per_second']:.1f} times as many edges a second "
        "as the fastest of DGL's. DGL draws a node's edges anew in every layer, so its batches have more of them; its "
        "fused sampler with int32 ids drew only a part of the edges here and is left out."
    )
    return f"{table(['sampler', 'million edges a second', 'ms a batch'], rows)}\n\n{told} {where(content)}"


def rate(one: dict[str, Any]) -> str:
    return f"{one['edges_per_second'] / 1e6:.1f}"


def mapped_table(results: Results) -> str:
    content = results["minibatch-mapped"]
    slow = next(one for one in content["results"] if one["features"] == "float32")["seconds_per_batch"]
    rows = [
        [
            {"codes": "1 bit, mapped", "float32": "float32, mapped"}[one["features"]],
            f"{1e3 * one['seconds_per_batch']:.0f}",
            f"{slow / one['seconds_per_batch']:.1f}x",
        ]
        for one in content["results"]
    ]
    told = (
        f"{content['nodes'] / 1e6:.0f} M nodes with 128 features, {content['float32_bytes'] / 1e9:.1f} GB in float32, "
        f"in a process that may use {content['limit_bytes'] / 2**30:g} GB, page cache included."
    )
    return f"{table(['features', 'ms a batch', 'faster'], rows)}\n\n{told} {where(content)}"


TABLES: dict[str, Callable[[Results], str]] = {
    "features-accuracy": accuracy_table,
    "features-gather": gather_table,
    "minibatch-epochs": epochs_table,
    "minibatch-scale": scale_table,
    "minibatch-mapped": mapped_table,
    "sampling": sampling_table,
}


def plots(results: Results, folder: Path) -> None:
    """What has been measured: accuracy, and time and memory, against the stored ratio."""
    import matplotlib

    matplotlib.use("Agg")
    if "features-accuracy" in results:
        accuracy_plot(results, folder / "features-accuracy.png")
    if {"features-gather", "minibatch-scale"} <= results.keys():
        speed_plot(results, folder / "features-speed.png")


def speed_plot(results: Results, path: Path) -> None:
    """Time of a gather against the stored ratio, and peak memory against the number of nodes."""
    import matplotlib.pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(9.5, 3.6))
    for one, shade in zip(results["features-gather"]["results"], ("#08519c", "#6baed6"), strict=False):
        seconds, floats = one["seconds"], 4 * one["rows"] * one["columns"]
        shape = f"{one['rows']:,} x {one['columns']}"
        for start, marker in (("scalar", "o"), ("product", "^")):
            codecs = [codec for codec in one["bytes"] if codec.startswith(start)]
            ratios = [floats / one["bytes"][codec] for codec in codecs]
            times = [seconds[codec] / seconds["x[ids] float32"] for codec in codecs]
            label = f"{shape}, {start}"
            left.plot(ratios, times, color=shade, marker=marker, linestyle="none", label=label)
        reused = seconds["float32, result reused"] / seconds["x[ids] float32"]
        left.axhline(reused, color=shade, linewidth=0.8, linestyle=":", label=f"{shape}, float32, result reused")
    left.set_xscale("log", base=2)
    left.xaxis.set_major_formatter("{x:g}x")
    left.set_ylim(bottom=0)
    left.set_xlabel("times smaller than float32")
    left.set_ylabel("time of a gather, of x[ids] in float32")
    left.legend(fontsize=7, frameon=False)
    runs = results["minibatch-scale"]["results"]
    nodes = [one["nodes"] / 1e6 for one in runs]
    right.plot(nodes, [one["nodes"] * 512 / 1e9 for one in runs], color="#bdbdbd", marker="s", label="float32 features")
    for part, label, shade in (("tango", "epoch, whole process", "#08519c"), ("compress", "gs.compress", "#6baed6")):
        right.plot(nodes, [one[part]["peak_bytes"] / 1e9 for one in runs], color=shade, marker="o", label=label)
    right.plot(
        nodes, [one["compress"]["bytes"] / 1e9 for one in runs], color="#31a354", marker="^", label="codes, 1 bit"
    )
    right.set_yscale("log")
    right.set_ylim(bottom=0.01)
    right.set_xlabel("million nodes, 128 features")
    right.set_ylabel("GB")
    right.legend(fontsize=8, frameon=False)
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    figure.savefig(path, dpi=150)
    plt.close(figure)


def accuracy_plot(results: Results, path: Path) -> None:
    import matplotlib.pyplot as plt

    jobs = by_job(results["features-accuracy"])
    sets = list(dict.fromkeys(name for name, _ in jobs))
    figure, panels = plt.subplots(1, len(sets), figsize=(3.4 * len(sets), 3.4), squeeze=False)
    shades = {"sage": "#08519c", "gcn": "#6baed6", "mlp": "#bdbdbd"}
    for axes, name in zip(panels[0], sets, strict=True):
        for model, shade in shades.items():
            runs = jobs.get((name, model))
            if runs is None:
                continue
            scalar = sorted((runs[codec] for codec in LINE if codec in runs), key=lambda one: one["ratio"])
            lines = [(scalar, "o", "-")]
            for start, mark in MARKS.items():
                lines.append(([one for codec, one in runs.items() if codec.startswith(start)], mark, "none"))
            for line, marker, style in lines:
                axes.errorbar([one["ratio"] for one in line], [one["mean"] for one in line],
                              [one["std"] for one in line], color=shade, marker=marker, linestyle=style, capsize=2,
                              label=MODELS[model] if marker == "o" else None)  # fmt: skip
        axes.set_xscale("log")
        axes.set_xlabel("times smaller than float32")
        axes.set_title(f"test score on {name}, %", fontsize=10)
        axes.spines[["top", "right"]].set_visible(False)
    panels[0][0].legend(fontsize=8, frameon=False)
    figure.tight_layout()
    figure.savefig(path, dpi=150)
    plt.close(figure)
