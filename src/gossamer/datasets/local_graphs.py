"""A graph-level .npz file as a list of PyG graphs.

    node_ptr, edge_ptr    [G + 1], graph g owns nodes node_ptr[g] : node_ptr[g + 1], and edges likewise
    edge_index            [2, E], node ids that start at 0 in every graph
    x, node_type          real node attributes, node types; edge_type likewise
    y                     class id or real target per graph
    split, test_fold, *_mask   at most one way of splitting

Node features are the real attributes followed by the one-hot types, whichever there are. A set with neither gets the
one-hot degree, all degrees from 63 upwards sharing the last of 64 columns, or a column of ones (`features="constant"`).
Superpixel files hold integer sums per region, from which intensity and position (row, column) in 0..1 are derived.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from . import splits
from .graph_list import GraphList
from .npz import Npz, bad, read_meta
from .pyg_data import make_data

DEGREE_COLUMNS = 64
SUPERPIXEL_COLUMNS = 3
FEATURES = ("auto", "degree", "constant")
LARGEST_PIXEL, IMAGE_SIDE = 255, 28


def load_graphs(npz: Npz, *, features: str = "auto") -> GraphList:
    """The graphs in `npz`. `features` other than "auto" replaces what the file has by degrees or by a constant."""
    if features not in FEATURES:
        raise ValueError(f"`features` must be one of {FEATURES} (got {features!r})")
    meta = read_meta(npz)
    node_ptr = npz.offsets("node_ptr", end=_num_nodes(npz))
    num_graphs = len(node_ptr) - 1
    edges = npz.integers("edge_index", (2, None))
    edge_ptr = npz.offsets("edge_ptr", end=edges.shape[1], count=num_graphs)
    npz.check_range("edge_index", edges, 0, np.repeat(np.diff(node_ptr), np.diff(edge_ptr))[None])
    x = _features(npz, node_ptr, edge_ptr, edges, features)
    y = _targets(npz, num_graphs, meta.classes)
    edge_attr = _types(npz, "edge_type", edges.shape[1]) if "edge_type" in npz else None
    graphs = []
    for g in range(num_graphs):
        node, edge = slice(node_ptr[g], node_ptr[g + 1]), slice(edge_ptr[g], edge_ptr[g + 1])
        # Copies, so that saving or sending one graph does not drag along the arrays of all.
        graph = make_data(x=x[node].clone(), edge_index=torch.from_numpy(edges[:, edge].copy()), y=y[g : g + 1].clone())
        if edge_attr is not None:
            graph.edge_attr = edge_attr[edge].clone()
        graphs.append(graph)
    return GraphList(graphs, npz.path.stem, meta.task, meta.classes, _parts(npz, num_graphs))


def _targets(npz: Npz, num_graphs: int, classes: int | None) -> Tensor:
    if classes is None:
        return torch.from_numpy(npz.reals("y", (num_graphs,)))
    y = npz.integers("y", (num_graphs,))
    npz.check_range("y", y, 0, classes)
    return torch.from_numpy(y)


def _num_nodes(npz: Npz) -> int:
    """The number of nodes by the node arrays; a file without any is believed its own `node_ptr`."""
    for name in ("node_type", "x", "pixel_count"):
        if name in npz:
            return npz.length(name)
    pointers = npz.integers("node_ptr", (None,))
    count = int(pointers[-1]) if len(pointers) else 0
    npz.check_memory("node_ptr", count * DEGREE_COLUMNS * 4)
    return count


def _features(
    npz: Npz, node_ptr: NDArray[np.int64], edge_ptr: NDArray[np.int64], edges: NDArray[np.int64], features: str
) -> Tensor:
    num_nodes = int(node_ptr[-1])
    if features == "constant":
        return torch.ones(num_nodes, 1)
    columns = []
    if features == "auto":
        if "x" in npz:
            columns.append(torch.from_numpy(npz.reals("x", (num_nodes, None))))
        if "node_type" in npz:
            columns.append(_types(npz, "node_type", num_nodes))
        if "pixel_count" in npz:
            columns.append(_superpixels(npz, num_nodes))
    if columns:
        return torch.cat(columns, dim=1)
    source = edges[0] + np.repeat(node_ptr[:-1], np.diff(edge_ptr))
    degree = np.bincount(source, minlength=num_nodes).clip(max=DEGREE_COLUMNS - 1)
    return _one_hot(degree, DEGREE_COLUMNS)


def _types(npz: Npz, name: str, count: int) -> Tensor:
    """One-hot types; as many columns as the file lists values or names, else as occur."""
    types = npz.integers(name, (count,))
    listed = [f"{name}_{kind}" for kind in ("values", "names") if f"{name}_{kind}" in npz]
    width = npz.length(listed[0]) if listed else int(types.max(initial=0)) + 1
    npz.check_range(name, types, 0, width)
    npz.check_memory(name, count * width * 4)
    return _one_hot(types, width)


def _one_hot(ids: NDArray[np.int64], width: int) -> Tensor:
    x = torch.zeros(len(ids), width)
    x[torch.arange(len(ids)), torch.from_numpy(ids)] = 1
    return x


def _superpixels(npz: Npz, num_nodes: int) -> Tensor:
    pixels = npz.integers("pixel_count", (num_nodes,))
    npz.check_range("pixel_count", pixels, 1, np.iinfo(np.int64).max)
    sums = (("intensity_sum", LARGEST_PIXEL), ("row_sum", IMAGE_SIDE), ("col_sum", IMAGE_SIDE))
    columns = [npz.integers(name, (num_nodes,)) / (pixels * largest) for name, largest in sums]
    return torch.from_numpy(np.stack(columns, axis=1).astype(np.float32))


def _parts(npz: Npz, num_graphs: int) -> NDArray[np.int8]:
    """[S, G]: 0 train, 1 validation, 2 test. Of folds, the k-th tests, the next validates, the others train."""
    if "split" in npz:
        part: NDArray[Any] = npz.integers("split", (num_graphs,))
        npz.check_range("split", part, splits.TRAIN, splits.TEST + 1)
        return part[None].astype(np.int8)
    if "test_fold" in npz:
        fold = npz.integers("test_fold", (num_graphs,))
        folds = int(fold.max(initial=-1)) + 1
        if folds < 2:
            raise bad(npz.path, "test_fold", "at least two folds", folds)
        npz.check_range("test_fold", fold, -1, folds)
        k = np.arange(folds)[:, None]
        return np.where(fold == k, splits.TEST, np.where(fold == (k + 1) % folds, splits.VAL, 0)).astype(np.int8)
    if "train_mask" not in npz:
        return np.empty((0, num_graphs), np.int8)
    shape = (npz.length("train_mask"), num_graphs)
    stack = np.stack([npz.booleans(name, shape) for name in splits.MASK_NAMES])  # [3, S, G]
    if (stack.sum(0) > 1).any():
        raise bad(npz.path, "train_mask", "disjoint from the other masks", "graphs that are in two")
    return np.where(stack.any(0), stack.argmax(0), splits.NONE).astype(np.int8)
