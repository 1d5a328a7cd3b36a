"""Generated sets with the sizes of well-known ones, for work at that size where the real ones are not available."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .block_model import BlockModel
from .folders import PathLike, cache_folder, free_bytes
from .info import MULTICLASS, MULTILABEL, DatasetInfo, Wanted, check_options, every
from .powerlaw import generate, powerlaw
from .stream import describe, stream_bytes, write_stream
from .stream_open import open_stream

if TYPE_CHECKING:
    from torch_geometric.data import Data

STREAM_ABOVE = 50_000_000  # directed edges; larger graphs are built on disk

MODELS = {
    "arxiv-like": BlockModel(169_343, 1_166_243, 128, 40),
    "reddit-like": BlockModel(60_000, 12_000_000, 256, 41, homophily=0.2, confusion=0.1, split=(0.66, 0.10, 0.24)),
    "products-like": BlockModel(2_449_029, 61_859_140, 100, 47, exponent=2.9, split=(0.08, 0.02, 0.90)),
    "yelp-like": BlockModel(716_847, 6_977_410, 300, 50, split=(0.75, 0.10, 0.15), labels=100),
    "papers-like": BlockModel(111_059_956, 1_615_685_872, 128, 172, directed=True, split=(0.0109, 0.0011, 0.0019)),
}
NOTES = {
    "arxiv-like": "the size of ogbn-arxiv; generated in memory",
    "reddit-like": "as dense as Reddit (400 neighbours), a quarter of its nodes; in memory, scale= from 0.1 on",
    "products-like": "the size of ogbn-products; generated on disk unless scale= makes it small",
    "yelp-like": "the size of Yelp, 100 binary labels per node; generated in memory",
    "papers-like": "the size of ogbn-papers100M; generated on disk unless scale= makes it small",
}


def infos(root: PathLike | None = None, wanted: Wanted = every) -> list[DatasetInfo]:
    """The named sizes, and `powerlaw` for any other."""
    listed = [
        DatasetInfo(
            name,
            "generated",
            MULTICLASS if model.labels is None else MULTILABEL,
            model.num_nodes,
            model.stored_edges,
            model.num_features,
            model.labels or model.num_classes,
            NOTES[name],
            ready=_is_ready(name, model, cache_folder(root)),
        )
        for name, model in MODELS.items()
        if wanted(name)
    ]
    note = (
        "any size: num_nodes=, num_edges=, num_features=, num_classes=, homophily=, exponent=, noise=, labels=, seed="
    )
    return [*listed, *([DatasetInfo("powerlaw", "generated", MULTICLASS, note=note)] if wanted("powerlaw") else [])]


def load(name: str, **options: Any) -> Data:
    """A named size, or `powerlaw` with its own arguments."""
    if name == "powerlaw":
        check_options(powerlaw, name, options, first=0)
        return powerlaw(**options)
    check_options(load_named, name, options)
    return load_named(name, **options)


def load_named(
    name: str,
    *,
    scale: float = 1.0,
    seed: int = 0,
    homophily: float | None = None,
    noise: float | None = None,
    labels: int | None = None,
    stored: bool | None = None,
    dtype: str = "float32",
    root: PathLike | None = None,
    progress: bool = True,
) -> Data:
    """One of `MODELS`, with `scale` times its nodes and edges, so with the same mean degree.

    Up to 50 million directed edges the graph is made in memory; above, or with `stored=True`, it is made on disk
    under `root`, once, and opened as memory-mapped tensors (`rowptr` and `col` instead of `edge_index`). `labels`
    makes a multi-label set with so many binary labels per node; in memory only.
    """
    model = MODELS[name].scaled(scale)
    model = model if homophily is None else replace(model, homophily=homophily)
    model = model if noise is None else replace(model, noise=noise)
    model = model if labels is None else replace(model, labels=labels)
    if stored if stored is not None else model.stored_edges > STREAM_ABOVE:
        folder = stream_folder(name, describe(model, seed, dtype), cache_folder(root))
        _ensure_stream(folder, model, seed, dtype, progress)
        return open_stream(folder)
    return generate(model, seed)


def _ensure_stream(folder: Path, model: BlockModel, seed: int, dtype: str, progress: bool) -> None:
    if folder.exists():
        return
    try:
        write_stream(folder, model, seed, dtype=dtype, progress=progress)
    except OSError:
        if not folder.exists():  # it does if another process built the same stream and was first
            raise


def stream_folder(name: str, meta: dict[str, Any], root: Path) -> Path:
    """The folder of the stored graph: one for each set of parameters."""
    digest = hashlib.sha256(json.dumps(meta, sort_keys=True).encode()).hexdigest()[:12]
    return root / "streams" / f"{name}-{digest}"


def _is_ready(name: str, model: BlockModel, root: Path) -> bool:
    if model.stored_edges <= STREAM_ABOVE:
        return True
    meta = describe(model, seed=0)
    return stream_folder(name, meta, root).exists() or free_bytes(root) >= stream_bytes(meta)
