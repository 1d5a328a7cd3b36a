"""Native kernels of ops/int8_rows.py."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from ...native import library, num_threads
from ...ops._library import OPS, implement
from ...ops._sum_checks import heads_of
from ...ops.norm_act import Over
from ...ops.spmm_int8 import of_sources
from ._arguments import MASK64, as_float, at, contiguous, enough, noise, stepped
from ._chain_keep import keeping
from ._int8_rows import NO_TERMS, Rows, RowsTo, empty_rows
from ._kept_chain import contiguous_kept, decoder, run_tiles
from ._norm import column_affine, moments


def _quantize_times(x: Tensor, factor: Tensor | None, seed: int | None) -> Rows:
    if x.numel() == 0:
        return OPS["quantize_times"].reference(x, factor, seed)
    x, factor = contiguous(x, factor)
    codes, scale = empty_rows(*x.shape)
    enough(library.quantize_times(at(x), at(codes), at(scale), at(factor), *noise(seed), 0, *x.shape, num_threads()))
    return codes, scale


def _int8_linear_rows(
    x: Tensor, x_scale: Tensor, w: Tensor, w_scale: Tensor, bias: Tensor | None, factor: Tensor | None,
    seed: int | None,
) -> Rows:  # fmt: skip
    codes, scale = empty_rows(x.size(0), w.size(0))
    x, x_scale, w, w_scale, bias, factor = contiguous(x, x_scale, w, w_scale, as_float(bias), factor)
    given = (at(x), at(x_scale), at(w), at(w_scale), at(bias), 0, 0, at(codes), at(scale), at(factor), *noise(seed))
    enough(library.int8_linear(*given, *NO_TERMS, *x.shape, w.size(0), num_threads()))
    return codes, scale


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
    enough(library.spmm_rows(at(rowptr), at(col), to.size(0), *weights, *end, at(codes), *written))
    return to, to_scale


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
    enough(library.chain_rows(*given, *tail))
    return codes, scale, own_mean, own_var


def _chain_keep_rows(x: Tensor, *args: Any) -> Any:
    *settings, rounding = args
    found = keeping(x, *settings)
    if found is None:
        return OPS["chain_keep_rows"].reference(x, *args)
    rows, columns = x.shape
    to = RowsTo(rows, columns, rounding)
    for start, _, tile in run_tiles(rows, columns, found.group, found.run):
        to.write(start, tile)
    return to.codes, to.scale, found.mean, found.var, *found.kept


def _kept_codes(*args: Any) -> tuple[Tensor, Tensor]:
    k = contiguous_kept(args)
    if k.rows * k.columns == 0:
        return OPS["kept_codes"].reference(*args)
    run, to = decoder(k, *args[15:]), RowsTo(k.rows, k.columns, None)
    for start, _, tile in run_tiles(k.rows, k.columns, 1, run):
        to.write(start, tile)
    return to.codes, to.scale


implement(OPS["quantize_times"], "cpu", _quantize_times)
implement(OPS["int8_linear_rows"], "cpu", _int8_linear_rows)
implement(OPS["spmm_rows"], "cpu", _spmm_rows)
implement(OPS["chain_rows"], "cpu", _chain_rows)
implement(OPS["chain_keep_rows"], "cpu", _chain_keep_rows)
implement(OPS["kept_codes"], "cpu", _kept_codes)
