"""Rows on their way: from their owners to [own | halo], and gradients of halo rows back to their owners.

    floats    float rows, as they are or in few bits (messages.py)
    codes     int8 rows with a scale each: what int8 products read is what travels
    back      gradients of halo rows, summed by their owner in the order of ranks

A row is encoded once, whoever needs it; one message goes to each rank. Each function starts the transport and returns a
function that waits for it, so that what needs no remote row can be computed in between.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from .. import memory, ops
from ..graph.halo import Halo
from ..ops.quantize_rows import QRows
from ..ops.random import seed_from
from ..ranks import own_seed
from .messages import Messages


class _Code(NamedTuple):
    """A part of each row as bytes: [rows, bytes]."""

    bytes: Tensor

    @classmethod
    def of(cls, rows: Tensor) -> _Code:
        count = len(rows)
        return cls(
            rows.contiguous().view(count, -1).view(torch.uint8) if rows.numel() else rows.new_empty(count, 0).byte()
        )


def floats(halo: Halo, x: Tensor, messages: Messages) -> Callable[[], Tensor]:
    """x of own nodes -> rows of [own | halo]."""
    n, plan = len(x), halo.plan
    both = memory.empty([n + plan.num_halo, *x.shape[1:]], x.dtype)
    both[:n] = x
    if not _encodes(messages, x):
        chosen = ops.gather_rows(x.contiguous(), plan.rows)
        outgoing = [None if piece is None else ops.gather_rows(chosen, piece) for piece in plan.send]
        posted = halo.ranks.post(outgoing, plan.pieces_of(both[n:]))

        def finish() -> Tensor:
            posted.wait()
            return both

        return finish
    received = _send_packed(halo, ops.gather_rows(x.contiguous(), plan.rows), messages)

    def decode() -> Tensor:
        both[n:] = received()
        return both

    return decode


def codes(halo: Halo, x: QRows, messages: Messages) -> Callable[[], QRows]:
    """Int8 rows of own nodes -> those of [own | halo]; below 8 bits they are packed anew."""
    n, columns, plan = len(x.codes), x.codes.size(1), halo.plan
    both = memory.empty([n + plan.num_halo, columns], torch.int8)
    scale = x.scale.new_empty(n + plan.num_halo)
    both[:n], scale[:n] = x.codes, x.scale
    if messages.bits < 8:
        rows = ops.dequantize_rows(ops.gather_rows(x.codes, plan.rows), x.scale[plan.rows])
        packed = _send_packed(halo, rows, messages)

        def round_again() -> QRows:
            both[n:], scale[n:] = ops.quantize_rows(packed())
            return QRows(both, scale)

        return round_again
    parts = [_Code.of(x.scale[plan.rows].unsqueeze(1)), _Code.of(ops.gather_rows(x.codes, plan.rows))]
    received = _send(halo, parts)

    def finish() -> QRows:
        scales, rows = received()
        if plan.num_halo:
            scale[n:] = scales.view(torch.float32).view(-1)
            both[n:] = rows.view(torch.int8)
        return QRows(both, scale)

    return finish


def back(halo: Halo, dboth: Tensor, messages: Messages) -> Tensor:
    """Gradients of rows of [own | halo] -> those of own rows, every rank's part added in order."""
    plan, n = halo.plan, len(dboth) - halo.plan.num_halo
    dx, theirs = dboth[:n].clone(), dboth[n:].contiguous()
    counts = [0 if piece is None else len(piece) for piece in plan.send]
    ends = [0, *torch.tensor(counts).cumsum(0).tolist()]
    if _encodes(messages, dboth):
        parts = _pack(theirs, messages)
        arrived = [part.new_empty(ends[-1], part.size(1)) for part in parts]
        _swap(halo, [[part[a:b] for part in parts] for a, b in _spans(plan.first)], arrived, ends).wait_into()
        mine = _unpack(arrived, dboth.size(1), messages)
    else:
        mine = dboth.new_empty(ends[-1], *dboth.shape[1:])
        incoming = [mine[a:b] if b > a else None for a, b in _spans(ends)]
        halo.ranks.post(plan.pieces_of(theirs), incoming).wait()
    for piece, (a, b) in zip(plan.send, _spans(ends), strict=True):
        if piece is not None:
            dx.index_add_(0, plan.rows[piece], mine[a:b])  # a rank has each row once
    return dx


# Packing ----------------------------------------------------------------------------------------------------------


def _encodes(messages: Messages, x: Tensor) -> bool:
    return messages.bits < 32 and x.dtype == torch.float32 and x.dim() == 2 and x.size(1) > 0


def _pack(rows: Tensor, messages: Messages) -> list[Tensor]:
    """One range per row: codes, zero and spread as bytes, each [rows, bytes]."""
    count, columns = rows.shape
    if not count:
        return [rows.new_empty(0, size, dtype=torch.uint8) for size in (2, 2, -(-columns * messages.bits // 8))]
    packed, zero, spread = ops.pack(rows, messages.bits, columns, own_seed(seed_from(rows)))
    return [*(_Code.of(each.unsqueeze(1)).bytes for each in (zero, spread)), packed.view(count, -1)]


def _unpack(parts: Sequence[Tensor], columns: int, messages: Messages) -> Tensor:
    zero, spread, packed = parts
    count = len(packed)
    if not count:
        return torch.empty(0, columns)
    low, width = (each.contiguous().view(torch.bfloat16).view(-1) for each in (zero, spread))
    return ops.unpack(packed.reshape(-1), low, width, count * columns, messages.bits, columns).view(count, columns)


def _send_packed(halo: Halo, rows: Tensor, messages: Messages) -> Callable[[], Tensor]:
    received = _send(halo, [_Code(part) for part in _pack(rows, messages)])
    columns = rows.size(1)
    return lambda: _unpack(received(), columns, messages)


def _send(halo: Halo, parts: Sequence[_Code]) -> Callable[[], list[Tensor]]:
    """Parts of the rows of `plan.rows` -> those of the halo's rows."""
    plan = halo.plan
    outgoing = [[] if piece is None else [ops.gather_rows(p.bytes, piece) for p in parts] for piece in plan.send]
    arrived = [part.bytes.new_empty(plan.num_halo, part.bytes.size(1)) for part in parts]
    return _swap(halo, outgoing, arrived, plan.first).wait_into


class _Swap(NamedTuple):
    posted: object
    buffers: list[Tensor | None]
    arrived: list[Tensor]
    ends: Sequence[int]

    def wait_into(self) -> list[Tensor]:
        self.posted.wait()  # type: ignore[attr-defined]
        for buffer, (a, b) in zip(self.buffers, _spans(self.ends), strict=True):
            if buffer is not None:
                pieces = buffer.split([(b - a) * each.size(1) for each in self.arrived])
                for each, piece in zip(self.arrived, pieces, strict=True):
                    each[a:b] = piece.view(b - a, -1)
        return self.arrived


def _swap(halo: Halo, outgoing: Sequence[Sequence[Tensor]], arrived: list[Tensor], ends: Sequence[int]) -> _Swap:
    """One message of bytes to each rank, its parts one behind the other, and one from each."""
    width = sum(each.size(1) for each in arrived)
    buffers = [torch.empty((b - a) * width, dtype=torch.uint8) if b > a else None for a, b in _spans(ends)]
    messages = [torch.cat([part.reshape(-1) for part in parts]) if parts else None for parts in outgoing]
    return _Swap(halo.ranks.post(messages, buffers), buffers, arrived, ends)


def _spans(ends: Sequence[int]) -> list[tuple[int, int]]:
    return list(itertools.pairwise(ends))
