"""Buffers for large results, reused instead of returned to the system.

A fresh 173 MB tensor costs 42,000 page faults, more than the arithmetic that fills it. Native kernels therefore write
large results into buffers of a pool: when the last tensor over a buffer is gone, the pool keeps its pages for the next
results, of whatever size (it moves pages from one address to another), up to `limit` free bytes. Pages are huge where
the system has such. Tensors in the pool do not support `resize_`.

    gs.memory.stats()            what the pool holds
    gs.memory.set_limit(0)       off: every result is a plain torch.empty
    gs.memory.trim()             return all free buffers to the system now
    gs.memory.leave_room(n)      return free buffers so that torch can allocate n bytes without a higher peak
    gs.memory.use_huge_pages(x)  huge pages for a tensor that torch allocated

`GOSSAMER_POOL_BYTES` sets the limit at start; the default is an eighth of the memory there is.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from torch.utils import deterministic

from .native import library

SMALLEST_POOLED_BYTES = 2**20  # below, malloc reuses pages by itself
LARGEST_POOLED_BYTES = 2**47  # above, no machine has enough memory: torch.empty raises

_DLPACK_CODE = {torch.float32: 2, torch.float64: 2, torch.bfloat16: 4, torch.int8: 0, torch.int32: 0, torch.int64: 0}
_DLPACK_CODE |= {torch.uint8: 1, torch.int16: 0}


def machine_bytes() -> int:
    """Memory that this process may use: the machine's, or less in a container."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for limit in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        text = Path(limit).read_text().strip() if Path(limit).is_file() else "max"
        total = min(total, int(text)) if text.isdigit() else total
    return total


def default_limit() -> int:
    """`GOSSAMER_POOL_BYTES`, or an eighth of the memory there is."""
    text = os.environ.get("GOSSAMER_POOL_BYTES")
    if text is None:
        return machine_bytes() // 8
    if not (text.isascii() and text.isdigit()):
        raise ValueError(f"`GOSSAMER_POOL_BYTES` must be a whole number of bytes, 0 for no pool (got {text!r})")
    return int(text)


POOLED_DTYPES = frozenset(_DLPACK_CODE)

_limit = 0
_switched_off = 0  # how many `without_pool` blocks are open


def set_limit(num_bytes: int) -> None:
    """Keep at most this many free bytes; 0 switches the pool off."""
    global _limit
    if num_bytes < 0:
        raise ValueError(f"`num_bytes` must not be negative; 0 switches the pool off (got {num_bytes})")
    _limit = min(num_bytes, 2**62) if library else 0
    if library:
        library.pool_limit(_limit)


def trim() -> None:
    """Give every free buffer back to the system; the limit stays."""
    if library:
        library.pool_limit(0)
        library.pool_limit(_limit)


def leave_room(num_bytes: int) -> None:
    """Return free buffers until torch can allocate so many bytes without exceeding the pool's peak of bytes in use."""
    if library:
        library.pool_leave_room(min(num_bytes, 2**62))


@contextlib.contextmanager
def without_pool() -> Iterator[None]:
    """Results in plain `torch.empty` for the length of a `with` block; the pool keeps what it has."""
    global _switched_off
    _switched_off += 1
    try:
        yield
    finally:
        _switched_off -= 1


def use_huge_pages(tensor: torch.Tensor) -> bool:
    """Put a long-lived CPU tensor, such as the input features, onto huge pages; False where the system has none.

    Neighbour sums read rows all over memory, and with pages of 4 kB most reads miss the processor's page table cache.
    The tensor stays where it is and nothing about it changes; copying its pages costs one pass, once.
    """
    if library is None or tensor.device.type != "cpu":
        return False
    storage = tensor.untyped_storage()
    return bool(library.use_huge_pages(storage.data_ptr(), storage.nbytes()))


def trim_heap() -> None:
    """Return malloc's free memory to the system (glibc only): building a graph leaves tens of megabytes."""
    trim = getattr(_libc(), "malloc_trim", None)
    if trim is not None:
        trim(0)


@functools.cache
def _libc() -> ctypes.CDLL | None:
    try:
        return ctypes.CDLL(None)
    except OSError:  # a system without a dynamic loader
        return None


def stats() -> dict[str, int]:
    """Bytes in use and free, the limit, and how often a request found a buffer (`hits`) or not (`misses`)."""
    if library is None:
        return {"limit_bytes": 0, "free_bytes": 0, "used_bytes": 0, "hits": 0, "misses": 0}
    return dict(library.pool_stats())


def empty(shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """An uninitialised CPU tensor, from the pool if it is large."""
    num_bytes = dtype.itemsize
    for extent in shape:
        num_bytes *= extent
    if not SMALLEST_POOLED_BYTES <= num_bytes < LARGEST_POOLED_BYTES or not _limit or _switched_off:
        return torch.empty(shape, dtype=dtype)
    assert library is not None  # a limit is only set with the native module
    out = torch.from_dlpack(library.pool_tensor(list(shape), _DLPACK_CODE[dtype], dtype.itemsize * 8))
    if torch.are_deterministic_algorithms_enabled() and getattr(deterministic, "fill_uninitialized_memory", False):
        out.fill_(float("nan") if dtype.is_floating_point else torch.iinfo(dtype).max)  # as torch.empty does then
    return out


set_limit(default_limit())
