"""What is kept of the rows that go into a product, so that its weight gradient dout^T rows can be had in backward.

A `Source` is the tensors that autograd is to save, and how to multiply by what they stand for:

    given     the rows themselves: data that lives anyway costs nothing and is exact
    dropped   data and a dropout seed: the rows are made again
    packed    few-bit codes, of the rows or of the normalised rows a chain made them from (ops/kept_chain.py)
    coded     whatever another codec made; a projection is multiplied without being undone

A chain marks its result with what it kept, and a product that finds such a mark keeps nothing of its own. The mark
goes with the tensor object and is void once the tensor was changed in place.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from .. import ops
from ..codecs import Blockwise, Codec, Projected, Uniform
from ..codecs.codec import Codes
from ..ops.kept_chain import Kept
from .noise import draw_seed, refuse_nan
from .plan import Plan

Saved = Sequence[Tensor | None]
Products = Callable[[Saved, Sequence[Tensor]], list[Tensor]]


class Source(NamedTuple):
    tensors: tuple[Tensor | None, ...]
    products: Products


class Stash(NamedTuple):
    """What a chain kept: its result is f (weight x_hat + bias), or the decoded rows if the result itself was kept."""

    kept: Kept
    weight: Tensor | None
    bias: Tensor | None
    result: bool


class Dropped(NamedTuple):
    """The result of dropout on data that has no gradient: it can be made again."""

    x: Tensor
    p: float
    seed: int


_marks: WeakTensorKeyDictionary = WeakTensorKeyDictionary()


def mark(out: Tensor, stash: Stash | Dropped) -> Tensor:
    _marks[out] = (stash, out._version)
    return out


def mark_of(x: Tensor) -> Stash | Dropped | None:
    stash, version = _marks.get(x, (None, None))
    return stash if stash is not None and version == x._version else None


def layout_of(codec: Codec, columns: int, device: torch.device) -> tuple[int, int, bool, Tensor | None] | None:
    """bits, block, bfloat16 metadata and levels of a codec that the packing kernels know, else None."""
    if isinstance(codec, Blockwise):
        return codec.bits, codec.block, codec.meta == "bfloat16", codec.table(device)
    if isinstance(codec, Uniform):
        return codec.bits, max(1, columns), codec.meta == "bfloat16", None
    return None


def is_free(x: Tensor, plan: Plan) -> bool:
    """Whether rows that go into one more product cost nothing: data, or what a chain kept."""
    return plan.shared and (not x.requires_grad or mark_of(x) is not None)


def source_of(x: Tensor, plan: Plan, is_sum: bool = False) -> Source:
    """What to keep of rows that go into a product. `is_sum`: they are a sum of data, which does not live anyway."""
    if is_sum:
        return _encoded(x, plan.sums)
    known = mark_of(x) if plan.shared else None
    if isinstance(known, Stash):
        return packed(known)
    if isinstance(known, Dropped):
        return Source((known.x,), partial(_dropped, known.p, known.seed))
    if plan.shared and not x.requires_grad:
        return Source((x.detach(),), _given)
    return _encoded(x, plan.rows)


def _encoded(x: Tensor, codec: Codec) -> Source:
    layout = layout_of(codec, x.size(1), x.device)
    if layout is None or x.dtype != torch.float32:
        return coded(x, codec)
    bits, block, bf16_meta, levels = layout
    codes, zero, spread = ops.pack(x.detach(), bits, block, draw_seed(x), bf16_meta, levels)
    refuse_nan(zero)
    rows, columns = x.shape
    kept = Kept(codes, zero, spread, levels, None, rows, columns, bits, block)
    return packed(Stash(kept, None, None, True))


def packed(stash: Stash) -> Source:
    tensors = (*stash.kept.tensors, stash.weight, stash.bias)
    return Source(tensors, partial(_packed, stash.kept.settings, stash.result))


def coded(x: Tensor, codec: Codec) -> Source:
    codes = codec.encode(x.detach(), draw_seed(x))
    return Source(codes.tensors, partial(_coded, codec, codes.shape, codes.dtype))


def _given(saved: Saved, douts: Sequence[Tensor]) -> list[Tensor]:
    return [ops.weight_grad(dout, saved[0]) for dout in douts]


def _dropped(p: float, seed: int, saved: Saved, douts: Sequence[Tensor]) -> list[Tensor]:
    (x,) = saved
    assert x is not None
    return _given([ops.dropout(x, p, seed)], douts)


def _packed(settings: tuple[Any, ...], result: bool, saved: Saved, douts: Sequence[Tensor]) -> list[Tensor]:
    *kept, weight, bias = saved
    return ops.kept_products(list(douts), *kept, *settings, weight, bias, result)


def _coded(codec: Codec, shape: torch.Size, dtype: torch.dtype, saved: Saved, douts: Sequence[Tensor]) -> list[Tensor]:
    codes = Codes(tuple(t for t in saved if t is not None), shape, dtype)
    if isinstance(codec, Projected):
        return [codec.grad_weight(dout, codes) for dout in douts]
    return _given([codec.decode(codes)], douts)
