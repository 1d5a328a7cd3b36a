"""Native kernels of products of int8 rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .. import memory
from ..ops._library import OPS
from ..ops._sum_checks import heads_of
from ..ops.norm_act import Over
from ..ops.spmm_int8 import of_sources
from . import native, num_threads
from ._arguments import F32, MASK64, as_float, at, contiguous, noise, row_sums_scratch, stepped
from .cpu_dense import column_affine, column_gradient, moments
from .cpu_sparse import sum_rows

Rows = tuple[Tensor, Tensor]
NO_TERMS = (0, 0, 0, 1)


def enough(done: bool) -> None:
    if not done:
        raise MemoryError("no memory left for the scratch of a product of int8 rows")


def empty_rows(rows: int, columns: int) -> Rows:
    return memory.empty([rows, columns], torch.int8), memory.empty([rows], F32)


def _int8_linear(
    x: Tensor, x_scale: Tensor, w: Tensor, w_scale: Tensor, bias: Tensor | None, rows: Tensor | None = None
) -> Tensor:
    out = memory.empty([x.size(0), w.size(0)], F32)
    if out.numel() == 0:  # it has no address, by which the kernel would know that floats are wanted
        return out
    x, x_scale, w, w_scale, bias, rows = contiguous(x, x_scale, w, w_scale, as_float(bias), as_float(rows))
    given = (at(x), at(x_scale), at(w), at(w_scale), at(bias), at(rows), at(out), 0, 0, 0, False, 0)
    enough(native.int8_linear(*given, *NO_TERMS, *x.shape, w.size(0), num_threads()))
    return out


def _int8_linear_two(*args: Tensor | None) -> Tensor:
    products = [contiguous(*product[:4], as_float(product[4])) for product in (args[:5], args[5:])]
    (x, _, w, *_), _ = products
    out = memory.empty([x.size(0), w.size(0)], F32)
    if out.numel() == 0:
        return out
    given = [number for product in products for number in (*(at(tensor) for tensor in product), product[0].size(1))]
    enough(native.int8_linear_two(*given, at(out), *out.shape, num_threads()))
    return out


def _int8_linear_plus(x: Tensor, x_scale: Tensor, w: Tensor, w_scale: Tensor, left: Tensor, right: Tensor) -> Tensor:
    out = memory.empty([x.size(0), w.size(0)], F32)
    if out.numel() == 0:
        return out
    x, x_scale, w, w_scale, left, right = contiguous(x, x_scale, w, w_scale, left, right)
    given = (at(x), at(x_scale), at(w), at(w_scale), at(left), at(right), left.size(1))
    enough(native.int8_linear_plus(*given, at(out), *x.shape, w.size(0), num_threads()))
    return out


def _int8_linear_rows(
    x: Tensor, x_scale: Tensor, w: Tensor, w_scale: Tensor, bias: Tensor | None, factor: Tensor | None,
    seed: int | None,
) -> Rows:  # fmt: skip
    codes, scale = empty_rows(x.size(0), w.size(0))
    x, x_scale, w, w_scale, bias, factor = contiguous(x, x_scale, w, w_scale, as_float(bias), factor)
    given = (at(x), at(x_scale), at(w), at(w_scale), at(bias), 0, 0, at(codes), at(scale), at(factor), *noise(seed))
    enough(native.int8_linear(*given, *NO_TERMS, *x.shape, w.size(0), num_threads()))
    return codes, scale


def _spmm_int8(
    rowptr: Tensor, col: Tensor, value: Tensor | None, scale: Tensor, dst_scale: Tensor | None, codes: Tensor,
    src_scale: Tensor | None = None, bias: Tensor | None = None, diagonal: Tensor | None = None,
    rows: Tensor | None = None,
) -> Tensor:  # fmt: skip
    scale = scale.contiguous()
    sources = of_sources(scale, src_scale)
    return sum_rows(
        native.spmm_int8, rowptr, col, value, sources, dst_scale, codes, F32, bias, diagonal, rows, scale
    )  # fmt: skip


def _spmm_rows(
    rowptr: Tensor, col: Tensor, value: Tensor | None, scale: Tensor, dst_scale: Tensor | None, codes: Tensor,
    src_scale: Tensor | None, bias: Tensor | None, diagonal: Tensor | None, rows: Tensor | None,
    factor: Tensor | None, seed: int | None,
) -> Rows:  # fmt: skip
    rowptr, col, codes, scale, factor = contiguous(rowptr, col, codes, scale, factor)
    sources = of_sources(scale, src_scale).float().contiguous()
    value, dst_scale, bias, rows = (as_float(t) for t in (value, dst_scale, bias, rows))
    to, to_scale = empty_rows(rowptr.numel() - 1, codes.size(1))
    weights = (at(value), at(sources), at(dst_scale), heads_of(value))
    diagonal, step = stepped(diagonal)
    end = (at(bias), at(diagonal), step, at(rows), at(scale))
    written = (at(to), at(to_scale), at(factor), *noise(seed), codes.size(1), num_threads())
    enough(native.spmm_rows(at(rowptr), at(col), to.size(0), *weights, *end, at(codes), *written))
    return to, to_scale


def _quantize_times(x: Tensor, factor: Tensor | None, seed: int | None) -> Rows:
    if x.numel() == 0:
        return OPS["quantize_times"].reference(x, factor, seed)
    x, factor = contiguous(x, factor)
    codes, scale = empty_rows(*x.shape)
    enough(native.quantize_times(at(x), at(codes), at(scale), at(factor), *noise(seed), 0, *x.shape, num_threads()))
    return codes, scale


def _chain_rows(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, mean: Tensor | None, var: Tensor | None,
    over: int, eps: float, act: int, slope: float, p: float, seed: int, seed_of_noise: int | None,
) -> tuple[Tensor, ...]:  # fmt: skip
    if x.numel() == 0:
        own = (weight, bias, mean, var, over, eps, act, slope, p, seed, seed_of_noise)
        return OPS["chain_rows"].reference(x, *own)
    x, weight, bias = contiguous(x, weight, bias)
    codes, scale = empty_rows(*x.shape)
    if over == Over.ROWS:
        own_mean, own_var = x.new_empty(x.size(0)), x.new_empty(x.size(0))
    else:
        own_mean, own_var = moments(x, over) if over in (Over.COLUMNS, Over.ALL) else (x.new_empty(0), x.new_empty(0))
    used = (own_mean, own_var) if mean is None or var is None else (mean, var)
    columns = column_affine(x, weight, bias, *used, over, eps) if over != Over.ROWS else (None,) * 4
    by_row = (at(own_mean), at(own_var)) if over == Over.ROWS else (0, 0)
    given = (at(x), *(at(t) for t in columns), at(weight), at(bias), eps, *by_row, *x.shape)
    tail = (act, slope, p, seed & MASK64, at(codes), at(scale), *noise(seed_of_noise), num_threads())
    enough(native.chain_rows(*given, *tail))
    return codes, scale, own_mean, own_var


def _norm_act_backward_rows(
    dout: Tensor, x: Tensor, weight: Tensor | None, bias: Tensor | None, mean: Tensor, var: Tensor,
    over: int, eps: float, act: int, slope: float, p: float, seed: int, factors: list[Tensor | None],
    seeds: list[int], stochastic: bool, heads: int, origin: Tensor | None,
) -> tuple[list[Tensor], Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    if x.numel() == 0:
        plain = (dout, x, weight, bias, mean, var, over, eps, act, slope, p, seed)
        return OPS["norm_act_backward_rows"].reference(*plain, factors, seeds, stochastic, heads, origin)
    dout, x, origin, *factors = contiguous(dout, x, origin, *factors)
    columns, by_x, constant, dweight, dbias = column_gradient(
        dout, x, weight, bias, mean, var, over, eps, act, slope, p, seed
    )
    rows = [empty_rows(*x.shape) for _ in factors]
    to = [
        (at(codes), at(scale), at(factor), *noise(own if stochastic else None))
        for (codes, scale), factor, own in zip(rows, factors, seeds, strict=True)
    ]
    to += [(0, 0, 0, False, 0)] * (2 - len(to))
    sums, scratch = x.new_empty(x.size(1)), row_sums_scratch(*x.shape)
    given = (at(dout), at(x), *(at(t) for t in columns[:3]), at(by_x), at(constant), act, slope, p, seed & MASK64)
    dots = memory.empty([x.size(0), heads], F32) if heads else None
    with_x = (at(origin), at(dots), heads)
    enough(native.affine_backward_rows(*given, *to[0], *to[1], *with_x, at(scratch), at(sums), *x.shape, num_threads()))
    flat = [tensor for pair in rows for tensor in pair]
    return flat, sums, dweight, dbias, x.new_empty(0) if dots is None else dots


def _int8_grad(g: Tensor, g_scale: Tensor | None, codes: Tensor, scale: Tensor, seed: int) -> Tensor:
    (rows, columns), outs = codes.shape, g.size(1)
    if min(rows, columns, outs) == 0:
        return scale.new_zeros(outs, columns)
    g, codes = g.contiguous(), codes.contiguous()
    by_row = (scale if g_scale is None else scale * g_scale).contiguous()
    partial = memory.empty([native.grad_slabs(rows, outs, columns), outs, columns], F32)
    dw = memory.empty([outs, columns], F32)
    kernel = native.int8_grad_f32 if g_scale is None else native.int8_grad_int8
    ends = (at(partial), at(dw), rows, outs, columns, num_threads())
    enough(kernel(at(g), at(by_row), at(codes), seed & MASK64, *ends))
    return dw


def _int8_grad_exact(g: Tensor, codes: Tensor, scale: Tensor) -> Tensor:
    (rows, columns), outs = codes.shape, g.size(1)
    if min(rows, columns, outs) == 0:
        return scale.new_zeros(outs, columns)
    g, codes, scale = contiguous(g, codes, scale)
    partial = memory.empty([native.grad_slabs(rows, outs, columns), outs, columns], F32)
    dw = memory.empty([outs, columns], F32)
    given = (at(g), at(codes), at(scale), at(partial), at(dw))
    native.int8_grad_exact(*given, rows, outs, columns, num_threads())
    return dw


def _sddmm_int8(
    rowptr: Tensor, col: Tensor, a: Tensor, a_scale: Tensor, b: Tensor, b_scale: Tensor, heads: int
) -> Tensor:
    rowptr, col, a, a_scale, b, b_scale = contiguous(rowptr, col, a, a_scale, b, b_scale)
    out = memory.empty([col.numel(), heads], F32)
    rows = (at(a), at(a_scale), at(b), at(b_scale))
    native.sddmm_int8(at(rowptr), at(col), a.size(0), *rows, at(out), a.size(1), heads, num_threads())
    return out


KERNELS: dict[str, Callable[..., Any]] = {
    "int8_linear": _int8_linear,
    "int8_linear_two": _int8_linear_two,
    "int8_linear_plus": _int8_linear_plus,
    "int8_linear_rows": _int8_linear_rows,
    "spmm_int8": _spmm_int8,
    "spmm_rows": _spmm_rows,
    "quantize_times": _quantize_times,
    "chain_rows": _chain_rows,
    "norm_act_backward_rows": _norm_act_backward_rows,
    "int8_grad": _int8_grad,
    "int8_grad_exact": _int8_grad_exact,
    "sddmm_int8": _sddmm_int8,
}
