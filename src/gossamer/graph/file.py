"""Graphs on disk: one safetensors file with rowptr, col and perhaps value and perm.

Its metadata holds `format` ("gossamer.graph.2"), `num_src`, and `checksum` (CRC-32 of all tensors by name, then of
`num_src`). Files of format 1, which had no checksum, are still read.

A mapped graph holds addresses, not numbers: what is not in the page cache is read from the file when a kernel comes to
it. So a graph larger than memory can be used, and opening it takes no memory; but its file must stay as it is. Renaming
another file over it, as this library does, is harmless. To write into it (`cp` does) is not: the ids were checked when
the file was opened, and a kernel that follows other ones, or reads beyond a new end, ends the process.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from ..atomic import replacing
from ..checksums import of_contents

if TYPE_CHECKING:
    from .graph import Graph

KIND, VERSION = "gossamer.graph.", 2


def save(graph: Graph, path: str | os.PathLike[str]) -> None:
    tensors = {"rowptr": graph.rowptr, "col": graph.col}
    if graph.value is not None:
        tensors["value"] = graph.value
    if graph.perm is not None:
        tensors["perm"] = graph.perm
    with replacing(path) as temporary:
        contiguous = {name: tensor.contiguous() for name, tensor in tensors.items()}
        num_src = str(graph.num_src)
        metadata = {"format": f"{KIND}{VERSION}", "num_src": num_src, "checksum": of_contents(contiguous, num_src)}
        save_file(contiguous, temporary, metadata=metadata)


def load(path: str | os.PathLike[str], mmap: bool) -> tuple[Tensor, Tensor, int, Tensor | None, Tensor | None]:
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
    version = _version(path, metadata)
    if not {"rowptr", "col"} <= tensors.keys():
        raise ValueError(f"`path` must hold rowptr and col ({path} holds {sorted(tensors)}); save the graph again")
    num_src = metadata.get("num_src", "")
    if not num_src.isdecimal() or not num_src.isascii():
        raise ValueError(
            f"`path` must name the number of sources in its metadata ({path} has {metadata.get('num_src')!r}); save "
            "the graph again"
        )
    if not mmap:
        tensors = {name: tensor.clone() for name, tensor in tensors.items()}
    if version > 1 and metadata.get("checksum") != of_contents(tensors, num_src):
        raise ValueError(f"{path} is damaged: its contents do not have their checksum; save the graph again")
    value = tensors.get("value")
    if value is not None and value.dtype != torch.float32:
        raise ValueError(f"`path` must hold float32 weights ({path} holds {value.dtype})")
    return tensors["rowptr"], tensors["col"], int(num_src), value, tensors.get("perm")


def _version(path: Path, metadata: dict[str, str]) -> int:
    named = metadata.get("format", "")
    number = named.removeprefix(KIND)
    if not named.startswith(KIND) or not number.isdecimal() or int(number) < 1:
        raise ValueError(
            f"`path` must be a file written by Graph.save, of the format {KIND}{VERSION} ({path} has the format "
            f"{metadata.get('format')!r})"
        )
    if int(number) > VERSION:
        raise ValueError(
            f"`path` must be of a format up to {KIND}{VERSION} ({path} has {named}, written by a newer gossamer); "
            "update gossamer, or save the graph again"
        )
    return int(number)
