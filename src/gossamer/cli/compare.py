"""`gossamer compare`: plain PyG against each recipe in one run, as a table, as JSON, and as a page with plots."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from .. import report
from ..comparison import compare as run_comparison
from ..comparison.folder import JSON_NAME, PAGE_NAME
from ..comparison.settings import RECIPES, SAMPLED_RECIPES
from .errors import told_plainly
from .train import numbers


def names(listed: str) -> list[str]:
    """The names in "a, b"."""
    return [name.strip() for name in listed.split(",") if name.strip()]


def show(comparison: dict[str, Any], out: Path, console: Console) -> None:
    console.print(report.table(comparison))
    for name, reason in comparison["left_out"].items():
        console.print(f"{name} is left out: {reason}.", style="dim", markup=False, highlight=False, soft_wrap=True)
    inference = report.inference_table(comparison)
    if inference is not None:
        console.print(inference)
        for name, reason in comparison["inference"]["left_out"].items():
            said = f"{name} is left out of the inference table: {reason}."
            console.print(said, style="dim", markup=False, highlight=False, soft_wrap=True)
    console.print(report.headline(comparison), style="bold", markup=False, highlight=False)
    for name in (PAGE_NAME, JSON_NAME):
        console.print(out / name, markup=False, highlight=False, soft_wrap=True)


def compare(
    dataset: Annotated[str, typer.Argument(help="A name that `gossamer datasets` lists.")],
    model: Annotated[str, typer.Option(help="gcn, sage, gin or gat.")] = "gcn",
    layers: Annotated[int, typer.Option(help="Layers of the model.")] = 3,
    width: Annotated[int, typer.Option(help="Columns of the hidden layers.")] = 256,
    dropout: Annotated[float, typer.Option(help="Share of activations dropped while training.")] = 0.5,
    norm: Annotated[str, typer.Option(help="batch, layer or none.")] = "batch",
    heads: Annotated[int, typer.Option(help="Attention heads, for gat.")] = 4,
    epochs: Annotated[int, typer.Option(help="Passes over the training examples.")] = 100,
    seeds: Annotated[int, typer.Option(help="Training runs per variant, with the seeds 0, 1, 2 ...")] = 3,
    recipes: Annotated[
        str | None,
        typer.Option(help=f"Recipes. [default: {','.join(RECIPES)}; {','.join(SAMPLED_RECIPES)} with --minibatch]"),
    ] = None,
    baselines: Annotated[str, typer.Option(help="Baselines, plain PyG: edge-index, csr.")] = "edge-index,csr",
    lr: Annotated[float, typer.Option(help="Learning rate of Adam.")] = 0.01,
    weight_decay: Annotated[float, typer.Option(help="Weight decay of Adam.")] = 0.0,
    batch_size: Annotated[
        int | None, typer.Option(help="Graphs in a batch (32), or seeds where neighbours are sampled (1024).")
    ] = None,
    minibatch: Annotated[
        bool, typer.Option("--minibatch", help="Train on sampled batches, 10 neighbours per layer.")
    ] = False,
    fanouts: Annotated[
        str | None, typer.Option(help="Train on sampled batches: neighbours per layer, as 15,10,5.")
    ] = None,
    threads: Annotated[int | None, typer.Option(help="Threads; by default what torch chooses.")] = None,
    scale: Annotated[float | None, typer.Option(help="Size of a generated set, 1 being the full one.")] = None,
    split: Annotated[str | None, typer.Option(help="Which split: a number; random or few at node level.")] = None,
    out: Annotated[Path | None, typer.Option(help="Folder for the results. [default: compare/DATASET]")] = None,
    inference: Annotated[
        bool,
        typer.Option("--inference", help="Then evaluate one trained model as PyG, compiled, ONNX, ours and integers."),
    ] = False,
    resume: Annotated[bool, typer.Option("--resume", help="Continue the comparison in the folder.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the comparison as JSON and nothing else.")] = False,
) -> None:
    """Train plain PyG and each recipe on a dataset; compare accuracy, epoch time, peak memory and saved bytes."""
    folder = Path("compare", dataset.replace(":", "-")) if out is None else out
    with told_plainly(f"Add --resume to continue; {folder} holds the finished runs."):
        found = run_comparison(
            dataset,
            model=model,
            layers=layers,
            width=width,
            dropout=dropout,
            norm=norm,
            heads=heads,
            epochs=epochs,
            seeds=seeds,
            lr=lr,
            weight_decay=weight_decay,
            batch_size=batch_size,
            fanouts=numbers("--fanouts", fanouts) or ([10] * layers if minibatch else None),
            recipes=None if recipes is None else names(recipes),
            baselines=names(baselines),
            threads=threads,
            scale=scale,
            split=int(split) if split is not None and split.isdigit() else split,
            out=folder,
            inference=inference,
            resume=resume,
            progress=not as_json,
        )
        if as_json:
            print(json.dumps(found))
        else:
            show(found, folder, Console())
