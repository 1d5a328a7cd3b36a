"""Resident memory at its highest, as the kernel counts it.

Linux keeps the highest resident size of a process (VmHWM in /proc/self/status) and sets it back to the current size
when "5" is written to /proc/self/clear_refs. Where that file is missing or may not be written, the highest size since
the process began (getrusage) is used instead: `Peak.exact` is then False and `Peak.bytes` is only the rise of that
maximum in the block, which is too little if memory had been higher before.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import resource
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from .. import memory

CLEAR_REFS, STATUS = Path("/proc/self/clear_refs"), Path("/proc/self/status")
RU_MAXRSS_UNIT = 1 if sys.platform == "darwin" else 1024


@dataclass
class Peak:
    """`bytes`: the most that was resident in the block, above `start_bytes`, what was resident when it began."""

    bytes: int = 0
    start_bytes: int = 0
    exact: bool = True

    def _saw(self, resident: int) -> None:
        self.bytes = max(self.bytes, resident - self.start_bytes)


_open: list[Peak] = []  # blocks that are running: one that starts inside another sets the kernel's counter back


@contextlib.contextmanager
def peak() -> Iterator[Peak]:
    """Measure the peak of what runs in the block. Free memory is given back to the system first; blocks may nest."""
    give_back()
    _report_highest()
    exact = _reset()
    measured = Peak(start_bytes=_status("VmRSS") if exact else _record(), exact=exact)
    _open.append(measured)
    try:
        yield measured
    finally:
        _report_highest()
        _open.pop()


def give_back() -> None:
    """Return unused memory to the system: garbage, the pool's free buffers, and what malloc holds."""
    gc.collect()
    memory.trim()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc's; other C libraries keep little
    if trim is not None:
        trim(0)


def _report_highest() -> None:
    for measured in _open:
        measured._saw(_status("VmHWM") if measured.exact else _record())


def _reset() -> bool:
    """Set the kernel's highest value back to the current one; False where it cannot be."""
    try:
        CLEAR_REFS.write_text("5")
        return _status("VmHWM") > 0
    except OSError:
        return False


def _status(name: str) -> int:
    """A line such as `VmRSS: 1234 kB` of /proc/self/status, in bytes; 0 if there is none."""
    for line in STATUS.read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    return 0


def _record() -> int:
    """The most that was ever resident in this process."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * RU_MAXRSS_UNIT
