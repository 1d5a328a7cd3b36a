"""The dataset of a run, by name: what the command line and a comparison load alike."""

from __future__ import annotations

from typing import Any

from ..datasets.catalogue import find, load_found


def is_graph_level(name: str) -> bool:
    """Whether the dataset is a list of small graphs; raises for a name that no dataset has."""
    return find(name)[0].task.startswith("graph")


def is_multilabel(name: str) -> bool:
    """Whether the nodes of the dataset have many binary labels; raises for a name that no dataset has."""
    return "multilabel" in find(name)[0].task


def load(name: str, split: int | str | None = None, scale: float | None = None) -> Any:
    """The dataset. `split` is for the loader at node level; a list of graphs is split when it is trained on."""
    info, source = find(name)
    options: dict[str, Any] = {} if scale is None else {"scale": scale}
    if split is not None and not info.task.startswith("graph"):
        options["split"] = int(split) if isinstance(split, str) and split.isdigit() else split
    return load_found(info, source, **options)


def graph_split(split: int | str | None) -> int:
    """The number of the split of a list of graphs."""
    if split is None:
        return 0
    if isinstance(split, str) and not split.isdigit():
        raise ValueError(f"`split` must be a number for lists of graphs (got {split!r})")
    return int(split)
