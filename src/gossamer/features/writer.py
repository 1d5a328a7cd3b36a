"""Writing a feature store block by block, so that an interrupted one can be continued.

Rows go into `.NAME.partial` beside the file NAME that is to appear, and after each whole block a line with its checksum
into `.NAME.journal`, whose first line tells source, sample and codec. To resume is to compare that line, and to check
the blocks against their checksums: the first that does not match, and all after it, are encoded again. The partial file
begins with zeros until it is finished, so nothing takes it for a store; then it gets its head, is flushed and renamed.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from pathlib import Path
from typing import Any, final

import torch
from torch import Tensor

from ..atomic import destination, put_in_place, replacing
from ..checksums import as_bytes, of_tensors
from .file import Header
from .layout import TABLE, tables


@final
class Partial:
    """A file that is being written. `done`: how many blocks it holds already."""

    def __init__(self, path: Path, header: Header, identity: dict[str, Any], resume: bool) -> None:
        self.path = path = destination(path, "out")
        self.header = header
        self.partial, self.journal = (path.with_name(f".{path.name}.{kind}") for kind in ("partial", "journal"))
        self.head_bytes = header.head_bytes
        self.checksums: list[int] = []
        identity = json.loads(json.dumps(identity))
        found = self._journaled(identity) if resume else None
        self.descriptor = os.open(self.partial, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            self._lock()
            size = self.head_bytes + header.code_bytes
            if found is None:
                os.ftruncate(self.descriptor, 0)
                self.journal.write_text(json.dumps(identity) + "\n")
            os.ftruncate(self.descriptor, size)
            self.checksums = self._intact(found or [])
            self._rewrite_journal(identity)
        except BaseException:
            os.close(self.descriptor)
            raise

    @property
    def done(self) -> int:
        return len(self.checksums)

    def write(self, rows: list[Tensor]) -> None:
        """The codes of the next block."""
        for (_, at, _), tensor in zip(self.header.spans(self.done), rows, strict=True):
            self._put(as_bytes(tensor), self.head_bytes + at)
        self.checksums.append(of_tensors(rows))
        with open(self.journal, "a") as journal:
            journal.write(f"{self.checksums[-1]:08x}\n")

    def rows(self, k: int) -> list[Tensor]:
        """What was written for block k."""
        found = []
        for part, at, count in self.header.spans(k):
            size = count * part.row_bytes
            data = bytearray(os.pread(self.descriptor, size, self.head_bytes + at).ljust(size, b"\0"))
            flat = torch.frombuffer(data, dtype=part.dtype) if size else torch.empty(0, dtype=part.dtype)
            found.append(flat.view(part.shape_of(count)))
        return found

    def finish(self, made: list[Tensor]) -> None:
        """Write tables and head, flush, and let the file appear."""
        self._put_tables(made)
        self._put(self.header.to_bytes(self.checksums, of_tensors(made)), 0)
        put_in_place(self.partial, self.path)
        os.close(self.descriptor)
        self.journal.unlink(missing_ok=True)

    def leave(self, discard: bool) -> None:
        """Stop before the end; the next run can continue, unless everything is discarded."""
        if discard:
            self.partial.unlink(missing_ok=True)
            self.journal.unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            os.close(self.descriptor)

    def _put_tables(self, made: list[Tensor]) -> None:
        places = [at for part, at in zip(self.header.layout, self.header.offsets(), strict=True) if part.of == TABLE]
        for at, table in zip(places, made, strict=True):
            self._put(as_bytes(table), self.head_bytes + at)

    def _put(self, data: memoryview | bytes, at: int) -> None:
        view = memoryview(data)
        while len(view):
            written = os.pwrite(self.descriptor, view, at)
            view, at = view[written:], at + written

    def _lock(self) -> None:
        try:
            fcntl.flock(self.descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)  # released when the descriptor is closed
        except OSError:
            raise FileExistsError(
                f"`out` is being written by another process ({self.partial} is locked); wait for it, or choose another "
                "name"
            ) from None

    def _journaled(self, identity: dict[str, Any]) -> list[int] | None:
        """The checksums in the journal; None if there is none."""
        if not (self.journal.is_file() and self.partial.is_file()):
            return None
        first, *lines = self.journal.read_text().split("\n")
        try:
            before = dict(json.loads(first))
            found = [int(line, 16) for line in lines if len(line) == 8]
        except ValueError as error:
            raise ValueError(
                f"`resume` needs a readable journal ({self.journal} is damaged: {error}); start again without it"
            ) from None
        differing = [name for name in before | identity if before.get(name) != identity.get(name)]
        if differing:
            told = "; ".join(f"{name} was {before.get(name)!r}, now {identity.get(name)!r}" for name in differing)
            raise ValueError(
                f"`resume` needs the source, codec and sample of the interrupted run ({self.partial} has others: "
                f"{told}); give the same ones, or start again without it"
            )
        return found

    def _intact(self, found: list[int]) -> list[int]:
        """The checksums of the first blocks that are in the file as they were written."""
        for k, expected in enumerate(found[: self.header.num_blocks]):
            if of_tensors(self.rows(k)) != expected:
                return found[:k]
        return found[: self.header.num_blocks]

    def _rewrite_journal(self, identity: dict[str, Any]) -> None:
        with replacing(self.journal) as temporary:
            lines = [json.dumps(identity), *(f"{crc:08x}" for crc in self.checksums)]
            Path(temporary).write_text("\n".join(lines) + "\n")


def write_whole(path: Path, header: Header, tensors: tuple[Tensor, ...]) -> None:
    """A store that is in memory already, as a file."""
    made = tables(header.layout, tensors)
    checksums = [of_tensors(header.rows(tensors, k)) for k in range(header.num_blocks)]
    with replacing(path) as temporary, open(temporary, "wb") as file:
        file.write(header.to_bytes(checksums, of_tensors(made)))
        for k in header.order():
            file.write(as_bytes(tensors[k]))
