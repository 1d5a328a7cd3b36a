"""The files in the folder of a run, and when a run may use the folder.

    run.json                  settings, versions, threads; written first
    checkpoint.safetensors    the state of the run
    result.json               scores and times; written last
    events.out.tfevents.*     scalars for TensorBoard

A folder belongs to one set of settings. Another run is refused, and so is the same one unless it says `resume`, so
nothing is overwritten by accident. `epochs` alone may change: a resumed run may train longer.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from ..atomic import check_folder, replacing
from .checkpoint import NotWritten

RUN, CHECKPOINT, RESULT = "run.json", "checkpoint.safetensors", "result.json"
PACKAGES = ("gossamer-gnn", "torch", "torch_geometric", "numpy", "safetensors")
RESUME = "add --resume on the command line (resume=True in Python)"


def open_folder(folder: Path, settings: dict[str, Any], resume: bool) -> None:
    """Make the folder, or make sure that it holds this run; raises before anything is written."""
    check_folder(folder, "out")
    if not (folder / RUN).is_file():
        _check_vacant(folder, resume)
        folder.mkdir(parents=True, exist_ok=True)
        return
    _check_same(folder, settings, resume)
    if not resume:
        state = "finished" if (folder / RESULT).is_file() else "unfinished"
        raise FileExistsError(
            f"`out` must be a new folder ({folder} holds this very run, {state}); {RESUME} to go on with it, or choose "
            "another folder"
        )
    _remove_leftovers(folder)


def environment() -> dict[str, Any]:
    """Machine and versions; written to run.json, but not compared on resumption."""
    machine = {"python": platform.python_version(), "threads": torch.get_num_threads(), "machine": platform.machine()}
    return machine | {name: _version(name) for name in PACKAGES}


def plain(settings: dict[str, Any]) -> dict[str, Any]:
    """Settings as JSON gives them back."""
    try:
        return json.loads(json.dumps(settings))
    except (TypeError, ValueError) as error:
        raise TypeError(f"`settings` must hold numbers, strings, lists and dicts alone ({error})") from None


def write_json(path: Path, value: Any) -> None:
    """Write `path` whole, or leave it as it was and raise `NotWritten`."""
    try:
        with replacing(path) as temporary:
            Path(temporary).write_text(json.dumps(value, indent=1) + "\n")
    except OSError as error:
        raise NotWritten(
            f"{path} could not be written ({error}). Remedy: free some disk space or choose another folder"
        ) from error


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _check_vacant(folder: Path, resume: bool) -> None:
    if resume:
        raise FileNotFoundError(
            f"`out` must hold a run to resume (there is no {folder / RUN}); leave out --resume to start one"
        )
    taken = [name for name in (CHECKPOINT, RESULT) if (folder / name).exists()]
    if taken:
        raise FileExistsError(
            f"`out` must be a new folder ({folder} holds {' and '.join(taken)} but no {RUN}); choose another folder"
        )


def _check_same(folder: Path, settings: dict[str, Any], resume: bool) -> None:
    try:
        before = json.loads((folder / RUN).read_text())["settings"]
        names = list(before | settings)
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"`out` must hold a readable {RUN} ({folder / RUN} is damaged: {error}); choose another folder"
        ) from None
    differing = [name for name in names if before.get(name) != settings.get(name)]
    differing = [name for name in differing if not (resume and name == "epochs")]
    if differing:
        told = "; ".join(f"{name} is {before.get(name)!r} there and {settings.get(name)!r} here" for name in differing)
        raise ValueError(
            f"`out` must be a new folder ({folder} holds another run: {told}); choose another folder, or give the "
            "settings of that run"
        )


def _remove_leftovers(folder: Path) -> None:
    """Temporary files of a process that was killed while it wrote."""
    for name in (RUN, CHECKPOINT, RESULT):
        for path in folder.glob(f".{name}.*"):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
