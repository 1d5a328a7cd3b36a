"""What an epilogue (norm, activation, dropout) leaves behind for backward, and what can be made of it.

    out = f (weight x_hat + bias)        f = factor of each element: activation's slope times dropout's

Saved are the codes of x_hat (of out itself, where there is no norm; ops/pack.py) and the marks that f is made from:

    relu         one bit, set where z > 0 and dropout lets pass       f = bit / (1 - merged)
    leaky_relu   one bit, z > 0                                       f = (1 or slope) dropout(p, seed)
    elu, gelu    act'(z) in a few bits of its known range             f = act'(z) dropout(p, seed), for gradients
    identity     nothing                                              f = dropout(p, seed)

Given the bits, out is linear in x_hat: decoding it from the codes of x_hat is unbiased, and a product that follows
the epilogue needs no copy of its own. Its weight gradient dout^T out^ is summed over tiles of rows; only a tile is in
float32.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from . import _checks
from ._few_bits import check_bits
from ._library import define
from ._structure import structure
from .activation import ACTIVATIONS, check_activation, check_slope
from .dropout import check_probability, kept, survivor_scale, unpack_bits
from .pack_fixed import unpack_fixed
from .unpack import unpack, unpack_op

RELU, LEAKY = ACTIVATIONS.index("relu"), ACTIVATIONS.index("leaky_relu")
GELU_REACH = 0.1290
"""How far below 0 and above 1 the derivative of gelu goes, rounded up."""


@structure
class SavedEpilogue(NamedTuple):
    """What is saved of `rows` x `columns` elements, in the arguments of the ops that read it."""

    codes: Tensor | None
    zero: Tensor | None
    spread: Tensor | None
    levels: Tensor | None
    marks: Tensor | None
    rows: int
    columns: int
    bits: int
    block: int
    act: int = 0
    slope: float = 0.0
    merged: float = 0.0
    p: float = 0.0
    seed: int = 0
    slope_bits: int = 4


def marks_alone(
    shape: torch.Size, marks: Tensor | None, act: int = 0, slope: float = 0.0, merged: float = 0.0, p: float = 0.0,
    seed: int = 0,
) -> SavedEpilogue:  # fmt: skip
    """What an activation or dropout without codes of rows saves."""
    rows, columns = shape
    return SavedEpilogue(None, None, None, None, marks, rows, columns, 0, 1, act, slope, merged, p, seed)


def slope_range(act: int, slope: float) -> tuple[float, float]:
    """The values that the derivative of a smooth activation takes: no metadata is needed for it."""
    if ACTIVATIONS[act] == "elu":
        return min(0.0, slope), max(1.0, slope)
    return -GELU_REACH, 1.0 + GELU_REACH


def is_smooth(act: int) -> bool:
    return ACTIVATIONS[act] in ("elu", "gelu")


def check_saved(k: SavedEpilogue) -> None:
    check_activation(k.act)
    check_slope(k.slope)
    check_probability(k.p)
    check_probability(k.merged, "merged")
    check_bits(k.slope_bits, "slope_bits")
    for name, size in (("rows", k.rows), ("columns", k.columns)):
        _checks.at_least(name, size, 0)
    numel = k.rows * k.columns
    if (k.codes is None) != (k.zero is None) or (k.codes is None) != (k.spread is None):
        raise ValueError("`codes`, `zero` and `spread` must be given together, or none of them")
    if k.codes is not None:
        unpack_op.check(k.codes, k.zero, k.spread, numel, k.bits, k.block, k.levels)
    if k.marks is not None:
        bits = k.slope_bits if is_smooth(k.act) else 1
        _checks.dtype_of("marks", k.marks, (torch.uint8,))
        count = -(-numel * bits // 8)
        _checks.shape_of("marks", k.marks, (count,), f"[{count}], {bits} bit(s) per element")


def check_codes(k: SavedEpilogue) -> None:
    if k.codes is None:
        raise ValueError("`codes` must be given where rows are to be decoded (got None)")


def check_columns(columns: int, **parameters: Tensor | None) -> None:
    for name, tensor in parameters.items():
        if tensor is not None:
            _checks.dtype_of(name, tensor, (torch.float32,))
            _checks.shape_of(name, tensor, (columns,), f"[{columns}], one number per column")


def factor_of(k: SavedEpilogue, like: Tensor) -> Tensor:
    """f, [rows, columns]."""
    shape, numel = (k.rows, k.columns), k.rows * k.columns
    f = torch.ones(shape, dtype=like.dtype, device=like.device)
    if k.marks is not None and is_smooth(k.act):
        f = unpack_fixed(k.marks, numel, k.slope_bits, *slope_range(k.act, k.slope)).view(shape).to(like.dtype)
    elif k.marks is not None:
        f = torch.where(unpack_bits(k.marks, numel).view(shape), survivor_scale(k.merged), k.slope).to(like.dtype)
    return f * kept(f, k.p, k.seed) * survivor_scale(k.p) if k.p > 0 else f


def hat_of(k: SavedEpilogue) -> Tensor:
    """The decoded rows."""
    assert k.codes is not None and k.zero is not None and k.spread is not None
    flat = unpack(k.codes, k.zero, k.spread, k.rows * k.columns, k.bits, k.block, k.levels)
    return flat.view(k.rows, k.columns)


def through(f: Tensor, x: Tensor) -> Tensor:
    """f x, where infinity times a clear bit is zero."""
    return torch.where(f != 0, x * f, 0.0)


def rows_of(k: SavedEpilogue, weight: Tensor | None, bias: Tensor | None, result: bool) -> Tensor:
    """out^: the decoded rows themselves if the result was saved, else f (weight x_hat + bias)."""
    hat = hat_of(k)
    if result:
        return hat
    z = hat if weight is None else hat * weight
    return through(factor_of(k, hat), z if bias is None else z + bias)


def check_rows(k: SavedEpilogue, weight: Tensor | None, bias: Tensor | None, result: bool) -> None:
    check_saved(k)
    check_codes(k)
    check_columns(k.columns, weight=weight, bias=bias)


def _check_products(
    douts: list[Tensor], k: SavedEpilogue, weight: Tensor | None, bias: Tensor | None, result: bool
) -> None:
    check_rows(k, weight, bias, result)
    for position, dout in enumerate(douts):
        _checks.dtype_of(f"douts[{position}]", dout, (torch.float32,))
        _checks.shape_of(f"douts[{position}]", dout, (k.rows, None), f"[{k.rows}, out_features], as many rows as saved")


def _products_reference(
    douts: list[Tensor], k: SavedEpilogue, weight: Tensor | None, bias: Tensor | None, result: bool
) -> list[Tensor]:
    rows = rows_of(k, weight, bias, result)
    return [torch.mm(dout.t(), rows) for dout in douts]


saved_products = define(
    "saved_products(Tensor[] douts, SavedEpilogue, Tensor? weight, Tensor? bias, bool result) -> Tensor[]",
    check=_check_products,
    reference=_products_reference,
    fake=lambda douts, k, weight, bias, result: [dout.new_empty(dout.size(1), k.columns) for dout in douts],
)
"""dout^T out^ for each dout: the weight gradients of the products that the saved rows went into."""
