"""The description of a dataset, and the three errors of loading one."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

MULTICLASS, MULTILABEL = "node multiclass", "node multilabel"
"""Tasks of node-level sets; `training/tasks.py` lists all."""

Source = Literal["embedded", "generated", "local", "pyg", "ogb"]


Wanted = Callable[[str], bool]
"""Which names of a source are asked for."""


def every(name: str) -> bool:
    return True


@dataclass(frozen=True)
class DatasetInfo:
    """One line of the list of datasets. A count that is not known before loading is None."""

    name: str
    source: Source
    task: str
    nodes: int | None = None
    edges: int | None = None  # directed: both directions of an undirected edge count
    features: int | None = None
    classes: int | None = None
    note: str = ""
    ready: bool = True  # can be loaded here and now, without a network


class UnknownDataset(ValueError):
    """No source knows the name."""


class BadDatasetFile(ValueError):
    """A file is truncated, of another format, or contradicts itself."""


class DatasetUnavailable(RuntimeError):
    """The name is known, but what it needs (a download, a package, disk space) is not available."""


def check_options(loader: Callable[..., Any], name: str, options: dict[str, Any], first: int = 1) -> None:
    """Options that `loader` does not take, or needs and does not get, are an error that lists those it takes.

    The parameters before number `first` are not options.
    """
    parameters = list(inspect.signature(loader).parameters.values())[first:]
    accepted = ", ".join(sorted(p.name for p in parameters)) or "none"
    unknown = [repr(option) for option in options if option not in {p.name for p in parameters}]
    if unknown:
        raise TypeError(f"dataset {name!r} takes no option {', '.join(unknown)}; its options are: {accepted}")
    missing = [repr(p.name) for p in parameters if p.default is inspect.Parameter.empty and p.name not in options]
    if missing:
        raise TypeError(f"dataset {name!r} needs the option {', '.join(missing)}; its options are: {accepted}")
