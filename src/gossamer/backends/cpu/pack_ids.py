"""Native kernels of ops/pack_ids.py."""

from __future__ import annotations

import torch
from torch import Tensor

from ... import memory
from ...native import library, num_threads
from ...ops._library import implement
from ...ops.pack_ids import pack_ids, row_bytes, unpack_ids
from ._arguments import at


def _pack_ids(ids: Tensor, bits: int) -> Tensor:
    ids = ids.contiguous()
    packed = memory.empty([ids.size(0), row_bytes(ids.size(1), bits)], torch.uint8)
    library.pack_ids(at(ids), *ids.shape, bits, at(packed), num_threads())
    return packed


def _unpack_ids(packed: Tensor, parts: int, bits: int) -> Tensor:
    packed, ids = packed.contiguous(), memory.empty([packed.size(0), parts], torch.int32)
    library.unpack_ids(at(packed), packed.size(0), parts, bits, at(ids), num_threads())
    return ids


implement(pack_ids, "cpu", _pack_ids)
implement(unpack_ids, "cpu", _unpack_ids)
