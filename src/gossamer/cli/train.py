"""`gossamer train`: train a model on a dataset, with checkpoints that a killed run resumes from."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from ..aggregate import Messages, TopRows
from ..aggregate.health import SelectionReport, selection
from ..codecs.named import codec_of
from ..datasets import GraphList
from ..distributed import RankPart, stop
from ..distributed import load as load_part
from ..recipe import Recipe, recipe_of
from ..training import train as run_training
from ..training.data import graph_split, load
from ..training.history import TrainResult
from ..training.models import build
from ..training.parts import data_of
from ..training.random_state import seed_all
from .errors import told_plainly

PLAIN = ("none", "pyg")


def show(result: TrainResult, dataset: str, out: Path | None, selected: SelectionReport | None) -> None:
    print(f"{dataset}: {result}")
    if selected is not None:
        print(selected)
    if out is not None:
        print(f"{out}: result.json, run.json, checkpoint.safetensors; scalars: tensorboard --logdir {out}")


def train(
    dataset: Annotated[str | None, typer.Argument(help="A name that `gossamer datasets` lists.")] = None,
    model: Annotated[str, typer.Option(help="gcn, sage, gin or gat.")] = "gcn",
    layers: Annotated[int, typer.Option(help="Layers of the model.")] = 3,
    width: Annotated[int, typer.Option(help="Columns of the hidden layers.")] = 256,
    heads: Annotated[int, typer.Option(help="Attention heads, for gat.")] = 4,
    dropout: Annotated[float, typer.Option(help="Share of activations dropped while training.")] = 0.5,
    norm: Annotated[str, typer.Option(help="batch, layer or none.")] = "batch",
    epochs: Annotated[int, typer.Option(help="Passes over the training examples.")] = 200,
    lr: Annotated[float, typer.Option(help="Learning rate of Adam.")] = 0.01,
    weight_decay: Annotated[float, typer.Option(help="Weight decay of Adam.")] = 0.0,
    seed: Annotated[int, typer.Option(help="Seed of the weights, dropout and the order of batches.")] = 0,
    patience: Annotated[
        int | None, typer.Option(help="Stop after so many epochs without a better validation score.")
    ] = None,
    recipe: Annotated[str, typer.Option(help="A recipe's name; none (or pyg) trains plain PyG.")] = "float32",
    batch_size: Annotated[
        int | None, typer.Option(help="Graphs in a batch (32), or seeds where neighbours are sampled (1024).")
    ] = None,
    fanouts: Annotated[
        str | None, typer.Option(help="Train on sampled batches: neighbours per layer, as 10,10,10; -1 takes all.")
    ] = None,
    eval_fanouts: Annotated[
        str | None, typer.Option(help="Sample neighbours for the scores, too; by default all of them are taken.")
    ] = None,
    features: Annotated[
        str | None, typer.Option(help="Keep features in few bits: scalar:1, scalar:4:log, product:16x2048, ...")
    ] = None,
    split: Annotated[str | None, typer.Option(help="Which split: a number; random or few at node level.")] = None,
    scale: Annotated[float | None, typer.Option(help="Size of a generated set, 1 being the full one.")] = None,
    parts: Annotated[
        Path | None,
        typer.Option(help="Under torchrun, in place of a dataset: the folder that `gossamer partition` wrote."),
    ] = None,
    messages: Annotated[int | None, typer.Option(help="Bits of rows between machines: 32, 8, 4 or 2.")] = None,
    threads: Annotated[int | None, typer.Option(help="Threads; by default what torch chooses.")] = None,
    out: Annotated[Path | None, typer.Option(help="Folder for checkpoints, results and TensorBoard scalars.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue the run in --out.")] = False,
    checkpoint_seconds: Annotated[float, typer.Option(help="Seconds between checkpoints; 0 is every epoch.")] = 10.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")] = False,
) -> None:
    """Train a model on a dataset and report the test score at the best validation score."""
    shape: dict[str, Any] = {"layers": layers, "width": width, "dropout": dropout, "norm": norm, "heads": heads}
    settings = {"dataset": dataset, "split": split, "scale": scale, "model": model} | shape
    settings |= {} if parts is None else {"parts": str(parts)}
    with told_plainly(f"Add --resume --out {out} to continue." if out else ""):
        chosen = None if recipe in PLAIN else recipe_of(recipe)
        if features is not None:
            chosen = _with_codec(chosen, features)
        if messages is not None:
            chosen = _with_messages(chosen, messages)
        _set_threads(threads)
        data = _data(dataset, parts, split, scale)
        seed_all(seed)
        network = build(model, data_of(data) if isinstance(data, RankPart) else data, **shape)
        result = run_training(
            network,
            data,
            chosen,
            epochs=epochs,
            lr=lr,
            weight_decay=weight_decay,
            patience=patience,
            seed=seed,
            batch_size=batch_size,
            fanouts=numbers("--fanouts", fanouts),
            eval_fanouts=numbers("--eval-fanouts", eval_fanouts),
            split=graph_split(split) if isinstance(data, GraphList) else 0,
            out=out,
            resume=resume,
            checkpoint_seconds=checkpoint_seconds,
            settings=settings,
        )
    if isinstance(data, RankPart) and data.ranks.rank != 0:
        stop()
        return
    selects = chosen is not None and isinstance(chosen.backward, TopRows)
    selected = selection(network) if selects else None
    if as_json:
        facts = {"settings": settings, "recipe": recipe, "out": out and str(out)} | asdict(result)
        print(json.dumps(facts | ({} if selected is None else {"selection": json.loads(selected.to_json())})))
    else:
        show(result, str(parts) if dataset is None else dataset, out, selected)
    if isinstance(data, RankPart):
        stop()


def _data(dataset: str | None, parts: Path | None, split: str | None, scale: float | None) -> Any:
    if (dataset is None) == (parts is None):
        raise ValueError(f"give a dataset or --parts, one of them (got {dataset!r} and {parts})")
    if parts is None:
        return load(str(dataset), split, scale)
    if split is not None or scale is not None:
        raise ValueError("`--split` and `--scale` must be left out with --parts, which were cut from a graph as it is")
    return load_part(parts)


def _with_messages(recipe: Recipe | None, bits: int) -> Recipe:
    if recipe is None:
        raise ValueError(f"`--messages` needs a recipe (got {bits} with --recipe none); take --recipe float32")
    return dataclasses.replace(recipe, messages=Messages(bits))


def numbers(option: str, listed: str | None) -> list[int] | None:
    """The numbers in "10,10"."""
    if listed is None:
        return None
    try:
        return [int(number) for number in listed.split(",")]
    except ValueError:
        raise ValueError(f"`{option}` must be whole numbers separated by commas, as 10,10 (got {listed!r})") from None


def _with_codec(recipe: Recipe | None, features: str) -> Recipe:
    if recipe is None:
        raise ValueError(f"`--features` needs a recipe (got {features!r} with --recipe none); take --recipe float32")
    return dataclasses.replace(recipe, features=codec_of(features))


def _set_threads(threads: int | None) -> None:
    if threads is None:
        return
    if threads < 1:
        raise ValueError(f"`--threads` must be at least 1 (got {threads})")
    torch.set_num_threads(threads)
