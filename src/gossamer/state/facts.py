"""Facts about tensors, known for as long as the tensor lives and is not changed: the one cache of its kind.

    edge_index -> Graph or Adjacency     x -> int8 rows     codes -> neighbour sums     out -> what its epilogue saved
    edge_index -> what it was sampled from
    rowptr, col -> checked               gradient -> column sums         x -> its outlier columns, and x without them

A fact belongs to the tensor object, found by its id together with a weak reference to it, never by address. It is void
once the tensor was changed in place, resized or given other memory. Torch does not count changes through NumPy or
`.data`, so those are not noticed; tensors made in inference mode count no changes at all, and nothing is remembered of
them.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Hashable, Iterator
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

Fact = TypeVar("Fact")

ORIGIN = "origin"
"""Of an `edge_index`: the graph that it was sampled from, and the ids of its nodes in that graph."""


class _Entry:
    """Facts about one version of a tensor, and about it together with one of another tensor."""

    __slots__ = ("beside", "facts", "version")

    def __init__(self, version: Hashable) -> None:
        self.version = version
        self.facts: dict[Hashable, Any] = {}
        self.beside: _Entries | None = None


class _Entries:
    """Entries by tensor, each gone when its tensor dies. torch's dictionary of that kind takes four times as long."""

    __slots__ = ("__weakref__", "_found")

    def __init__(self) -> None:
        self._found: dict[int, tuple[weakref.ref[Tensor], _Entry]] = {}

    def get(self, tensor: Tensor) -> _Entry | None:
        found = self._found.get(id(tensor))
        return None if found is None or found[0]() is not tensor else found[1]

    def put(self, tensor: Tensor, entry: _Entry) -> None:
        key, held = id(tensor), weakref.ref(self)

        def forget(gone: weakref.ref[Tensor]) -> None:
            entries = held()
            if entries is not None and entries._found.get(key, (None,))[0] is gone:
                del entries._found[key]

        self._found[key] = weakref.ref(tensor, forget), entry


_entries = _Entries()


def version_of(tensor: Tensor) -> Hashable:
    """Changes when the tensor is changed in place or resized; None for inference tensors, which count no changes."""
    if tensor.is_inference():
        return None
    own = tensor._version, tensor.shape, tensor.data_ptr() if tensor.layout is torch.strided else 0
    if type(tensor) is Tensor or type(tensor) is nn.Parameter:
        return own
    held = tensor.as_tensor() if hasattr(tensor, "as_tensor") else None  # an EdgeIndex wraps the tensor of its ids
    return own if held is None else (own, version_of(held))


def _entry(entries: _Entries, tensor: Tensor, version: Hashable) -> _Entry:
    entry = entries.get(tensor)
    if entry is None or entry.version != version:
        entry = _Entry(version)
        entries.put(tensor, entry)
    return entry


def recall(tensor: Tensor, key: Hashable) -> Any:
    """The fact of that name, None if there is none or the tensor has changed since."""
    entry = _entries.get(tensor)
    if entry is None or key not in entry.facts or entry.version != version_of(tensor):
        return None
    return entry.facts[key]


def note(tensor: Tensor, key: Hashable, fact: Any) -> None:
    """Let `recall` find `fact`."""
    version = version_of(tensor)
    if version is not None:
        _entry(_entries, tensor, version).facts[key] = fact


@contextlib.contextmanager
def lasting() -> Iterator[None]:
    """Where a fact is made: in inference mode, too, as ordinary tensors, which a training step may later save."""
    if not torch.is_inference_mode_enabled():
        yield
        return
    with torch.inference_mode(False), torch.no_grad():
        yield


def remember(tensor: Tensor, key: Hashable, build: Callable[[], Fact], beside: Tensor | None = None) -> Fact:
    """`build()`, once for this version of `tensor` (and of `beside`) and this key."""
    version, other = version_of(tensor), None if beside is None else version_of(beside)
    if version is None or (beside is not None and other is None):
        return build()
    entry = _entry(_entries, tensor, version)
    if beside is not None:
        entry.beside = _Entries() if entry.beside is None else entry.beside
        entry = _entry(entry.beside, beside, other)
    if key not in entry.facts:
        with lasting():
            entry.facts[key] = build()
    return entry.facts[key]
