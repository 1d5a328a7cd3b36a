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
from .quantize_rows import CODE_MAX

MAX_COLUMNS = (2**31 - 1) // CODE_MAX**2


def check_product(
    x: Tensor, x_scale: Tensor, w: Tensor, w_scale: Tensor, bias: Tensor | None, number: str = ""
) -> None:
    """What every product of int8 rows asks of its operands; `number` is part of their names."""
    names = [name.replace("#", number) for name in ("x#", "w#", "x#_scale", "w#_scale", "bias#")]
    for name, codes in zip(names, (x, w), strict=False):
        _checks.dtype_of(name, codes, (torch.int8,))
        _checks.shape_of(name, codes, (None, None), "[rows, columns]")
    _checks.shape_of(names[1], w, (None, x.size(1)), f"[outputs, {x.size(1)}], the columns of `{names[0]}`")
    if x.size(1) > MAX_COLUMNS:
        raise ValueError(
            f"`{names[0]}` must have at most {MAX_COLUMNS} columns, or int32 sums overflow (got {x.size(1)}); split it"
        )
    counts = (x.size(0), w.size(0), w.size(0))
    for name, scale, count in zip(names[2:], (x_scale, w_scale, bias), counts, strict=True):
        if scale is not None:
            _checks.dtype_of(name, scale, (torch.float32,))
            _checks.shape_of(name, scale, (count,), f"[{count}]")


def _check(
    x: Tensor, x_scale: Tensor, w: Tensor, w_scale: Tensor, bias: Tensor | None, rows: Tensor | None = None
) -> None:
    check_product(x, x_scale, w, w_scale, bias)
    if rows is not None:
        _checks.dtype_of("rows", rows, (torch.float32,))
        _checks.shape_of("rows", rows, (x.size(0), w.size(0)), f"[{x.size(0)}, {w.size(0)}], as the result")


def _products(x: Tensor, w: Tensor) -> Tensor:
    """The integer sums, exact in float64, rounded once to float32."""
    return (x.to(torch.float64) @ w.to(torch.float64).t()).to(torch.float32)


def _reference(
    x: Tensor, x_scale: Tensor, w: Tensor, w_scale: Tensor, bias: Tensor | None, rows: Tensor | None = None
) -> Tensor:
    y = _products(x, w) * x_scale.unsqueeze(1) * w_scale
    y = y if bias is None else y + bias
    return y if rows is None else y + rows


def _fake(
    x: Tensor, x_scale: Tensor, w: Tensor, w_scale: Tensor, bias: Tensor | None, rows: Tensor | None = None
) -> Tensor:
    return x_scale.new_empty(x.size(0), w.size(0))


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs[:4])


def _backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
    x, x_scale, w, w_scale = ctx.saved_tensors
    dx_scale = dw_scale = None
    needs = (*ctx.needs_input_grad, False)  # torch leaves out a last argument that equals its default
    if needs[1] or needs[3]:
        weighted = _products(x, w) * dy
        dx_scale = (weighted * w_scale).sum(1)
        dw_scale = (weighted * x_scale.unsqueeze(1)).sum(0)
    return None, dx_scale, None, dw_scale, dy.sum(0) if needs[4] else None, dy if needs[5] else None


int8_linear_op = define(
    "int8_linear(Tensor x, Tensor x_scale, Tensor w, Tensor w_scale, Tensor? bias, Tensor? rows=None) -> Tensor",
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
    return int8_linear_op(x.contiguous(), x_scale.contiguous(), w.contiguous(), w_scale.contiguous(), bias, rows)


def _check_two(*args: Any) -> None:
    one, two = args[:5], args[5:]
    for number, product in (("", one), ("2", two)):
        x, x_scale, w, w_scale, bias = product
        check_product(x, x_scale, w, w_scale, bias, number)
    _checks.shape_of("x2", two[0], (one[0].size(0), None), f"[{one[0].size(0)}, columns], a row for each of `x`")
    _checks.shape_of("w2", two[2], (one[2].size(0), None), f"[{one[2].size(0)}, columns], an output for each of `w`")


def _reference_two(*args: Any) -> Tensor:
    x, x_scale, w, w_scale, bias = args[:5]
    return _reference(x, x_scale, w, w_scale, bias, _reference(*args[5:]))


int8_linear_two = define(
    "int8_linear_two(Tensor x, Tensor x_scale, Tensor w, Tensor w_scale, Tensor? bias, Tensor x2, Tensor x2_scale, "
    "Tensor w2, Tensor w2_scale, Tensor? bias2) -> Tensor",
    check=_check_two,
    reference=_reference_two,
    fake=lambda *args: _fake(*args[:5]),
)


def _check_plus(x: Tensor, x_scale: Tensor, w: Tensor, w_scale: Tensor, left: Tensor, right: Tensor) -> None:
    check_product(x, x_scale, w, w_scale, None)
    _checks.dtype_of("left", left, (torch.float32,))
    _checks.shape_of("left", left, (x.size(0), None), f"[{x.size(0)}, rank], a row for each of `x`")
    _checks.dtype_of("right", right, (torch.float32,))
    shape = (left.size(1), w.size(0))
    _checks.shape_of("right", right, shape, f"{list(shape)}, the columns of `left` by the outputs of `w`")


int8_linear_plus = define(
    "int8_linear_plus(Tensor x, Tensor x_scale, Tensor w, Tensor w_scale, Tensor left, Tensor right) -> Tensor",
    check=_check_plus,
    reference=lambda x, x_scale, w, w_scale, left, right: _reference(x, x_scale, w, w_scale, None, left @ right),
    fake=lambda x, x_scale, w, w_scale, left, right: _fake(x, x_scale, w, w_scale, None),
)
