"""A node-level .npz file as one PyG `Data`.

    indptr, indices                              adjacency, row = source, column = target
    x, or x_indptr, x_indices, x_data, x_shape   features, dense or CSR
    y                                            class ids, -1 = no label; `labelled` False means the same
    train_mask, val_mask, test_mask              bool [N], or [S, N] for S fixed splits

A file with adjacency alone gives a `Data` with `edge_index` and `num_nodes` alone.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from . import splits
from .npz import Npz, bad, read_meta
from .pyg_data import make_data

if TYPE_CHECKING:
    from torch_geometric.data import Data

VALIDATION_SHARE = 0.2  # of the training nodes, where a file has no validation nodes


def load_nodes(npz: Npz, *, split: int | str | None = None, seed: int = 0, sparse: bool = False) -> Data:
    """The graph in `npz`, with float32 features (a torch sparse CSR tensor if `sparse`) and int64 labels.

    split=k         the k-th fixed split of the file; by default the first
    split="random"  60/20/20 of every class, drawn by `seed`; the default where a file has no split
    split="few"     20 training nodes per class, 500 for validation, the rest for testing, drawn by `seed`

    Where a file has training and test nodes only, a fifth of the training nodes of each class, drawn by `seed`,
    become validation nodes.
    """
    indices = npz.integers("indices", (None,))
    indptr = npz.offsets("indptr", end=len(indices))
    num_nodes = len(indptr) - 1
    npz.check_range("indices", indices, 0, num_nodes)
    row = np.repeat(np.arange(num_nodes), np.diff(indptr))
    edge_index = torch.from_numpy(np.stack([row, indices]))
    parts: dict[str, Any] = {}
    if "x" in npz or "x_indptr" in npz:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Sparse")  # CSR tensors are called beta, and unchecked
            parts["x"] = _features(npz, num_nodes, sparse)
    if "y" in npz:
        y, known = _labels(npz, num_nodes)
        parts["y"] = torch.from_numpy(y)
        parts |= splits.masks(_split(npz, np.where(known, y, -1), split, seed))
    return make_data(edge_index=edge_index, num_nodes=num_nodes, **parts)


def _features(npz: Npz, num_nodes: int, sparse: bool) -> Tensor:
    if "x" in npz:
        x = torch.from_numpy(npz.reals("x", (num_nodes, None)))
        return x.to_sparse_csr() if sparse else x
    rows, columns = (int(n) for n in npz.integers("x_shape", (2,)))
    if rows != num_nodes or columns < 1:
        raise bad(npz.path, "x_shape", f"[{num_nodes}, at least 1], one row per node", [rows, columns])
    col = npz.integers("x_indices", (None,))
    npz.check_range("x_indices", col, 0, columns)
    indptr = npz.offsets("x_indptr", end=len(col), count=num_nodes)
    data = npz.reals("x_data", (len(col),))
    if sparse:
        return _sparse_csr(npz, (indptr, col, data), (rows, columns))
    npz.check_memory("x_shape", rows * columns * 4)
    x = torch.zeros(rows, columns)
    row = torch.from_numpy(np.repeat(np.arange(rows), np.diff(indptr)))
    return x.index_put_((row, torch.from_numpy(col)), torch.from_numpy(data), accumulate=True)


def _sparse_csr(npz: Npz, arrays: tuple[NDArray[Any], ...], shape: tuple[int, int]) -> Tensor:
    indptr, col, data = map(torch.from_numpy, arrays)
    try:
        return torch.sparse_csr_tensor(indptr, col, data, size=shape, check_invariants=True)
    except RuntimeError as error:
        raise bad(npz.path, "x_indices", "ascending and distinct within every row", error) from error


def _labels(npz: Npz, num_nodes: int) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Labels, and which of them are known."""
    y = npz.integers("y", (num_nodes,))
    npz.check_range("y", y, -1, read_meta(npz).classes or len(y))
    known = y >= 0
    if "labelled" in npz:
        known &= npz.booleans("labelled", (num_nodes,))
    return y, known


def _split(npz: Npz, y: NDArray[np.int64], split: int | str | None, seed: int) -> NDArray[np.int8]:
    """Train, validation and test nodes; `y` is -1 where the label is not known."""
    fixed = "train_mask" in npz
    if split is None and not fixed:
        split = "random"
    if split in splits.DRAWN:
        return splits.drawn(y, str(split), seed)
    if isinstance(split, str) or not fixed:
        have = "the number of a fixed split, " if fixed else ""
        raise ValueError(f"`split` must be {have}'random' or 'few' for {npz.path.name} (got {split!r})")
    part = _fixed_split(npz, len(y), split or 0)
    if not (part == splits.VAL).any():
        chosen = splits.by_fraction(y, (1 - VALIDATION_SHARE, VALIDATION_SHARE, 0), seed, among=part == splits.TRAIN)
        part[chosen == splits.VAL] = splits.VAL
    part[y < 0] = splits.NONE
    return part


def _fixed_split(npz: Npz, num_nodes: int, k: int) -> NDArray[np.int8]:
    """The k-th row of the masks, which may be [N] (then k is 0) or [S, N]; a file may have no `val_mask`."""
    part = np.full(num_nodes, splits.NONE, np.int8)
    stacked = len(npz.shape("train_mask")) == 2
    count = npz.length("train_mask") if stacked else 1
    if not 0 <= k < count:
        raise ValueError(f"`split` must be in 0 .. {count - 1} for {npz.path.name} (got {k})")
    for value, name in enumerate(splits.MASK_NAMES):
        if name == "val_mask" and name not in npz:
            continue
        mask = npz.booleans(name, (count, num_nodes))[k] if stacked else npz.booleans(name, (num_nodes,))
        if (part[mask] != splits.NONE).any():
            raise bad(npz.path, name, "disjoint from the other masks", "nodes that are in two")
        part[mask] = value
    return part
