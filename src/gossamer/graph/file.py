"""Graphs on disk: one safetensors file with rowptr, col and perhaps value and perm, and the counts as metadata."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from ..atomic import replacing
from ..ops._checks import first_outside

if TYPE_CHECKING:
    from .graph import Graph

FORMAT = "gossamer.graph.1"


def save(graph: Graph, path: str | os.PathLike[str]) -> None:
    tensors = {"rowptr": graph.rowptr, "col": graph.col}
    if graph.value is not None:
        tensors["value"] = graph.value
    if graph.perm is not None:
        tensors["perm"] = graph.perm
    with replacing(path) as temporary:
        contiguous = {name: tensor.contiguous() for name, tensor in tensors.items()}
        save_file(contiguous, temporary, metadata={"format": FORMAT, "num_src": str(graph.num_src)})


def load(path: str | os.PathLike[str]) -> tuple[Tensor, Tensor, int, Tensor | None, Tensor | None]:
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"`path` must be a file written by Graph.save (there is no file {path})")
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
    except SafetensorError as error:
        raise ValueError(
            f"`path` must be a file written by Graph.save; {path} is truncated or not safetensors ({error})"
        ) from error
    if metadata.get("format") != FORMAT or not {"rowptr", "col"} <= tensors.keys():
        raise ValueError(
            f"`path` must be a file written by Graph.save, of format {FORMAT!r} with rowptr and col "
            f"({path} has the format {metadata.get('format')!r} and holds {sorted(tensors)})"
        )
    if not metadata.get("num_src", "").isdigit():
        raise ValueError(
            f"`path` must name the number of sources in its metadata ({path} has {metadata.get('num_src')!r})"
        )
    value = tensors.get("value")
    if value is not None and value.dtype != torch.float32:
        raise ValueError(f"`path` must hold float32 weights ({path} holds {value.dtype})")
    perm = tensors.get("perm")
    if perm is not None and not _is_permutation(perm, tensors["col"].numel()):
        raise ValueError(f"`path` must hold a `perm` that names every edge once ({path} does not)")
    return tensors["rowptr"], tensors["col"], int(metadata["num_src"]), value, perm


def _is_permutation(perm: Tensor, count: int) -> bool:
    if perm.shape != (count,):
        return True  # that is for the Graph to refuse
    if perm.dtype != torch.int64 or first_outside(perm, count) >= 0:
        return False
    seen = torch.zeros(count, dtype=torch.bool)
    seen[perm] = True
    return bool(seen.all())
