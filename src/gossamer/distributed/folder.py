"""Parts on disk: one folder with `manifest.json` and a file for each part, in the form in which they are used.

    manifest.json            format, facts of the graph, settings of the partition, and for each part its file, counts,
                             bytes and CRC-32; fingerprint: a hash of graph, node data and assignment
    part-000.safetensors     the tensors of a `Part` by their names; features in codes as x.0.rows, x.1.table, ...

A rank reads the files of its own parts and the manifest, so a machine needs no others. Tensors that both sides share
are stored once. Files are mapped when they are read. The manifest is written last: a folder without one is unfinished,
`unfinished.json` and `assignment.safetensors` say how far it is.
"""

from __future__ import annotations

import json
import zlib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

MANIFEST, UNFINISHED, ASSIGNMENT = "manifest.json", "unfinished.json", "assignment.safetensors"
KIND, VERSION = "gossamer.parts.", 1
FORMAT = f"{KIND}{VERSION}"
CHUNK = 2**24


class BadPartFile(ValueError):
    """A folder of parts, or a file in it, that is damaged, unfinished, of another partition or of another format."""


def part_file(p: int) -> str:
    return f"part-{p:03d}.safetensors"


@dataclass(frozen=True)
class Entry:
    """What the manifest says of one part."""

    file: str
    bytes: int
    crc32: str
    nodes: int
    edges: int
    """Into its nodes."""
    halo: int
    t_halo: int
    """Remote rows for forward and for backward."""
    train: int | None
    """Nodes that are trained on."""


@dataclass(frozen=True)
class Manifest:
    fingerprint: str
    job: dict[str, Any]
    """What the partition was made from, and its settings."""
    graph: dict[str, Any]
    """num_nodes, num_edges, weighted, symmetric, cut_edges."""
    data: dict[str, Any]
    """num_features, codec, bytes_per_row, num_classes, task, num_train, num_val, num_test; null where there is none."""
    parts: tuple[Entry, ...]
    format: str = FORMAT

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=1) + "\n"


def read_manifest(folder: Path) -> Manifest:
    path = folder / MANIFEST
    if not path.is_file():
        if (folder / UNFINISHED).is_file():
            raise BadPartFile(
                f"`folder` must hold a finished partition ({folder} is unfinished); run the same `gossamer partition` "
                "again to finish it"
            )
        raise FileNotFoundError(
            f"`folder` must be one written by `gossamer partition` (there is no {MANIFEST} in {folder})"
        )
    found = read_json(path)
    check_format(path, found)
    try:
        parts = tuple(Entry(**each) for each in found["parts"])
        return Manifest(**(found | {"parts": parts}))
    except (TypeError, KeyError) as error:
        raise _damaged(path, error) from None


def read_json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text())
    except ValueError as error:
        raise _damaged(path, error) from None
    if not isinstance(found, dict):
        raise _damaged(path, "it is no object")
    return found


def _damaged(path: Path, error: object) -> BadPartFile:
    return BadPartFile(f"{path} is damaged ({error}); copy the folder again, or partition again with --overwrite")


def check_format(path: Path, found: dict[str, Any]) -> None:
    named = str(found.get("format"))
    number = named.removeprefix(KIND)
    if not named.startswith(KIND) or not number.isdigit():
        raise BadPartFile(
            f"{path} must be of the format {FORMAT} (it has {found.get('format')!r}); `folder` must be one written by "
            "`gossamer partition`"
        )
    if int(number) > VERSION:
        raise BadPartFile(
            f"{path} must be of a format up to {FORMAT} (it has {named}, written by a newer gossamer); update gossamer "
            "on this machine, or partition again"
        )
    if int(number) < VERSION:
        raise BadPartFile(
            f"{path} must be of the format {FORMAT} (it has {named}, written by an older gossamer); partition again "
            "with --overwrite"
        )


def file_checksum(path: Path) -> str:
    """CRC-32 of a file: of the checksums of its chunks, which threads compute."""
    size = path.stat().st_size
    starts = range(0, size, CHUNK)

    def of_chunk(start: int) -> int:
        with open(path, "rb", buffering=0) as file:
            file.seek(start)
            return zlib.crc32(file.read(CHUNK))

    with ThreadPoolExecutor(torch.get_num_threads()) as pool:
        crcs = list(pool.map(of_chunk, starts))
    return f"{zlib.crc32(b''.join(crc.to_bytes(4, 'little') for crc in crcs)):08x}"
