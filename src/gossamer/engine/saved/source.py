"""What is saved of the rows that go into a product, so that its weight gradient dout^T rows can be made in backward.

A `Source` is the tensors that autograd is to save, and how to multiply by what they stand for:

    given     the rows themselves: input that needs no gradient lives anyway, costs nothing and is exact
    dropped   such input and a dropout seed: the rows are recomputed
    packed    few-bit codes, of the rows or of the normalised rows an epilogue made them from (ops/saved_epilogue.py)
    coded     the codes of any other codec; a projection is multiplied without being undone

What an epilogue saved of its result is a fact about that tensor (state/facts.py), and a product that reads the tensor
saves nothing of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from ... import ops
from ...codecs import Codec, Projected
from ...codecs.codec import Codes
from ...ops._structure import tensors_of, with_tensors, without_tensors
from ...ops.save_epilogue import Packing
from ...ops.saved_epilogue import SavedEpilogue
from ...state import facts
from ..noise import draw_seed, refuse_nan
from .policy import Saving, packing_of

SavedTensors = Sequence[Tensor | None]
Products = Callable[[SavedTensors, Sequence[Tensor]], list[Tensor]]


class Source(NamedTuple):
    tensors: tuple[Tensor | None, ...]
    products: Products


class SavedResult(NamedTuple):
    """What an epilogue saved: its result is f (weight x_hat + bias), or the decoded rows if `result` was saved."""

    saved: SavedEpilogue
    weight: Tensor | None = None
    bias: Tensor | None = None
    result: bool = False


class Dropped(NamedTuple):
    """The result of dropout on input that needs no gradient: it can be recomputed."""

    x: Tensor
    p: float
    seed: int


def note_saved(out: Tensor, saved: SavedResult | Dropped) -> Tensor:
    facts.note(out, "saved", saved)
    return out


def saved_of(x: Tensor) -> SavedResult | Dropped | None:
    """What an epilogue saved of x, its result."""
    return facts.recall(x, "saved")


def is_free(x: Tensor) -> bool:
    """Whether rows that go into one more product cost nothing: input without gradient, or what an epilogue saved."""
    return not x.requires_grad or saved_of(x) is not None


def source_of(x: Tensor, saving: Saving) -> Source:
    """What to save of rows that go into a product."""
    known = saved_of(x)
    if isinstance(known, SavedResult):
        return packed(known)
    if isinstance(known, Dropped):
        return Source((known.x,), partial(_dropped, known.p, known.seed))
    if not x.requires_grad:
        return Source((x.detach(),), _given)
    return encoded(x, saving.rows)


def encoded(x: Tensor, codec: Codec) -> Source:
    """The rows by a codec, whatever else is known of them."""
    packing = packing_of(codec, x.size(1), x.device)
    if packing is None or x.dtype != torch.float32:
        codes = codec.encode(x.detach(), draw_seed(x))
        return Source(codes.tensors, partial(_coded, codec, codes.shape, codes.dtype))
    return packed(SavedResult(pack_rows(x, packing), result=True))


def pack_rows(x: Tensor, packing: Packing) -> SavedEpilogue:
    """Few bits of the rows x themselves."""
    bits, block, levels = packing.bits, packing.block, packing.levels
    codes, zero, spread = ops.pack(x.detach(), bits, block, draw_seed(x), packing.bf16_meta, levels)
    refuse_nan(zero)
    rows, columns = x.shape
    return SavedEpilogue(codes, zero, spread, levels, None, rows, columns, bits, block)


def packed(known: SavedResult) -> Source:
    tensors = (*tensors_of(known.saved), known.weight, known.bias)
    return Source(tensors, partial(_packed, without_tensors(known.saved), known.result))


def _given(saved: SavedTensors, douts: Sequence[Tensor]) -> list[Tensor]:
    return [ops.weight_grad(dout, saved[0]) for dout in douts]


def _dropped(p: float, seed: int, saved: SavedTensors, douts: Sequence[Tensor]) -> list[Tensor]:
    (x,) = saved
    assert x is not None
    return _given([ops.dropout(x, p, seed)], douts)


def _packed(rest: SavedEpilogue, result: bool, saved: SavedTensors, douts: Sequence[Tensor]) -> list[Tensor]:
    *tensors, weight, bias = saved
    return ops.saved_products(list(douts), with_tensors(rest, tensors), weight, bias, result)


def _coded(
    codec: Codec, shape: torch.Size, dtype: torch.dtype, saved: SavedTensors, douts: Sequence[Tensor]
) -> list[Tensor]:
    codes = Codes(tuple(t for t in saved if t is not None), shape, dtype)
    if isinstance(codec, Projected):
        return [codec.grad_weight(dout, codes) for dout in douts]
    return _given([codec.decode(codes)], douts)
