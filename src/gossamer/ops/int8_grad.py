"""The weight gradient of a product of int8 rows, in integers.

    dW = G^T X^,   X^_i = scale_i * codes_i,   G float rows or int8 rows with scales of their own

The row scales sit on the summed index, so they do not leave the sum. H = scale (.) G is rounded anew, stochastically,
with one step for each column of each chunk of 512 rows, and

    dW[o, k] = sum over chunks c of t_co * (sum over the rows i of c of h_io * codes_ik), the inner sum exact in int32

Unbiased: E[dW] = G^T X^, whether G is exact or itself the result of stochastic rounding. Small chunks matter, because
the columns of H are heavy-tailed: its noise is a few thousandths of dW's energy where one chunk for all rows would make
it a few hundredths. A column with NaN or infinity makes its row of dW NaN.

`int8_grad_exact` is the same with G as it is, in float32. It takes longer for each output, and is for few.
"""

from __future__ import annotations

import torch
from torch import Tensor

from . import _checks, random
from ._library import define
from .quantize_rows import CODE_MAX, QRows

CHUNK = 512
"""Rows that share the steps of their columns; the kernels have the same number."""


def _check(g: Tensor, g_scale: Tensor | None, x: QRows, seed: int) -> None:
    codes, scale = x
    _checks.dtype_of("codes", codes, (torch.int8,))
    _checks.shape_of("codes", codes, (None, None), "[rows, columns]")
    rows = codes.size(0)
    _checks.dtype_of("g", g, (torch.float32,) if g_scale is None else (torch.int8,))
    _checks.shape_of("g", g, (rows, None), f"[{rows}, outputs], a row for each of `codes`")
    for name, each in (("scale", scale), ("g_scale", g_scale)):
        if each is not None:
            _checks.dtype_of(name, each, (torch.float32,))
            _checks.shape_of(name, each, (rows,), f"[{rows}], one number per row")


def _reference(g: Tensor, g_scale: Tensor | None, x: QRows, seed: int) -> Tensor:
    codes, scale = x
    by_row = scale if g_scale is None else scale * g_scale
    total = torch.zeros(g.size(1), codes.size(1), dtype=torch.float32, device=g.device)
    for start in range(0, codes.size(0), CHUNK):
        here = slice(start, start + CHUNK)
        h = g[here].float() * by_row[here].unsqueeze(1)
        a = h.abs().amax(0)
        a = torch.where(a.isfinite(), a, torch.nan)
        tiny = a < 2.0**-100
        inverse = torch.where(tiny | a.isnan(), 0.0, torch.full_like(a, CODE_MAX) / a)
        index = torch.arange(start * g.size(1), start * g.size(1) + h.numel(), device=g.device).view(h.shape)
        rounded = random.floor_plus(torch.where(inverse == 0, 0.0, h * inverse), seed, index)
        rounded = torch.where(inverse == 0, 0.0, rounded.clamp(-CODE_MAX, CODE_MAX))
        product = (rounded.double().t() @ codes[here].double()).float()
        total += product * torch.where(tiny, 0.0, a / CODE_MAX).unsqueeze(1)
    return total


def _fake(g: Tensor, g_scale: Tensor | None, x: QRows, seed: int) -> Tensor:
    return x.scale.new_empty(g.size(1), x.codes.size(1))


int8_grad = define(
    "int8_grad(Tensor g, Tensor? g_scale, QRows, int seed) -> Tensor",
    check=_check,
    reference=_reference,
    fake=_fake,
)


def _check_exact(g: Tensor, x: QRows) -> None:
    _check(g, None, x, 0)


def _exact_reference(g: Tensor, x: QRows) -> Tensor:
    return (g.double().t() @ (x.codes.double() * x.scale.double().unsqueeze(1))).float()


int8_grad_exact = define(
    "int8_grad_exact(Tensor g, QRows) -> Tensor",
    check=_check_exact,
    reference=_exact_reference,
    fake=lambda g, x: _fake(g, None, x, 0),
)
