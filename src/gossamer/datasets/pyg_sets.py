"""Datasets that PyG downloads, where there is a network."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from . import splits
from .fetch import fetch
from .folders import PathLike, cache_folder
from .graph_list import GraphList
from .info import MULTICLASS, MULTILABEL, DatasetInfo, Wanted, check_options, every

if TYPE_CHECKING:
    from torch_geometric.data import Data


class PygSet(NamedTuple):
    """A class of `torch_geometric.datasets`, its arguments, and the published counts."""

    cls: str
    arguments: dict[str, Any]
    task: str
    counts: tuple[int | None, int | None, int | None, int | None]  # nodes, directed edges, features, classes


NODE, LABELS, GRAPH = MULTICLASS, MULTILABEL, "graph classification"

NODE_SETS = {
    "cora": PygSet("Planetoid", {"name": "Cora"}, NODE, (2_708, 10_556, 1_433, 7)),
    "citeseer": PygSet("Planetoid", {"name": "CiteSeer"}, NODE, (3_327, 9_104, 3_703, 6)),
    "pubmed": PygSet("Planetoid", {"name": "PubMed"}, NODE, (19_717, 88_648, 500, 3)),
    "amazon-computers": PygSet("Amazon", {"name": "Computers"}, NODE, (13_752, 491_722, 767, 10)),
    "amazon-photo": PygSet("Amazon", {"name": "Photo"}, NODE, (7_650, 238_162, 745, 8)),
    "coauthor-cs": PygSet("Coauthor", {"name": "CS"}, NODE, (18_333, 163_788, 6_805, 15)),
    "coauthor-physics": PygSet("Coauthor", {"name": "Physics"}, NODE, (34_493, 495_924, 8_415, 5)),
    "flickr": PygSet("Flickr", {}, NODE, (89_250, 899_756, 500, 7)),
    "reddit": PygSet("Reddit", {}, NODE, (232_965, 114_615_892, 602, 41)),
    "reddit2": PygSet("Reddit2", {}, NODE, (232_965, 23_213_838, 602, 41)),
    "yelp": PygSet("Yelp", {}, LABELS, (716_847, 13_954_819, 300, 100)),
    "amazon-products": PygSet("AmazonProducts", {}, LABELS, (1_569_960, 264_339_468, 200, 107)),
}
GRAPH_SETS = {
    "tu-mutag": PygSet("TUDataset", {"name": "MUTAG"}, GRAPH, (3_371, 7_442, 7, 2)),
    "tu-enzymes": PygSet("TUDataset", {"name": "ENZYMES", "use_node_attr": True}, GRAPH, (19_580, 74_564, 21, 6)),
    "tu-proteins": PygSet("TUDataset", {"name": "PROTEINS"}, GRAPH, (43_471, 162_088, 3, 2)),
    "tu-nci1": PygSet("TUDataset", {"name": "NCI1"}, GRAPH, (None, None, 37, 2)),
    "tu-dd": PygSet("TUDataset", {"name": "DD"}, GRAPH, (334_925, 1_686_092, 89, 2)),
    "zinc": PygSet("ZINC", {"subset": True}, "graph regression (MAE)", (None, None, 28, None)),
}
ZINC_PARTS = ("train", "val", "test")
ZINC_ATOM_TYPES, ZINC_BOND_TYPES = 28, 4


def infos(root: PathLike | None = None, wanted: Wanted = every) -> list[DatasetInfo]:
    """All sets that are named here; ready are those downloaded before."""
    folder = cache_folder(root) / "pyg"
    return [
        DatasetInfo(name, "pyg", entry.task, *entry.counts, note="downloaded by PyG", ready=_is_ready(folder / name))
        for name, entry in (NODE_SETS | GRAPH_SETS).items()
        if wanted(name)
    ]


def _is_ready(folder: Path) -> bool:
    return any(folder.glob("**/processed/*.pt"))


def load(name: str, **options: Any) -> Data | GraphList:
    """A node-level set as `Data`, a graph-level set as `GraphList`."""
    loader: Callable[..., Any] = load_graph_set if name in GRAPH_SETS else load_node_set
    check_options(loader, name, options)
    return loader(name, **options)


def load_node_set(name: str, *, root: PathLike | None = None, split: str | None = None, seed: int = 0) -> Data:
    """The single graph of a set, with its official split, or with one drawn by `seed`: "random" or "few".

    Sets without official split get "random". Multi-label sets have their official split only, and float32 labels.
    """
    entry = NODE_SETS[name]
    if split not in (None, *splits.DRAWN) or (split and entry.task == LABELS):
        known = "left out, as nodes with many labels cannot be drawn by class" if entry.task == LABELS else splits.DRAWN
        raise ValueError(f"`split` must be {known} for {name!r} (got {split!r})")
    data = _fetch(name, entry, root)[0]
    if entry.task == LABELS:
        data.y = data.y.float()  # half the memory of int64, and what the loss takes
    elif split or "train_mask" not in data:
        data.update(splits.masks(splits.drawn(data.y.numpy(), split or "random", seed)))
    return data


def load_graph_set(name: str, *, root: PathLike | None = None) -> GraphList:
    """The graphs of a set; types of atoms and bonds are one-hot."""
    entry = GRAPH_SETS[name]
    if entry.cls != "ZINC":
        graphs = _fetch(name, entry, root)
        return GraphList(graphs, name, entry.task, entry.counts[-1], np.empty((0, len(graphs)), np.int8))
    parts = [_fetch(name, entry, root, split=part) for part in ZINC_PARTS]
    part = np.repeat(np.arange(len(parts), dtype=np.int8), [len(p) for p in parts])
    return GraphList(map(_one_hot, (g for p in parts for g in p)), name, entry.task, None, part[None])


def _fetch(name: str, entry: PygSet, root: PathLike | None = None, **more: Any) -> Any:
    def read(folder: str) -> Any:
        import torch_geometric.datasets

        return getattr(torch_geometric.datasets, entry.cls)(folder, **entry.arguments, **more)

    return fetch(name, f"torch_geometric.datasets.{entry.cls}", cache_folder(root) / "pyg" / name, read)


def _one_hot(graph: Data) -> Data:
    one_hot = torch.nn.functional.one_hot
    graph.x = one_hot(graph.x.flatten(), ZINC_ATOM_TYPES).float()
    graph.edge_attr = one_hot(graph.edge_attr.flatten(), ZINC_BOND_TYPES).float()
    return graph
