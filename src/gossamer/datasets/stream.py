"""Generated graphs on disk, for those that do not fit in memory.

A stream is a folder of plain NumPy files, to be memory-mapped, and `meta.json`, which says what they are:

    indptr.npy   int64 [N + 1]          row i (source) has the columns (targets) indices[indptr[i] : indptr[i + 1]],
    indices.npy  int32 [E]              ascending; both directions of an undirected edge; no self-loops.
                                        Edges are drawn independently and duplicates are kept (few, and among hubs)
    x.npy        float32/float16 [N, F] features
    y.npy        int64 [N]              labels
    train_mask.npy, val_mask.npy, test_mask.npy   bool [N]

It is built in a hidden sibling folder, flushed to disk, and renamed, so a folder with the final name is complete; an
interrupted build leaves at most the hidden folder, which nothing reads. Every chunk of edges and nodes is a function
of the model, the seed and its number. The features and labels are those of the same model in memory.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib.format import open_memmap
from rich.console import Console
from rich.progress import Progress

from . import splits
from .block_model import BlockModel
from .csr_build import Ids, ahead, build_csr
from .folders import PathLike, partial_folder, require_space
from .planted import NODE_CHUNK, Planted

FORMAT = "gossamer-stream"
VERSION = 1
EDGE_CHUNK = 2**22
DRAW_BLOCK = 2**18  # drawn at a time: small enough to stay in the cache, and part of what a seed means
NODE_ARRAYS = ("x", "y", *splits.MASK_NAMES)
FEATURE_TYPES = ("float32", "float16")
REMEDIES = "`scale=` below 1, `dtype='float16'`, or `root=` (or $GOSSAMER_CACHE) on a larger disk"
_HEADER_BYTES = 4096  # generous: the .npy header and a partly filled block of the file system


def describe(model: BlockModel, seed: int, dtype: str = "float32", chunk: int = EDGE_CHUNK) -> dict[str, Any]:
    """The contents of `meta.json`: all that determines the bytes of a stream."""
    if dtype not in FEATURE_TYPES:
        raise ValueError(f"`dtype` must be one of {FEATURE_TYPES}, the types features are stored in (got {dtype!r})")
    if model.labels is not None:
        raise ValueError(
            f"`labels` must be None for a graph that is stored on disk (got {model.labels}); make it in memory, "
            "with `stored=False` or a smaller `scale`"
        )
    n = model.num_nodes
    arrays: dict[str, tuple[str, list[int]]] = {
        "indptr": ("int64", [n + 1]),
        "indices": ("int32", [model.stored_edges]),
        "x": (dtype, [n, model.num_features]),
        "y": ("int64", [n]),
        **{name: ("bool", [n]) for name in splits.MASK_NAMES},
    }
    listed = {name: {"dtype": kind, "shape": shape} for name, (kind, shape) in arrays.items()}
    parameters = {**asdict(model), "split": list(model.split)}
    del parameters["labels"]  # always None, and no part of the format
    return {
        "format": FORMAT,
        "version": VERSION,
        "seed": seed,
        "edge_chunk": chunk,
        "model": parameters,
        "arrays": listed,
    }


def stream_bytes(meta: dict[str, Any]) -> int:
    """Bytes that the stream takes on disk."""
    sizes = (np.dtype(a["dtype"]).itemsize * int(np.prod(a["shape"])) for a in meta["arrays"].values())
    return sum(size + _HEADER_BYTES for size in sizes)


def write_stream(
    folder: PathLike,
    model: BlockModel,
    seed: int = 0,
    *,
    dtype: str = "float32",
    chunk: int = EDGE_CHUNK,
    progress: bool = True,
) -> Path:
    """Generate `model` into `folder`, which must not exist yet. Memory: about 16 bytes per node, and chunks."""
    folder = Path(folder).absolute()
    if folder.exists():
        raise FileExistsError(f"`folder` {folder} exists already. Remedy: open_stream it, delete it, or name another")
    meta = describe(model, seed, dtype, chunk)
    require_space(folder, stream_bytes(meta), REMEDIES)
    partial = partial_folder(folder)
    partial.mkdir(parents=True)
    try:
        _build(partial, meta, Planted(model, seed), progress)
        _flush(partial)
        partial.rename(folder)
        _fsync(folder.parent)
    except BaseException:  # also on Ctrl-C: a partial build is of no use to anyone
        shutil.rmtree(partial, ignore_errors=True)
        raise
    return folder


def _build(partial: Path, meta: dict[str, Any], planted: Planted, progress: bool) -> None:
    arrays = {name: _create(partial / f"{name}.npy", **array) for name, array in meta["arrays"].items()}
    with Progress(console=Console(stderr=True), disable=not progress) as bar:
        _build_nodes(partial, planted, arrays, _ticker(bar, "nodes", planted.model.num_nodes))
        tick = _ticker(bar, "edges", 3 * planted.model.stored_edges)
        build_csr(lambda: edge_chunks(planted, meta["edge_chunk"]), arrays["indptr"], arrays["indices"], tick)
    for array in arrays.values():
        array.flush()
    (partial / "meta.json").write_text(json.dumps(meta, indent=1) + "\n")


def _create(path: Path, dtype: str, shape: list[int]) -> np.memmap[Any, Any]:
    array = open_memmap(path, mode="w+", dtype=dtype, shape=tuple(shape))
    if hasattr(os, "posix_fallocate"):
        # Reserved now: a disk that fills up is then an OSError here and not a crash at a write to the mapping.
        with open(path, "r+b") as file:
            os.posix_fallocate(file.fileno(), 0, path.stat().st_size)
    return array


def _ticker(bar: Progress, label: str, total: int) -> Callable[[int], None]:
    task = bar.add_task(label, total=total)
    return lambda count: bar.advance(task, count)


def _build_nodes(
    partial: Path, planted: Planted, arrays: Mapping[str, np.memmap[Any, Any]], tick: Callable[[int], None]
) -> None:
    """Nodes in order. Written to the files and not to the mappings, whose pages would count as memory in use."""
    count = -(-planted.model.num_nodes // NODE_CHUNK)
    with ExitStack() as stack:
        files = {name: stack.enter_context(open(partial / f"{name}.npy", "r+b")) for name in NODE_ARRAYS}
        for name, file in files.items():
            file.seek(arrays[name].offset)
        for x, y, part in ahead(planted.nodes(chunk) for chunk in range(count)):
            columns = (x, y, *(part == value for value in (splits.TRAIN, splits.VAL, splits.TEST)))
            for name, column in zip(NODE_ARRAYS, columns, strict=True):
                column.astype(arrays[name].dtype).tofile(files[name])
            tick(len(y))


def edge_chunks(planted: Planted, chunk: int) -> Iterator[tuple[Ids, Ids]]:
    """(row, column) of `chunk` drawn edges at a time; an undirected edge gives both directions."""
    model = planted.model
    for number in range(-(-model.num_edges // chunk)):
        rng = planted.edge_rng(number)
        count = min(chunk, model.num_edges - number * chunk)
        ends = np.empty((2, count), np.int32)
        for start in range(0, count, DRAW_BLOCK):
            same = rng.random(min(DRAW_BLOCK, count - start)) < model.planted_homophily
            for end, position in zip(ends, planted.pairs(rng, same), strict=True):
                end[start : start + len(same)] = planted.node_at[position]
        row, col = ends
        yield (row, col) if model.directed else (np.concatenate([row, col]), np.concatenate([col, row]))


def _flush(folder: Path) -> None:
    for path in folder.iterdir():
        _fsync(path)
    _fsync(folder)


def _fsync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
