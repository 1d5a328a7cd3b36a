"""`digits`: a graph that is always there, from a table that scikit-learn ships.

1,797 handwritten digits of 8 x 8 pixels, values 0..16, ten classes. Every digit points to its k nearest by Euclidean
distance, then the graph is made symmetric; no self-loops, no duplicates. Squared distances are sums of small integers
and exact in float32, and ties go to the lower index, so the graph is the same on every machine.

The table is read straight from the installed package. Importing scikit-learn would map a second OpenMP runtime into
the process.
"""

from __future__ import annotations

import gzip
import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from . import splits
from .folders import PathLike
from .info import BadDatasetFile, DatasetInfo, DatasetUnavailable, Wanted, check_options, every
from .pyg_data import make_data

if TYPE_CHECKING:
    from torch_geometric.data import Data

NODES, PIXELS, CLASSES, LARGEST_VALUE = 1797, 64, 10, 16


def infos(root: PathLike | None = None, wanted: Wanted = every) -> list[DatasetInfo]:
    """The one embedded set. The number of edges is that of the default k."""
    ready = (table := _table_path()) is not None and table.is_file()
    note = "k nearest neighbours of handwritten digits; 20 training nodes per class / 500 / rest"
    info = DatasetInfo("digits", "embedded", "node multiclass", NODES, 19_858, PIXELS, CLASSES, note, ready)
    return [info] if wanted(info.name) else []


def load(name: str, root: PathLike | None = None, **options: Any) -> Data:
    """`digits`; see `load_digits` for the options. Nothing is kept on disk, so `root` is not used."""
    check_options(load_digits, name, options)
    return load_digits(name, **options)


def load_digits(name: str = "digits", *, k: int = 8, seed: int = 0) -> Data:
    """The graph with `k` neighbours per digit; `seed` draws the split (20 per class / 500 / rest)."""
    if not 1 <= k < NODES:
        raise ValueError(f"`k` must be between 1 and {NODES - 1}, the number of other digits (got {k})")
    table = _read_table()
    x, y = torch.from_numpy(table[:, :PIXELS]), table[:, PIXELS].astype(np.int64)
    masks = splits.masks(splits.by_count(y, per_class=20, num_val=500, seed=seed))
    return make_data(x=x / LARGEST_VALUE, edge_index=nearest_neighbours(x, k), y=torch.from_numpy(y), **masks)


def nearest_neighbours(x: Tensor, k: int) -> Tensor:
    """Symmetric k-nearest-neighbour edges of integer-valued points [n, d], as edge_index sorted by (row, column).

    The key distance * n + index is unique, so the choice among equals is by index and not by the sorting algorithm.
    """
    n = len(x)
    norms = (x * x).sum(1)
    distance = norms[:, None] + norms[None, :] - 2 * (x @ x.T)  # [n, n], exact integers
    key = distance.long() * n + torch.arange(n)
    key.fill_diagonal_(torch.iinfo(torch.int64).max)
    col = key.topk(k, largest=False).indices.flatten()
    row = torch.arange(n).repeat_interleave(k)
    both = torch.unique(torch.cat([row * n + col, col * n + row]))
    return torch.stack([both // n, both % n])


def _table_path() -> Path | None:
    spec = importlib.util.find_spec("sklearn")  # finds the package without importing it
    if spec is None or not spec.submodule_search_locations:
        return None
    return Path(spec.submodule_search_locations[0]) / "datasets" / "data" / "digits.csv.gz"


def _read_table() -> NDArray[np.float32]:
    path = _table_path()
    if path is None or not path.is_file():
        raise DatasetUnavailable(
            f"dataset 'digits' is read from scikit-learn's digits.csv.gz, which is not there (looked at {path}). "
            "Remedy: pip install scikit-learn"
        )
    try:
        with gzip.open(path, "rt") as file:
            table = np.loadtxt(file, delimiter=",", dtype=np.float32)
    except (OSError, EOFError, ValueError) as error:
        raise BadDatasetFile(f"{path} cannot be read ({error}). Remedy: reinstall scikit-learn") from error
    if table.shape != (NODES, PIXELS + 1):
        raise BadDatasetFile(
            f"{path} must hold a table of {NODES} x {PIXELS + 1} (got {table.shape}). Remedy: reinstall scikit-learn"
        )
    return table
