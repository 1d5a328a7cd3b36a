"""A saved tensor in few bits, shared by all nodes that save it.

    Bits     two values, one bit per element: masks, signs, slopes that are 0 or 1. Exact
    Coded    the tensor encoded by a codec

Both stand for the tensor in the order of its memory, as rows: a tensor, its transpose and its reshapes are the same
rows. `Saved` adds the shape and order in which one node wants them.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import numpy
import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._pytree import tree_leaves

from .. import memory
from ..codecs import Codec, Codes
from ..ops.dropout import pack_bits

PROBE = 64
"""Elements that are looked at before all are, to see whether there are more than two values."""


_BITS_OF_BYTE = ((torch.arange(256).unsqueeze(1) >> torch.arange(8)) & 1).bool()  # lowest bit first


class Bits:
    """Two values, one bit per element."""

    def __init__(self, mask: Tensor, low: Tensor, high: Tensor) -> None:
        self.shape, self.low, self.high = mask.shape, low, high
        on_cpu = mask.device.type == "cpu"
        self.bits = torch.from_numpy(numpy.packbits(mask.numpy(), bitorder="little")) if on_cpu else pack_bits(mask)

    @property
    def nbytes(self) -> int:
        return self.bits.numel()

    def rows(self) -> Tensor:
        table = torch.where(_BITS_OF_BYTE.to(self.bits.device), self.high, self.low)  # [256, 8]: eight elements a byte
        pooled = table.device.type == "cpu" and table.dtype in memory.POOLED_DTYPES
        shape = (self.bits.numel(), 8)
        out = memory.empty(shape, table.dtype) if pooled else table.new_empty(shape)
        torch.index_select(table, 0, self.bits.int(), out=out)
        return out.view(-1)[: self.shape.numel()].view(self.shape)

    @classmethod
    def of_two_values(cls, rows: Tensor) -> Bits | None:
        """None if there are more than two values, or NaN, about which codecs raise."""
        probe = rows.view(-1)[:: max(1, rows.numel() // PROBE)]
        for seen in (probe, rows):
            low, high = seen.aminmax()
            mask = seen == high
            if not bool(low.isfinite() & high.isfinite() & (seen == low).logical_or_(mask).all()):
                return None
        return cls(mask, low, high)

    @classmethod
    def of_sign(cls, rows: Tensor) -> Bits:
        """1 where torch's gradient of ReLU sees a positive number, else 0."""
        return cls(~(rows <= 0), rows.new_zeros(()), rows.new_ones(()))


class Coded:
    """A tensor encoded by a codec."""

    def __init__(self, codec: Codec, rows: Tensor, seed: int) -> None:
        self.codec = codec
        self.codes: Codes = codec.encode(rows, seed)

    @property
    def nbytes(self) -> int:
        return self.codes.nbytes

    def rows(self) -> Tensor:
        return self.codec.decode(self.codes)


class Layout(NamedTuple):
    """How rows in the order of memory become the tensor again."""

    shape: torch.Size
    order: tuple[int, ...]

    def restore(self, rows: Tensor) -> Tensor:
        return rows.view(self.shape).permute(self.order)


def rows_of(x: Tensor) -> tuple[Tensor, Layout]:
    """x as a matrix without a copy if its elements lie densely in memory, in whatever order; else a copy."""
    order = sorted(range(x.dim()), key=x.stride, reverse=True)
    dense = x.permute(order)
    if not dense.is_contiguous():
        order, dense = list(range(x.dim())), x.contiguous()
    inverse = tuple(sorted(range(x.dim()), key=order.__getitem__))
    return dense.view(-1, dense.size(-1) if x.dim() else 1), Layout(dense.shape, inverse)


class Shared:
    """One tensor's bits for all nodes that saved it, as long as one of them lives."""

    def __init__(self, content: Bits | Coded, origin: StorageWeakRef) -> None:
        self.content = content
        self.origin = origin  # while this reference lives, no other storage gets the address that is in the key


Saved: TypeAlias = tuple[Shared, Layout]


def restore(saved: Saved) -> Tensor:
    """The decoded tensor, for a backward that is not differentiated itself."""
    if torch.is_grad_enabled() and torch._C._current_graph_task_id() != -1:
        raise RuntimeError(
            "activations saved by compressed_activations allow one derivative (got create_graph=True): what backward "
            "decodes is not a function of the input. Compute what is differentiated twice outside of the block"
        )
    shared, layout = saved
    return layout.restore(shared.content.rows())


class Shelf:
    """Saved tensors by key: the same elements at the same version, encoded in the same way."""

    def __init__(self) -> None:
        self._found: weakref.WeakValueDictionary[Any, Shared] = weakref.WeakValueDictionary()

    def keep(self, x: Tensor, way: object, make: Callable[[Tensor], Bits | Coded | None]) -> tuple[Saved, bool] | None:
        """x encoded by `make`, or shared if it is saved already; and whether it is new. None if `make` returns None."""
        rows, layout = rows_of(x)
        storage = x.untyped_storage()
        copied = None if rows.data_ptr() == x.data_ptr() else (x.shape, x.stride())
        key = (storage._cdata, x.storage_offset(), x._version, x.dtype, rows.shape, copied, way)
        shared = self._found.get(key)
        if shared is not None:
            return (shared, layout), False
        content = make(rows)
        if content is None:
            return None
        shared = self._found[key] = Shared(content, StorageWeakRef(storage))
        return (shared, layout), True


class Storages:
    """A set of living storages, by identity."""

    def __init__(self) -> None:
        self._found: dict[int, StorageWeakRef] = {}
        self._limit = 1024

    def add(self, x: Tensor) -> None:
        if len(self._found) >= self._limit:
            self._found = {key: ref for key, ref in self._found.items() if not ref.expired()}
            self._limit = 1024 + 2 * len(self._found)
        storage = x.untyped_storage()
        self._found[storage._cdata] = StorageWeakRef(storage)

    def __contains__(self, x: Tensor) -> bool:
        return x.untyped_storage()._cdata in self._found


def share_memory(x: Tensor, given: object) -> bool:
    """Whether x lies in the memory of one of the strided tensors in `given`, at any depth."""
    storage = x.untyped_storage()._cdata
    tensors = (t for t in tree_leaves(given) if isinstance(t, Tensor) and t.layout == torch.strided)
    return any(t.untyped_storage()._cdata == storage for t in tensors)
