"""Native kernels of ops/int8_rows.py."""

from __future__ import annotations

from torch import Tensor

from ...native import library, num_threads
from ...ops._library import implement
from ...ops._sum_checks import heads_of
from ...ops.csr import Sparse
from ...ops.int8_rows import (
    EpilogueRows,
    SavingRows,
    epilogue_rows,
    int8_linear_rows,
    quantize_times,
    save_epilogue_rows,
    saved_codes,
    spmm_rows,
)
from ...ops.norm_act import Epilogue, Over
from ...ops.quantize_rows import QRows
from ...ops.save_epilogue import Packing
from ...ops.saved_epilogue import SavedEpilogue
from ...ops.spmm_int8 import of_codes
from ._arguments import as_float, at, contiguous, enough, noise, stepped
from ._int8_rows import NO_TERMS, RowsTo, contiguous_rows, empty_rows
from ._norm import column_affine, own_statistics, pointwise
from ._save_epilogue import saving
from ._saved_epilogue import contiguous_saved, decoder, run_tiles
from ._sums import without_heads


def _quantize_times(x: Tensor, factor: Tensor | None, seed: int | None) -> QRows:
    if x.numel() == 0:
        return quantize_times.reference(x, factor, seed)
    x, factor = contiguous(x, factor)
    rows = empty_rows(*x.shape)
    to = (at(rows.codes), at(rows.scale), at(factor))
    enough(library.quantize_times(at(x), *to, *noise(seed), 0, *x.shape, num_threads()))
    return rows


def _int8_linear_rows(x: QRows, w: QRows, bias: Tensor | None, factor: Tensor | None, seed: int | None) -> QRows:
    out = empty_rows(x.codes.size(0), w.codes.size(0))
    x, w, (bias, factor) = contiguous_rows(x), contiguous_rows(w), contiguous(as_float(bias), factor)
    given = (at(x.codes), at(x.scale), at(w.codes), at(w.scale), at(bias), 0, 0)
    to = (at(out.codes), at(out.scale), at(factor), *noise(seed))
    enough(library.int8_linear(*given, *to, *NO_TERMS, *x.codes.shape, w.codes.size(0), num_threads()))
    return out


def _spmm_rows(
    a: Sparse, x: QRows, bias: Tensor | None, diagonal: Tensor | None, rows: Tensor | None, factor: Tensor | None,
    seed: int | None, keep: Tensor | None = None,
) -> QRows:  # fmt: skip
    a, keep = without_heads(a, keep)
    x, (rowptr, col, factor) = contiguous_rows(x), contiguous(a.rowptr, a.col, factor)
    out = empty_rows(a.num_dst, x.codes.size(1))
    sources = as_float(of_codes(a, x).src_scale)
    value, dst_scale, bias, rows = (as_float(t) for t in (a.value, a.dst_scale, bias, rows))
    weights = (at(value), at(sources), at(dst_scale), heads_of(value), at(keep))
    diagonal, step = stepped(diagonal, a.num_dst)
    end = (at(bias), at(diagonal), step, at(rows), at(x.scale))
    written = (at(out.codes), at(out.scale), at(factor), *noise(seed), x.codes.size(1), num_threads())
    enough(library.spmm_rows(at(rowptr), at(col), a.num_dst, *weights, *end, at(x.codes), *written))
    return out


def _epilogue_rows(x: Tensor, e: Epilogue, seed: int | None) -> EpilogueRows:
    if x.numel() == 0:
        return epilogue_rows.reference(x, e, seed)
    x, weight, bias = contiguous(x, e.weight, e.bias)
    rows, (mean, var) = empty_rows(*x.shape), own_statistics(x, e.over)
    columns = column_affine(x, e.using(mean, var))
    by_row = (at(mean), at(var)) if e.over == Over.ROWS else (0, 0)
    given = (at(x), *(at(t) for t in columns), at(weight), at(bias), e.eps, *by_row, *x.shape)
    enough(library.epilogue_rows(*given, *pointwise(e), at(rows.codes), at(rows.scale), *noise(seed), num_threads()))
    return EpilogueRows(*rows, mean, var)


def _save_epilogue_rows(x: Tensor, e: Epilogue, packing: Packing, rounding: int | None) -> SavingRows:
    found = saving(x, e, packing)
    if found is None:
        return save_epilogue_rows.reference(x, e, packing, rounding)
    rows, columns = x.shape
    to = RowsTo(rows, columns, rounding)
    for start, _, tile in run_tiles(rows, columns, found.group, found.run):
        to.write(start, tile)
    return SavingRows(*to.rows, found.mean, found.var, *found.packed)


def _saved_codes(k: SavedEpilogue, weight: Tensor | None, bias: Tensor | None, result: bool) -> QRows:
    k = contiguous_saved(k)
    if k.rows * k.columns == 0:
        return saved_codes.reference(k, weight, bias, result)
    run, to = decoder(k, weight, bias, result), RowsTo(k.rows, k.columns, None)
    for start, _, tile in run_tiles(k.rows, k.columns, 1, run):
        to.write(start, tile)
    return to.rows


implement(quantize_times, "cpu", _quantize_times)
implement(int8_linear_rows, "cpu", _int8_linear_rows)
implement(spmm_rows, "cpu", _spmm_rows)
implement(epilogue_rows, "cpu", _epilogue_rows)
implement(save_epilogue_rows, "cpu", _save_epilogue_rows)
implement(saved_codes, "cpu", _saved_codes)
