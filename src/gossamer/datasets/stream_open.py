"""Opening a stream: memory-mapped tensors, after checking that the files are what `meta.json` says."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from .folders import PathLike
from .info import BadDatasetFile
from .pyg_data import make_data
from .stream import FORMAT, VERSION

if TYPE_CHECKING:
    from torch_geometric.data import Data

REMEDY = "Remedy: delete the folder and generate it again"


def open_stream(folder: PathLike) -> Data:
    """The stream in `folder` as a PyG `Data` whose tensors are mapped from disk and read when touched.

    Instead of `edge_index` it has `rowptr` (int64 [N + 1]) and `col` (int32 [E]); `edge_index(data)` makes one where
    memory allows. Writing to a tensor never changes the files.
    """
    folder = Path(folder)
    meta = _read_meta(folder)
    tensors = {name: _map(folder / f"{name}.npy", array) for name, array in meta["arrays"].items()}
    rowptr, col = tensors.pop("indptr"), tensors.pop("indices")
    if rowptr[0] != 0 or rowptr[-1] != len(col):
        raise BadDatasetFile(
            f"{folder}/indptr.npy must run from 0 to {len(col)} (got {int(rowptr[0])} to {int(rowptr[-1])}). {REMEDY}"
        )
    return make_data(rowptr=rowptr, col=col, num_nodes=len(rowptr) - 1, **tensors)


def edge_index(data: Data) -> Tensor:
    """int64 [2, E] of a stream, 16 bytes per edge in memory."""
    row = torch.repeat_interleave(torch.arange(data.num_nodes), data.rowptr.diff())
    return torch.stack([row, data.col.long()])


def _read_meta(folder: Path) -> dict[str, Any]:
    path = folder / "meta.json"
    if not path.is_file():
        raise BadDatasetFile(f"{folder} must be a folder with a meta.json, as write_stream makes it. {REMEDY}")
    try:
        meta = json.loads(path.read_text())
        version = (meta["format"], meta["version"])
        listed = {name: (array["dtype"], array["shape"]) for name, array in meta["arrays"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise BadDatasetFile(f"{path} is not the description of a stream ({error!r}). {REMEDY}") from error
    if version != (FORMAT, VERSION):
        raise BadDatasetFile(f"{path} must say format {FORMAT!r}, version {VERSION} (got {version}). {REMEDY}")
    missing = {"indptr", "indices", "x", "y"} - listed.keys()
    if missing:
        raise BadDatasetFile(f"{path} must list the arrays {sorted(missing)}, and does not. {REMEDY}")
    return dict(meta)


def _map(path: Path, expected: dict[str, Any]) -> Tensor:
    try:
        # Copy on write: the file cannot be changed through the tensor.
        array = np.load(path, mmap_mode="c", allow_pickle=False)
    except OSError as error:
        if not path.is_file():
            raise BadDatasetFile(f"{path} is missing. {REMEDY}") from error
        # The system may refuse a private mapping larger than its memory; a read-only one is always granted.
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except (ValueError, EOFError) as error:
        raise BadDatasetFile(f"{path} is not a complete .npy file ({error}). {REMEDY}") from error
    found = {"dtype": str(array.dtype), "shape": list(array.shape)}
    if found != {"dtype": expected["dtype"], "shape": list(expected["shape"])}:
        raise BadDatasetFile(f"{path} must be {expected}, as meta.json says (got {found}). {REMEDY}")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        return torch.from_numpy(array)
