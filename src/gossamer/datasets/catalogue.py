"""`load` and `available`: every dataset by its name, wherever it comes from.

A source is a module with two functions, `infos(root, wanted)`, which looks at the sets of wanted names alone, and
`load(name, **options)`. Where two sources know one name, the first of `SOURCES` gives it: files on this machine come
before downloads. "pyg:cora" asks one source.
Names are compared without regard to case, and `-` equals `_`.
"""

from __future__ import annotations

import difflib
from dataclasses import replace
from types import ModuleType
from typing import TYPE_CHECKING, Any

from . import digits, generated, local, ogb_sets, pyg_sets
from .folders import PathLike, data_folder_hint
from .graph_list import GraphList
from .info import DatasetInfo, UnknownDataset

if TYPE_CHECKING:
    from torch_geometric.data import Data

SOURCES: dict[str, ModuleType] = {
    "local": local,
    "embedded": digits,
    "generated": generated,
    "pyg": pyg_sets,
    "ogb": ogb_sets,
}


def available(root: PathLike | None = None) -> list[DatasetInfo]:
    """Every dataset that `load` takes here, in the order of the sources.

    `ready` tells which can be loaded without a network. A name that an earlier source has is listed as "source:name".
    """
    listed: list[DatasetInfo] = []
    taken: set[str] = set()
    for source, module in SOURCES.items():
        found = module.infos(root)
        listed += [replace(i, name=f"{source}:{i.name}") if _plain(i.name) in taken else i for i in found]
        taken |= {_plain(info.name) for info in found}
    return listed


def load(name: str, **options: Any) -> Data | GraphList:
    """The dataset `name`: one PyG `Data` for node-level sets, a `GraphList` for graph-level ones.

    Both carry `name`, `task` and, where there are labels, `num_classes`, which for multi-label sets are the columns of
    `y`. Options differ from set to set; one that a set does not take is an error that lists those it takes.
    """
    return load_found(*find(name, options.get("root")), **options)


def load_found(info: DatasetInfo, source: ModuleType, **options: Any) -> Data | GraphList:
    """The dataset that `find` found, without listing the sources again."""
    data = source.load(info.name, **options)
    if not isinstance(data, GraphList):
        data.name = info.name
        if "task" not in data:  # an option of a generated set may have made another task of it
            data.task = info.task
        if data.y is not None and "num_classes" not in data:
            data.num_classes = info.classes or int(data.y.max()) + 1
    return data


def find(name: str, root: PathLike | None = None) -> tuple[DatasetInfo, ModuleType]:
    """What is known of the dataset `name`, and the source that loads it."""
    if not isinstance(name, str):
        raise TypeError(f"`name` must be a string (got {type(name).__name__}); gossamer.datasets.available() lists all")
    prefix, _, rest = name.rpartition(":")
    if prefix and prefix.lower() not in SOURCES:
        raise UnknownDataset(f"`name` {name!r} must begin with one of {', '.join(SOURCES)} before the colon")
    for source, module in SOURCES.items():
        if prefix.lower() in ("", source):
            for info in module.infos(root, lambda listed: _plain(listed) == _plain(rest)):
                return info, module
    raise UnknownDataset(_unknown(name, root))


def _unknown(name: str, root: PathLike | None) -> str:
    near = difflib.get_close_matches(_plain(name), names := {_plain(i.name): i.name for i in available(root)}, n=4)
    nearest = f" Nearest: {', '.join(names[n] for n in near)}." if near else ""
    return f"there is no dataset {name!r}.{nearest} gossamer.datasets.available() lists all names.{data_folder_hint()}"


def _plain(name: str) -> str:
    return name.lower().replace("-", "_")
