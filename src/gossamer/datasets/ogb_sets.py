"""Node-level sets of the Open Graph Benchmark, through the `ogb` package, where there is a network.

Hu et al., "Open Graph Benchmark: datasets for machine learning on graphs", arXiv:2005.00687.
"""

from __future__ import annotations

import builtins
import importlib.util
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from . import splits
from .fetch import fetch, instead_of
from .folders import PathLike, cache_folder
from .info import MULTICLASS, MULTILABEL, DatasetInfo, DatasetUnavailable, Wanted, check_options, every
from .pyg_data import make_data

if TYPE_CHECKING:
    from torch_geometric.data import Data

NOTE = "downloaded by the package ogb"
PROTEINS_NOTE = "; a node's features are the mean of its edges' attributes"
SETS = [
    DatasetInfo("ogbn-arxiv", "ogb", MULTICLASS, 169_343, 2_315_598, 128, 40, NOTE),
    DatasetInfo("ogbn-products", "ogb", MULTICLASS, 2_449_029, 123_718_280, 100, 47, NOTE),
    DatasetInfo("ogbn-proteins", "ogb", f"{MULTILABEL} (ROC AUC)", 132_534, 79_122_504, 8, 112, NOTE + PROTEINS_NOTE),
]

DIRECTED = {"ogbn-arxiv"}


def infos(root: PathLike | None = None, wanted: Wanted = every) -> list[DatasetInfo]:
    """All sets that are named here; ready are those downloaded before, if `ogb` is installed."""
    folder = cache_folder(root) / "ogb"
    installed = importlib.util.find_spec("ogb") is not None
    chosen = [info for info in SETS if wanted(info.name)]
    return [replace(info, ready=installed and any((folder / info.name).glob("*/RELEASE_*"))) for info in chosen]


def load(name: str, **options: Any) -> Data:
    """A set with its official split as masks."""
    check_options(load_node_set, name, options)
    return load_node_set(name, **options)


def load_node_set(name: str, *, root: PathLike | None = None, undirected: bool = True) -> Data:
    """The graph, with citations of ogbn-arxiv in both directions unless `undirected` is False.

    ogbn-proteins has features on edges only: a node gets the mean over its edges.
    """
    if importlib.util.find_spec("ogb") is None:
        raise DatasetUnavailable(
            f"dataset {name!r} needs the package ogb, which is not installed. Remedy: pip install ogb; or "
            + instead_of(name)
        )
    folder = cache_folder(root) / "ogb" / name
    data, split = fetch(name, "ogb.nodeproppred", folder, lambda work: _read(name, work))
    if undirected and name in DIRECTED:
        from torch_geometric.utils import to_undirected

        data.edge_index = to_undirected(data.edge_index, num_nodes=data.num_nodes)
    if data.x is None:
        data.x = _mean_over_edges(data.edge_index, data.edge_attr, data.num_nodes)
    data.y = data.y.flatten() if data.y.size(1) == 1 else data.y.float()
    part = np.full(data.num_nodes, splits.NONE, np.int8)
    for value, key in enumerate(("train", "valid", "test")):
        part[split[key].numpy()] = value
    return make_data(x=data.x, edge_index=data.edge_index, y=data.y, **splits.masks(part))


def _mean_over_edges(edge_index: Tensor, edge_attr: Tensor, num_nodes: int) -> Tensor:
    count = torch.bincount(edge_index[0], minlength=num_nodes).clamp(min=1)
    total = torch.zeros(num_nodes, edge_attr.size(1)).index_add_(0, edge_index[0], edge_attr)
    return total / count[:, None]


def _read(name: str, folder: str) -> tuple[Data, dict[str, Tensor]]:
    from torch_geometric.data.data import Data, DataEdgeAttr, DataTensorAttr
    from torch_geometric.data.storage import GlobalStorage

    # ogb saves the processed graph and reads it with torch.load, which since torch 2.6 takes listed classes alone.
    with _no_questions(), torch.serialization.safe_globals([Data, DataEdgeAttr, DataTensorAttr, GlobalStorage]):
        from ogb.nodeproppred import PygNodePropPredDataset

        dataset = PygNodePropPredDataset(name, root=folder)
        return dataset[0], dataset.get_idx_split()


@contextmanager
def _no_questions() -> Iterator[None]:
    """ogb asks on the terminal before large downloads and updates: yes to the first, no to replacing files."""
    before = builtins.input
    builtins.input = lambda question="": "y" if "download" in str(question) else "n"
    try:
        yield
    finally:
        builtins.input = before
