"""The .npz graphs in the folder that $GOSSAMER_DATA names; `cora.npz` there is the dataset `cora`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from .folders import PathLike, data_folder
from .graph_list import GraphList
from .info import BadDatasetFile, DatasetInfo, Wanted, check_options, every
from .local_graphs import DEGREE_COLUMNS, SUPERPIXEL_COLUMNS, load_graphs
from .local_nodes import load_nodes
from .npz import Npz, read_meta

if TYPE_CHECKING:
    from torch_geometric.data import Data


def infos(root: PathLike | None = None, wanted: Wanted = every) -> list[DatasetInfo]:
    """One entry per file, from headers alone; one that cannot be read is listed as damaged and not ready, with the
    reason. Files of other names than those wanted are not opened."""
    folder = data_folder()
    return [_info(path) for path in sorted(folder.glob("*.npz")) if wanted(path.stem)] if folder else []


def load(name: str, root: PathLike | None = None, **options: Any) -> Data | GraphList:
    """The graph, or the list of graphs, in `name`.npz; see `load_nodes` and `load_graphs` for the options.

    Nothing is kept on disk, so `root` is not used.
    """
    folder = data_folder()
    if folder is None:
        raise ValueError(f"dataset 'local:{name}' needs the environment variable GOSSAMER_DATA to name its folder")
    npz = Npz(folder / f"{name}.npz")
    loader = load_graphs if "node_ptr" in npz else load_nodes
    check_options(loader, name, options)
    return loader(npz, **options)


def _info(path: Path) -> DatasetInfo:
    try:
        npz = Npz(path)
        meta = read_meta(npz)
        if "node_ptr" in npz:
            pointers = npz.integers("node_ptr", (None,))
            nodes, edges = int(pointers[-1]), npz.shape("edge_index")[1]
            note = f"{len(pointers) - 1:,} graphs; split: {meta.split}"
        else:
            nodes, edges, note = npz.shape("indptr")[0] - 1, npz.shape("indices")[0], f"split: {meta.split}"
        return DatasetInfo(path.stem, "local", meta.task, nodes, edges, _num_features(npz), meta.classes, note)
    except (BadDatasetFile, IndexError) as error:
        return DatasetInfo(path.stem, "local", "unknown", note=f"damaged: {error}", ready=False)


def _num_features(npz: Npz) -> int | None:
    """Columns of `x` as `load` would give them, where the file itself says so."""
    if "x_shape" in npz:
        return int(npz["x_shape"][1])
    real = npz.shape("x")[1] if "x" in npz else 0
    types = next((npz.shape(n)[0] for n in ("node_type_values", "node_type_names") if n in npz), 0)
    if "node_ptr" in npz and not real + types:
        return SUPERPIXEL_COLUMNS if "pixel_count" in npz else DEGREE_COLUMNS
    return real + types or None
