"""Reading .npz archives that may be damaged, foreign or hostile.

Nothing is unpickled. Whatever is wrong becomes one error that names the file, the array, what was expected, what was
found, and the remedy. An array's header is read first: an archive of a megabyte may claim gigabytes, or unpack to them.
"""

from __future__ import annotations

import json
import math
import os
import zipfile
from pathlib import Path
from typing import Any, NamedTuple, final

import numpy as np
from numpy.typing import NDArray

from .info import BadDatasetFile

REMEDY = "Remedy: copy the file again from where it came, or take it out of the folder"
_READ_ERRORS = Exception  # of any kind: a header is Python text, which NumPy hands to the tokenizer


def available_memory() -> int:
    """Bytes that can be allocated without swapping, as the system estimates; all of the memory where it does not."""
    try:
        facts = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
        return 1024 * int(facts["MemAvailable"].split()[0])
    except (OSError, KeyError, ValueError):
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def bad(path: Path, array: str, expected: str, found: object) -> BadDatasetFile:
    """The error for one array of a file."""
    return BadDatasetFile(f"{path}: `{array}` must be {expected} (found {found}). {REMEDY}")


class _Header(NamedTuple):
    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


@final
class Npz:
    """The arrays of one archive, each read on access. No file stays open."""

    def __init__(self, path: Path) -> None:
        self.path = path
        if not zipfile.is_zipfile(path):
            found = f"{path.stat().st_size} bytes that are not a whole zip archive" if path.exists() else "no file"
            raise BadDatasetFile(f"{path} must be an .npz archive ({found} found). {REMEDY}")
        try:
            with open(path, "rb") as raw, np.load(raw, allow_pickle=False) as file:
                self.names = frozenset(file.files)
        except _READ_ERRORS as error:
            raise BadDatasetFile(f"{path} cannot be opened as an .npz archive ({error}). {REMEDY}") from error

    def __contains__(self, name: str) -> bool:
        return name in self.names

    def __getitem__(self, name: str) -> NDArray[Any]:
        if name not in self:
            raise bad(self.path, name, "among its arrays", f"only {sorted(self.names)}")
        self.check_memory(name, self._header(name).nbytes)
        try:
            with open(self.path, "rb") as raw, np.load(raw, allow_pickle=False) as file:
                return np.asarray(file[name])
        except _READ_ERRORS as error:
            raise bad(self.path, name, "a readable array without Python objects", error) from error

    def check_memory(self, name: str, needed: int) -> None:
        """Raise if so many bytes, which come of the array, are more than there is memory for."""
        free = available_memory()
        if needed > free:
            raise BadDatasetFile(
                f"{self.path}: `{name}` needs {needed:,} bytes of memory, and {free:,} are available. Remedy: free "
                f"some, or take a larger machine; if the set should be small, the file is damaged: {REMEDY[8:]}"
            )

    def _header(self, name: str) -> _Header:
        if name not in self:
            raise bad(self.path, name, "among its arrays", f"only {sorted(self.names)}")
        try:
            with zipfile.ZipFile(self.path) as archive, archive.open(f"{name}.npy") as member:
                version = np.lib.format.read_magic(member)
                read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
                shape, _, dtype = read(member)
                stored = archive.getinfo(f"{name}.npy").file_size - member.tell()
        except _READ_ERRORS as error:
            raise bad(self.path, name, "an array with a readable header", error) from error
        header = _Header(tuple(shape), dtype)
        if header.nbytes != stored and not dtype.hasobject:  # those are refused when they are read
            raise bad(self.path, name, f"{header.nbytes:,} bytes, as its shape {list(shape)} of {dtype} says", stored)
        return header

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of an array from its header, without unpacking the array."""
        return self._header(name).shape

    def length(self, name: str) -> int:
        """The first dimension of an array, from its header."""
        shape = self.shape(name)
        if not shape:
            raise bad(self.path, name, "an array of at least one dimension", "a single value")
        return shape[0]

    def integers(self, name: str, shape: tuple[int | None, ...]) -> NDArray[np.int64]:
        """The array as int64, after checking that it holds integers in the given shape (None = any length)."""
        return self._typed(name, "iu", "integers", shape, np.int64)

    def reals(self, name: str, shape: tuple[int | None, ...]) -> NDArray[np.float32]:
        """The array as float32, after checking that it holds finite numbers in the given shape."""
        with np.errstate(over="ignore"):  # a number too large for float32 becomes infinite, and is refused below
            array = self._typed(name, "iuf", "numbers", shape, np.float32)
        if not np.isfinite(array).all():
            raise bad(self.path, name, "finite numbers", f"{np.count_nonzero(~np.isfinite(array))} that are not")
        return array

    def booleans(self, name: str, shape: tuple[int | None, ...]) -> NDArray[np.bool_]:
        """The array, after checking that it holds booleans in the given shape."""
        return self._typed(name, "b", "booleans", shape, np.bool_)

    def _typed(
        self, name: str, kinds: str, words: str, shape: tuple[int | None, ...], dtype: type[np.generic]
    ) -> NDArray[Any]:
        header = self._header(name)
        found = header.shape
        fits = len(found) == len(shape) and all(w is None or w == n for w, n in zip(shape, found, strict=True))
        if not header.dtype.hasobject and (header.dtype.kind not in kinds or not fits):
            text = "[" + ", ".join("any" if n is None else str(n) for n in shape) + "]"
            raise bad(self.path, name, f"{words} of shape {text}", f"{header.dtype} of shape {list(found)}")
        self.check_memory(name, header.nbytes + math.prod(found) * np.dtype(dtype).itemsize)
        return self[name].astype(dtype)

    def offsets(self, name: str, end: int, count: int | None = None) -> NDArray[np.int64]:
        """Row pointers: they start at 0, never descend, and end at `end`; `count` rows if given."""
        pointers = self.integers(name, (None if count is None else count + 1,))
        if len(pointers) == 0 or pointers[0] != 0 or pointers[-1] != end:
            found = f"{pointers[0]} to {pointers[-1]}" if len(pointers) else "no entries"
            raise bad(self.path, name, f"offsets from 0 to {end}", found)
        descents = np.flatnonzero(np.diff(pointers) < 0)
        if len(descents):
            raise bad(self.path, name, "offsets that never descend", f"a descent after entry {descents[0]}")
        return pointers

    def check_range(self, name: str, values: NDArray[np.int64], low: int, high: int | NDArray[np.int64]) -> None:
        """Every value v must satisfy low <= v < high, where `high` may differ from value to value."""
        outside = np.flatnonzero((values < low) | (values >= high))
        if len(outside):
            limit = high if isinstance(high, int) else int(np.broadcast_to(high, values.shape).flat[outside[0]])
            found = f"{values.flat[outside[0]]} at entry {outside[0]}, {len(outside)} such in all"
            raise bad(self.path, name, f"in {low} .. {limit - 1}", found)


class Meta(NamedTuple):
    """What the JSON text `meta` of a file says."""

    task: str
    classes: int | None
    split: str


def read_meta(npz: Npz) -> Meta:
    """The array `meta`; it must have a `task`."""
    text = str(npz["meta"])
    try:
        found = json.loads(text)
        meta = Meta(found["task"], found.get("classes"), str(found.get("split", "")))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise bad(npz.path, "meta", "the text of a JSON object with a `task`", repr(text[:80])) from error
    if not isinstance(meta.task, str) or not isinstance(meta.classes, int | None):
        raise bad(npz.path, "meta", "JSON whose `task` is a string and `classes` an integer", meta)
    return meta
