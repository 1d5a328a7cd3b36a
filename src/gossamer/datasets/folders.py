"""The folders of datasets.

$GOSSAMER_DATA       a folder of ready .npz graphs, read only; unset = there are none
root=                folder for downloads and generated graphs; else
$GOSSAMER_CACHE      else
~/.cache/gossamer
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from .info import DatasetUnavailable

PathLike = str | os.PathLike[str]


def data_folder() -> Path | None:
    """The folder of local .npz graphs, or None where `GOSSAMER_DATA` does not name one."""
    value = os.environ.get("GOSSAMER_DATA")
    return Path(value).expanduser() if value and Path(value).expanduser().is_dir() else None


def data_folder_hint() -> str:
    """A sentence for error messages that says why there are no local graphs, or nothing if there is a folder."""
    if data_folder():
        return ""
    value = os.environ.get("GOSSAMER_DATA")
    state = f"is {value!r}, which is not a folder" if value else "is not set"
    return f" (The environment variable GOSSAMER_DATA, which names a folder of .npz graphs, {state}.)"


def cache_folder(root: PathLike | None = None) -> Path:
    """The folder for downloads and streams. Created by the function that writes into it."""
    chosen = root or os.environ.get("GOSSAMER_CACHE") or "~/.cache/gossamer"
    return Path(chosen).expanduser()


def free_bytes(folder: Path) -> int:
    """Free bytes of the file system that `folder` would lie on, whether or not it exists yet."""
    folder = folder.absolute()
    while not folder.exists():
        folder = folder.parent
    return shutil.disk_usage(folder).free


def partial_folder(folder: Path) -> Path:
    """A hidden sibling in which `folder` is built, so that the last step is one rename on one file system."""
    return folder.parent / f".{folder.name}.{os.getpid()}.partial"


def require_space(folder: Path, needed: int, remedies: str) -> None:
    """Raise before anything is written if `needed` bytes do not fit where `folder` would lie."""
    free = free_bytes(folder)
    if needed <= free:
        return
    leftovers = sorted(str(path) for path in folder.parent.glob(".*.partial"))
    hint = (
        f"; left over from interrupted builds, and safe to delete if none is running: {leftovers}" if leftovers else ""
    )
    raise DatasetUnavailable(
        f"{folder} needs {needed:,} bytes of disk and {free:,} are free; nothing was written. Remedy: {remedies}{hint}"
    )
