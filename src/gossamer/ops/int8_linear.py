"""A linear layer on int8 codes.

    y[i, o] = (x_scale_i * sum over k of x[i, k] w[o, k]) * w_scale_o + bias_o + rows[i, o]

The sum is an exact int32: at most 133,144 input columns, so that no sum of products of codes -127 .. 127 can overflow.
Row scales of x and output scales of w leave the sum, because neither depends on k.

`int8_linear_two` is the sum of two such products, which otherwise would go through memory in between;
`int8_linear_plus` that of one and of a float product left @ right of few columns.

    d x_scale_i = <dy_i, (y_i - bias - rows_i) / x_scale_i>     d w_scale, d bias alike, by column     d rows = dy
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from . import _checks
from ._library import define
from .quantize_rows import CODE_MAX, QRows

MAX_COLUMNS = (2**31 - 1) // CODE_MAX**2


def check_product(x: QRows, w: QRows, bias: Tensor | None, number: str = "") -> None:
    """What every product of int8 rows asks of its operands; `number` is part of their names."""
    names = [name.replace("#", number) for name in ("x#", "w#", "x#_scale", "w#_scale", "bias#")]
    for name, codes in zip(names, (x.codes, w.codes), strict=False):
        _checks.dtype_of(name, codes, (torch.int8,))
        _checks.shape_of(name, codes, (None, None), "[rows, columns]")
    (rows, columns), outputs = x.codes.shape, w.codes.size(0)
    _checks.shape_of(names[1], w.codes, (None, columns), f"[outputs, {columns}], the columns of `{names[0]}`")
    if columns > MAX_COLUMNS:
        raise ValueError(
            f"`{names[0]}` must have at most {MAX_COLUMNS} columns, or int32 sums overflow (got {columns}); split it"
        )
    counts = (rows, outputs, outputs)
    for name, scale, count in zip(names[2:], (x.scale, w.scale, bias), counts, strict=True):
        if scale is not None:
            _checks.dtype_of(name, scale, (torch.float32,))
            _checks.shape_of(name, scale, (count,), f"[{count}]")


def _check(x: QRows, w: QRows, bias: Tensor | None, rows: Tensor | None = None) -> None:
    check_product(x, w, bias)
    if rows is not None:
        shape = (x.codes.size(0), w.codes.size(0))
        _checks.dtype_of("rows", rows, (torch.float32,))
        _checks.shape_of("rows", rows, shape, f"{list(shape)}, as the result")


def _products(x: Tensor, w: Tensor) -> Tensor:
    """The integer sums, exact in float64, rounded once to float32."""
    return (x.to(torch.float64) @ w.to(torch.float64).t()).to(torch.float32)


def _reference(x: QRows, w: QRows, bias: Tensor | None, rows: Tensor | None = None) -> Tensor:
    y = _products(x.codes, w.codes) * x.scale.unsqueeze(1) * w.scale
    y = y if bias is None else y + bias
    return y if rows is None else y + rows


def _fake(x: QRows, w: QRows, *rest: Any) -> Tensor:
    return x.scale.new_empty(x.codes.size(0), w.codes.size(0))


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, w, *_ = inputs
    ctx.save_for_backward(*x, *w)


def _backward(ctx: Any, dy: Tensor) -> tuple[Any, ...]:
    x, x_scale, w, w_scale = ctx.saved_tensors
    needs_x, needs_w, needs_bias, needs_rows = ctx.needs
    dx_scale = dw_scale = None
    if needs_x.scale or needs_w.scale:
        weighted = _products(x, w) * dy
        dx_scale = (weighted * w_scale).sum(1)
        dw_scale = (weighted * x_scale.unsqueeze(1)).sum(0)
    return (None, dx_scale), (None, dw_scale), dy.sum(0) if needs_bias else None, dy if needs_rows else None


int8_linear_op = define(
    "int8_linear(QRows x, QRows w, Tensor? bias, Tensor? rows=None) -> Tensor",
    check=_check,
    reference=_reference,
    fake=_fake,
    backward=_backward,
    setup_context=_setup_context,
)


def int8_linear(
    x: Tensor, x_scale: Tensor, w: Tensor, w_scale: Tensor, bias: Tensor | None = None, rows: Tensor | None = None
) -> Tensor:
    """float32 [rows, outputs] from codes x [rows, columns] and w [outputs, columns], both by `quantize_rows`.

    `rows` are added to the result.
    """
    return int8_linear_op(QRows(x, x_scale), QRows(w, w_scale), bias, rows)


def _check_two(x: QRows, w: QRows, bias: Tensor | None, x2: QRows, w2: QRows, bias2: Tensor | None) -> None:
    check_product(x, w, bias)
    check_product(x2, w2, bias2, "2")
    rows, outputs = x.codes.size(0), w.codes.size(0)
    _checks.shape_of("x2", x2.codes, (rows, None), f"[{rows}, columns], a row for each of `x`")
    _checks.shape_of("w2", w2.codes, (outputs, None), f"[{outputs}, columns], an output for each of `w`")


def _reference_two(x: QRows, w: QRows, bias: Tensor | None, x2: QRows, w2: QRows, bias2: Tensor | None) -> Tensor:
    return _reference(x, w, bias, _reference(x2, w2, bias2))


int8_linear_two = define(
    "int8_linear_two(QRows x, QRows w, Tensor? bias, QRows x2, QRows w2, Tensor? bias2) -> Tensor",
    check=_check_two,
    reference=_reference_two,
    fake=_fake,
)


def _check_plus(x: QRows, w: QRows, left: Tensor, right: Tensor) -> None:
    check_product(x, w, None)
    rows, shape = x.codes.size(0), (left.size(1) if left.dim() == 2 else 0, w.codes.size(0))
    _checks.dtype_of("left", left, (torch.float32,))
    _checks.shape_of("left", left, (rows, None), f"[{rows}, rank], a row for each of `x`")
    _checks.dtype_of("right", right, (torch.float32,))
    _checks.shape_of("right", right, shape, f"{list(shape)}, the columns of `left` by the outputs of `w`")


int8_linear_plus = define(
    "int8_linear_plus(QRows x, QRows w, Tensor left, Tensor right) -> Tensor",
    check=_check_plus,
    reference=lambda x, w, left, right: _reference(x, w, None, left @ right),
    fake=_fake,
)
