"""Write parts into a folder, one by one; an interrupted run is continued, and nothing foreign is overwritten."""

from __future__ import annotations

import contextlib
import dataclasses
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from ..atomic import replacing
from ..features import FeatureStore
from . import folder as files
from .folder import ASSIGNMENT, FORMAT, MANIFEST, UNFINISHED, BadPartFile, Entry, Manifest
from .part import Part

SIDE = ("rowptr", "col", "value", "halo_ids", "halo_part", "send_ptr", "send_row")
METADATA = "part"
"""One entry holds all: safetensors writes several in any order, and equal parts must be equal files."""


class Writer:
    """A folder that is being written for one job. `claim` makes it."""

    def __init__(self, folder: Path, job: dict[str, Any]) -> None:
        self.folder, self.job = folder, job
        self.entries: dict[int, Entry] = {}
        self.assignment: Tensor | None = None

    @property
    def is_finished(self) -> bool:
        return (self.folder / MANIFEST).is_file()

    def save_assignment(self, assignment: Tensor) -> None:
        self.assignment = assignment
        with replacing(self.folder / ASSIGNMENT) as temporary:
            save_file({"assignment": assignment.to(torch.int32)}, temporary)
        self._save_progress()

    def write(self, part: Part, fingerprint: str) -> None:
        path = self.folder / files.part_file(part.part)
        tensors, metadata = to_tensors(part, fingerprint)
        with replacing(path) as temporary:
            save_file(tensors, temporary, metadata={METADATA: metadata})
        self.entries[part.part] = Entry(
            path.name,
            path.stat().st_size,
            files.file_checksum(path),
            part.num_own,
            part.col.numel(),
            part.num_halo,
            part.t_halo_ids.numel(),
            None if part.train_mask is None else int(part.train_mask.sum()),
        )
        self._save_progress()

    def finish(self, manifest: Manifest) -> None:
        _write_text(self.folder / MANIFEST, manifest.to_json())
        for name in (UNFINISHED, ASSIGNMENT):
            (self.folder / name).unlink(missing_ok=True)

    def _save_progress(self) -> None:
        entries = {str(p): asdict(entry) for p, entry in self.entries.items()}
        _write_text(
            self.folder / UNFINISHED, json.dumps({"format": FORMAT, "job": self.job, "parts": entries}, indent=1)
        )

    def restore(self) -> None:
        """Take over what an interrupted run of the same job has finished."""
        found = files.read_json(self.folder / UNFINISHED)
        with contextlib.suppress(SafetensorError, KeyError, FileNotFoundError):
            self.assignment = load_file(self.folder / ASSIGNMENT)["assignment"].long()
        if self.assignment is not None:
            entries = {int(p): Entry(**entry) for p, entry in found.get("parts", {}).items()}
            self.entries = {p: entry for p, entry in entries.items() if self._is_whole(entry)}

    def _is_whole(self, entry: Entry) -> bool:
        path = self.folder / entry.file
        return path.is_file() and path.stat().st_size == entry.bytes and files.file_checksum(path) == entry.crc32


def claim(folder: Path, job: dict[str, Any], overwrite: bool) -> Writer:
    """The folder for this job: new, unfinished or finished; one with anything else is refused unless `overwrite`."""
    if folder.exists() and not folder.is_dir():
        raise NotADirectoryError(f"`out` must be a folder (got the file {folder}); name another one")
    folder.mkdir(parents=True, exist_ok=True)
    writer = Writer(folder, job)
    if overwrite:
        _clear(folder)
        return writer
    held = _job_of(folder)
    if held == job:
        if not writer.is_finished:
            writer.restore()
        return writer
    if held is not None or any(folder.glob("part-*.safetensors")):
        raise BadPartFile(
            f"`out` must be a new folder, or one of the same graph and settings ({folder} holds "
            f"{_difference(held, job)}); nothing was overwritten: name another folder, or pass --overwrite"
        )
    return writer


def _job_of(folder: Path) -> dict[str, Any] | None:
    """What the folder was written for; None if it holds no partition."""
    if (folder / MANIFEST).is_file():
        return files.read_manifest(folder).job
    if (folder / UNFINISHED).is_file():
        found = files.read_json(folder / UNFINISHED)
        files.check_format(folder / UNFINISHED, found)
        return found.get("job")
    return None


def _difference(held: dict[str, Any] | None, job: dict[str, Any]) -> str:
    if held is None:
        return "parts without a manifest"
    differs = [name for name in job if held.get(name) != job[name]]
    if "graph" in differs:
        return "parts of another graph"
    return f"parts with other {', '.join(differs)}: " + ", ".join(f"{name} {held.get(name)}" for name in differs)


def _clear(folder: Path) -> None:
    for name in (MANIFEST, UNFINISHED, ASSIGNMENT):  # the manifest first: without it the folder is no partition
        (folder / name).unlink(missing_ok=True)
    for path in folder.glob("part-*.safetensors"):
        path.unlink()


def _write_text(path: Path, text: str) -> None:
    with replacing(path) as temporary:
        Path(temporary).write_text(text)


def to_tensors(part: Part, fingerprint: str) -> tuple[dict[str, Tensor], str]:
    """Tensors by name, and all other facts as JSON."""
    tensors: dict[str, Tensor] = {}
    facts: dict[str, Any] = {}
    for field in dataclasses.fields(Part):
        value = getattr(part, field.name)
        if isinstance(value, Tensor):
            if not (part.symmetric and field.name.startswith("t_")):
                tensors[field.name] = value.contiguous()
        elif isinstance(value, FeatureStore):
            facts["codes"], codes = value.unpacked()
            tensors |= {f"x.{name}": tensor.contiguous() for name, tensor in codes.items()}
        else:
            facts[field.name] = value
    facts["fingerprint"] = fingerprint
    return tensors, json.dumps({"format": FORMAT} | facts, sort_keys=True)
