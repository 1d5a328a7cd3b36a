"""The file behind mapped tensors, watched while it is in use.

A mapped store holds addresses, not bytes: a row is read from the disk when it is gathered, and then stays in the page
cache, which the system empties when memory is short. So a store larger than memory can be used, and opening it takes no
time; but it is only as good as its file. To replace the file by renaming another one over it, as this library does, is
harmless to those who have it open: they go on reading the old one, and are told. To write into it or to cut it off is
not: numbers change under the reader's hands, and reading beyond the end of a file ends the process. Size and time of
the file are compared before rows are gathered, which notices such a change unless it happens at that very moment.
"""

from __future__ import annotations

import os
import weakref
from pathlib import Path
from typing import final


class FeatureFileChanged(RuntimeError):
    """The file of a mapped store is no longer what was opened."""


@final
class Watched:
    """A file kept open, to notice that it was changed, cut off or replaced."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.descriptor = os.open(path, os.O_RDONLY)
        weakref.finalize(self, os.close, self.descriptor)
        now = os.fstat(self.descriptor)
        self.size, self.time, self.place = now.st_size, now.st_mtime_ns, (now.st_dev, now.st_ino)

    def check(self) -> None:
        """Raise if the file is not what it was; one system call as long as it is."""
        now = os.fstat(self.descriptor)
        if now.st_size != self.size or now.st_mtime_ns != self.time:
            size = "" if now.st_size == self.size else f", and has {now.st_size} bytes instead of {self.size}"
            raise FeatureFileChanged(
                f"{self.path} was written to while it was mapped{size}; open it again, and replace such files by "
                "renaming"
            )
        if now.st_nlink == 0 and self._is_replaced():  # a file that was only removed is still there for us
            raise FeatureFileChanged(
                f"{self.path} was replaced by another file since it was opened; open it again to read the new one, or "
                "with mmap=False to keep what was read"
            )

    def _is_replaced(self) -> bool:
        try:
            now = os.stat(self.path)
        except OSError:
            return False
        return (now.st_dev, now.st_ino) != self.place
