"""`gossamer partition`: a graph cut into parts for several machines, once, and what a job on them will cost."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import typer
from rich.console import Console
from rich.table import Table
from torch import Tensor

from ..codecs import Codec
from ..codecs.named import codec_of
from ..datasets import GraphList
from ..distributed import Partition, costs
from ..distributed import partition as run_partition
from ..distributed.costs import BITS, Model, RankCounts
from ..engine.settings import Int8, Published
from ..features import FeatureStore
from ..features import compress as run_compression
from ..graph import Graph
from ..recipe import Recipe, recipe_of
from ..training.data import load
from ..training.scores import known_entries
from ..training.tasks import labels_of, task_of
from .errors import told_plainly
from .train import _set_threads

MASKS = ("train", "val", "test")
AT_1_GBIT = 1e9 / 8


def partition(
    dataset: Annotated[str | None, typer.Argument(help="A name that `gossamer datasets` lists.")] = None,
    parts: Annotated[int, typer.Option(help="Parts; more than there will be ranks, which take several each.")] = 16,
    out: Annotated[Path | None, typer.Option(help="Folder to write.")] = None,
    graph: Annotated[Path | None, typer.Option(help="File of Graph.save, in place of a dataset.")] = None,
    x: Annotated[Path | None, typer.Option(help="Its features: .npy, Parquet, or .gsf of `gossamer compress`.")] = None,
    y: Annotated[Path | None, typer.Option(help="Its labels, .npy.")] = None,
    train: Annotated[Path | None, typer.Option(help="Nodes to train on, .npy: truth values, or ids.")] = None,
    val: Annotated[Path | None, typer.Option(help="Nodes to validate on, .npy.")] = None,
    test: Annotated[Path | None, typer.Option(help="Nodes to test on, .npy.")] = None,
    method: Annotated[
        str | None, typer.Option(help="metis, or stream for what METIS has no memory for. [default: by size]")
    ] = None,
    features: Annotated[
        str | None, typer.Option(help="Store features in few bits: scalar:1, scalar:4:log, product:16x2048, ...")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the partitioner.")] = 0,
    split: Annotated[str | None, typer.Option(help="Which split of the dataset: a number; random or few.")] = None,
    scale: Annotated[float | None, typer.Option(help="Size of a generated set, 1 being the full one.")] = None,
    ranks: Annotated[int | None, typer.Option(help="Ranks that the report is for. [default: one per part]")] = None,
    recipe: Annotated[str, typer.Option(help="Recipe that the memory of a rank is told for.")] = "float32",
    model: Annotated[str, typer.Option(help="Model that the report is for: gcn, sage, gin or gat.")] = "gcn",
    layers: Annotated[int, typer.Option(help="Its layers.")] = 3,
    width: Annotated[int, typer.Option("--width", "--hidden", help="Columns of its hidden layers.")] = 256,
    heads: Annotated[int, typer.Option(help="Its attention heads, for gat.")] = 4,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Remove another partition from the folder.")] = False,
    threads: Annotated[int | None, typer.Option(help="Threads; by default what torch chooses.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")] = False,
) -> None:
    """Cut a graph into parts, one file each, and tell what the messages between them cost."""
    with told_plainly("Run it again to continue; parts that are written are kept."):
        _set_threads(threads)
        if out is None:
            raise ValueError("`--out` is missing: the folder to write, for instance --out parts/")
        chosen = recipe_of(recipe)
        codec = chosen.features if features is None else codec_of(features)
        files = {"x": x, "y": y, "train": train, "val": val, "test": test}
        edges, nodes = _inputs(dataset, graph, files, split, scale)
        shape = _Shape(model, layers, width, heads)
        shape.check(ranks, parts)
        if codec is not None:
            nodes["x"] = _coded(nodes["x"], codec, not as_json)
        found = run_partition(
            edges, **nodes, parts=parts, out=out, method=method, seed=seed, overwrite=overwrite, progress=not as_json
        )
        report = _Report(found, shape.of(found), recipe, found.counts(ranks))
    if as_json:
        print(json.dumps(report.to_dict()))
    else:
        report.show(Console())


# Inputs -----------------------------------------------------------------------------------------------------------


def _inputs(
    dataset: str | None, graph: Path | None, files: dict[str, Path | None], split: str | None, scale: float | None
) -> tuple[Graph, dict[str, Any]]:
    given = [name for name, path in files.items() if path is not None]
    if (dataset is None) == (graph is None):
        raise ValueError(f"Give either DATASET or `--graph` (got {'both' if dataset else 'neither'})")
    if dataset is not None and given:
        raise ValueError(f"`--{given[0]}` belongs to `--graph`: DATASET has its own features, labels and masks")
    if dataset is not None:
        return _of_dataset(dataset, split, scale)
    assert graph is not None
    edges = Graph.load(graph)
    nodes: dict[str, Any] = {"x": _features(files["x"]), "y": None if files["y"] is None else _array("--y", files["y"])}
    for name in MASKS:
        nodes[f"{name}_mask"] = _mask(f"--{name}", files[name], edges.num_dst)
    return edges, nodes


def _of_dataset(name: str, split: str | None, scale: float | None) -> tuple[Graph, dict[str, Any]]:
    data = load(name, split, scale)
    if isinstance(data, GraphList):
        raise ValueError(
            f"DATASET must be one graph ({name} is a list of {len(data)} small graphs); they need no parts"
        )
    nodes = {"x": getattr(data, "x", None)} | {f"{mask}_mask": getattr(data, f"{mask}_mask", None) for mask in MASKS}
    if getattr(data, "y", None) is not None:
        nodes |= _labels(data, nodes)
    return Graph.from_data(data), nodes


def _labels(data: Any, nodes: dict[str, Any]) -> dict[str, Any]:
    """Labels, and masks without nodes whose label is unknown, as `gossamer train` has them."""
    task = task_of(data)
    y = labels_of(data, task)
    known = known_entries(y).any(1) if task.multilabel else y >= 0
    masks = {}
    for name in (f"{mask}_mask" for mask in MASKS):
        mask = nodes[name]
        if isinstance(mask, Tensor) and mask.dtype == torch.bool and mask.shape == known.shape:
            masks[name] = mask & known
    return {"y": y, "task": task.name, "num_classes": task.out_channels} | masks


def _features(path: Path | None) -> Any:
    return FeatureStore.open(path) if path is not None and path.suffix == ".gsf" else path


def _coded(x: Any, codec: Codec, progress: bool) -> FeatureStore:
    if x is None:
        raise ValueError("`--features` needs features to compress, and the graph has none; give `--x`")
    if isinstance(x, FeatureStore):
        raise ValueError(f"`--features` cannot compress codes again ({x.path} holds {x.codec!r}); leave it out")
    return run_compression(x, codec, progress=progress)


def _array(option: str, path: Path) -> Tensor:
    if not path.is_file():
        raise FileNotFoundError(f"`{option}` must be an existing .npy file (there is no file {path})")
    try:
        found = np.load(path, allow_pickle=False)
    except ValueError as error:
        raise ValueError(f"`{option}` must be a .npy file of numbers ({path}: {error})") from None
    if not isinstance(found, np.ndarray) or found.dtype.kind not in "fiub":
        raise ValueError(f"`{option}` must be a .npy file of numbers (got {path})")
    return torch.from_numpy(found)


def _mask(option: str, path: Path | None, num_nodes: int) -> Tensor | None:
    """A mask as it is, or of the nodes that are listed."""
    if path is None:
        return None
    found = _array(option, path)
    if found.dtype == torch.bool:
        return found
    if found.dim() != 1 or found.is_floating_point():
        raise ValueError(f"`{option}` must hold truth values or ids of nodes (got {found.dtype} {list(found.shape)})")
    if found.numel() and not 0 <= int(found.min()) <= int(found.max()) < num_nodes:
        raise ValueError(
            f"`{option}` must hold ids from 0 to {num_nodes - 1} (got {int(found.min())} to {int(found.max())})"
        )
    mask = torch.zeros(num_nodes, dtype=torch.bool)
    mask[found.long()] = True
    return mask


# The report -------------------------------------------------------------------------------------------------------


class _Shape:
    """Of the model that the report is for."""

    def __init__(self, kind: str, layers: int, width: int, heads: int) -> None:
        self.kind, self.layers, self.width, self.heads = kind, layers, width, heads

    def check(self, ranks: int | None, parts: int) -> None:
        """Before hours of partitioning."""
        for name in ("layers", "width", "heads"):
            if getattr(self, name) < 1:
                raise ValueError(f"`--{name}` must be at least 1 (got {getattr(self, name)})")
        if ranks is not None and not 1 <= ranks <= parts:
            raise ValueError(f"`--ranks` must lie between 1 and the number of parts, {parts} (got {ranks})")
        Model(self.kind, (1, 1))

    def of(self, found: Partition) -> Model:
        data = found.manifest.data
        hidden = (self.width,) * (self.layers - 1)
        inputs, outputs = data["num_features"] or self.width, data["num_classes"] or self.width
        return Model(self.kind, (inputs, *hidden, outputs), self.heads if self.kind == "gat" else 1)


class _Report:
    def __init__(self, found: Partition, model: Model, recipe: str, counts: list[RankCounts]) -> None:
        self.found, self.model, self.recipe, self.counts = found, model, recipe, counts
        self.epoch = {bits: costs.epoch_bytes(counts, model, bits) for bits in BITS}
        self.every_layer = costs.every_layer_bytes(counts, model)
        data, weighted = found.manifest.data, found.manifest.graph["weighted"]
        self.load = costs.load_bytes(counts, data["bytes_per_row"])
        settings = _bytes_of(recipe_of(recipe), model)
        self.memory = [costs.memory_bytes(rank, model, data["bytes_per_row"], weighted, **settings) for rank in counts]

    def to_dict(self) -> dict[str, Any]:
        return self.found.to_dict() | {
            "model": {"kind": self.model.kind, "widths": self.model.widths, "heads": self.model.heads},
            "recipe": self.recipe,
            "ranks": [rank._asdict() for rank in self.counts],
            "epoch_bytes": {str(bits): count for bits, count in self.epoch.items()},
            "epoch_bytes_every_layer": self.every_layer,
            "load_bytes": self.load,
            "memory_bytes": self.memory,
        }

    def show(self, console: Console) -> None:
        console.print(str(self.found), soft_wrap=True, markup=False, highlight=False)
        if len(self.counts) > 1 and not any(rank.halo for rank in self.counts):
            console.print("No edge leads from one rank to another.", style="dim")
        console.print(self._of_ranks())
        console.print(self._of_messages())
        notes = f"Once, at load: features of the halo, {_megabytes(self.load)} MB."
        console.print(f"{notes} Gradients of the model: {_megabytes(4 * self.model.num_parameters)} MB per rank.")

    def _of_ranks(self) -> Table:
        purposes = list(self.memory[0])
        title = f"{len(self.counts)} ranks; memory in MB, {self.model.kind} {self._widths()}, {self.recipe}"
        table = Table("rank", "nodes", "edges", "halo", "halo/own", *purposes, "memory", title=title)
        for k, (rank, memory) in enumerate(zip(self.counts, self.memory, strict=True)):
            sizes = (f"{rank.nodes:,}", f"{rank.edges:,}", f"{rank.halo:,}", f"{rank.halo / rank.nodes:.2f}")
            table.add_row(str(k), *sizes, *map(_megabytes, memory.values()), _megabytes(sum(memory.values())))
        return _numbers(table)

    def _of_messages(self) -> Table:
        title = f"Bytes on the wire per epoch, all ranks together; {self.model.kind} {self._widths()}"
        table = Table("messages", "MB", "of float32", "s at 1 Gbit/s", title=title)
        rows = {"float32, every layer, layer 0 too": self.every_layer}
        rows |= {_messages(bits): count for bits, count in self.epoch.items()}
        slowest = max(range(len(self.counts)), key=lambda k: self.counts[k].sent + self.counts[k].t_sent)
        for name, count in rows.items():
            share = count / self.epoch[32] if self.epoch[32] else 0.0
            of_slowest = count * self._share_of(slowest) / AT_1_GBIT
            table.add_row(name, _megabytes(count), f"{share:.3f}", f"{of_slowest:.3g}")
        return _numbers(table)

    def _share_of(self, k: int) -> float:
        """What rank k sends of all that is sent."""
        sent = [rank.sent + rank.t_sent for rank in self.counts]
        return sent[k] / max(sum(sent), 1)

    def _widths(self) -> str:
        return "-".join(map(str, self.model.widths))


def _messages(bits: int) -> str:
    return {32: "float32", 8: "8 bits (tango: the int8 rows)"}.get(bits, f"{bits} bits")


def _numbers(table: Table) -> Table:
    for column in table.columns[1:]:
        column.justify, column.no_wrap = "right", True
    table.title_justify = "left"
    return table


def _megabytes(count: float) -> str:
    return f"{count / 1e6:,.1f}"


def _bytes_of(recipe: Recipe, model: Model) -> dict[str, Any]:
    """What a recipe changes in the memory of a rank: bytes per saved and computed value, bits of messages."""
    is_int8 = isinstance(recipe.compute, Int8)
    saved = 1.0 if is_int8 else 4.0
    codec = recipe.activations.codec if isinstance(recipe.activations, Published) else recipe.activations
    if isinstance(codec, Codec):
        shape = (1024, max(model.widths[1:]))
        saved = codec.nbytes(shape) / (shape[0] * shape[1]) + 1 / 8  # and a bit per value: its mask
    bits = min(recipe.messages.bits, 8 if is_int8 else 32)  # int8 rows travel as they are
    return {"saved": saved, "computed": 1 if is_int8 else 4, "bits": bits}
