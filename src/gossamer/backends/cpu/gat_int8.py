"""Native kernels of ops/gat_int8.py."""

from __future__ import annotations

from torch import Tensor

from ... import memory
from ...native import library, num_threads
from ...ops._library import implement
from ...ops.gat_int8 import HeadRows, gat_backward_int8, gat_dots_int8, gat_sum_int8, int8_linear_heads
from ...ops.quantize_rows import QRows
from ._arguments import F32, MASK64, as_float, at, contiguous, enough, noise
from ._int8_rows import contiguous_rows, empty_rows


def _int8_linear_heads(x: QRows, w: QRows, att: Tensor, heads: int, seed: int | None) -> HeadRows:
    x, w, att = contiguous_rows(x), contiguous_rows(w), att.contiguous()
    (rows, columns), outputs = x.codes.shape, w.codes.size(0)
    out, terms = empty_rows(rows, outputs), memory.empty([att.size(0), rows, heads], F32)
    operands = (at(x.codes), at(x.scale), at(w.codes), at(w.scale), 0, 0, 0)
    to = (at(out.codes), at(out.scale), 0, *noise(seed))
    ends = (at(att), at(terms), att.size(0), heads, rows, columns, outputs, num_threads())
    enough(library.int8_linear(*operands, *to, *ends))
    return HeadRows(*out, terms)


def _gat_sum_int8(
    rowptr: Tensor, col: Tensor, a_src: Tensor, a_dst: Tensor | None, a_edge: Tensor | None, slope: float,
    drop: float, seed: int, h: Tensor, h_scale: Tensor, bias: Tensor | None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    bias = as_float(bias)
    out = memory.empty([rowptr.numel() - 1, h.size(1)], F32)
    return out, _summed(rowptr, col, (a_src, a_dst, a_edge), (slope, drop, seed), h, h_scale, bias, out, None)


def _gat_dots_int8(
    rowptr: Tensor, col: Tensor, a_src: Tensor, a_dst: Tensor | None, a_edge: Tensor | None, slope: float,
    drop: float, seed: int, h: Tensor, h_scale: Tensor, g: Tensor, g_scale: Tensor,
) -> Tensor:  # fmt: skip
    dots = memory.empty([rowptr.numel() - 1, a_src.size(1)], F32)
    rule, against = (slope, drop, seed), (g, g_scale, dots)
    _summed(rowptr, col, (a_src, a_dst, a_edge), rule, h, h_scale, None, None, against)
    return dots


def _summed(
    rowptr: Tensor, col: Tensor, terms: tuple[Tensor | None, ...], rule: tuple[float, float, int], h: Tensor,
    h_scale: Tensor, bias: Tensor | None, out: Tensor | None, against: tuple[Tensor, Tensor, Tensor] | None,
) -> Tensor:  # fmt: skip
    """log_sums; the sums are in `out`, or their products with (codes, scale) in the third of `against`."""
    rowptr, col, a_src, a_dst, a_edge, h, h_scale = contiguous(rowptr, col, *terms, h, h_scale)
    g, g_scale, dots = (None,) * 3 if against is None else contiguous(*against)
    slope, drop, seed = rule
    nodes, heads = rowptr.numel() - 1, a_src.size(1)
    log_sums = memory.empty([nodes, heads], F32)
    given = (at(rowptr), at(col), nodes, at(a_src), at(a_dst), at(a_edge), slope, drop, seed & MASK64)
    rows = (at(h), at(h_scale), at(bias), at(out), at(log_sums), at(g), at(g_scale), at(dots))
    enough(library.gat_sum_int8(*given, *rows, h.size(1), heads, num_threads()))
    return log_sums


def _record(heads: int) -> int:
    """Floats of what an edge reads of its destination, so that few records cross a cache line."""
    size = 3 * heads + 1
    return 1 << (size - 1).bit_length() if size <= 16 else (size + 15) // 16 * 16


def _gat_backward_int8(
    t_rowptr: Tensor, t_col: Tensor, t_perm: Tensor, a_src: Tensor, a_dst: Tensor | None, a_edge: Tensor | None,
    slope: float, drop: float, seed: int, log_sums: Tensor, dots: Tensor, g: Tensor, g_scale: Tensor, h: Tensor,
    h_scale: Tensor, rows: bool, factor: Tensor | None, seed_of_noise: int | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    if h.numel() == 0:  # dh has no address, by which the kernel would know what is wanted
        own = (t_rowptr, t_col, t_perm, a_src, a_dst, a_edge, slope, drop, seed, log_sums, dots)
        return gat_backward_int8.reference(*own, g, g_scale, h, h_scale, rows, factor, seed_of_noise)
    t_rowptr, t_col, t_perm, a_src, a_dst, a_edge = contiguous(t_rowptr, t_col, t_perm, a_src, a_dst, a_edge)
    log_sums, dots, g, g_scale, h, h_scale, factor = contiguous(log_sums, dots, g, g_scale, h, h_scale, factor)
    (nodes, columns), heads = h.shape, a_src.size(1)
    ds, da_src = memory.empty([t_col.numel(), heads], F32), memory.empty([nodes, heads], F32)
    records = memory.empty([g.size(0), _record(heads)], F32)
    dh, scale = empty_rows(nodes, columns) if rows else (memory.empty([nodes, columns], F32), g_scale.new_empty(0))
    given = (at(t_rowptr), at(t_col), nodes, at(t_perm), at(a_src), at(a_dst), at(a_edge), slope, drop, seed & MASK64)
    between = (at(log_sums), at(dots), at(g), at(g_scale), at(h), at(h_scale), at(ds), at(da_src))
    written = (0, at(dh), at(scale), at(factor), *noise(seed_of_noise)) if rows else (at(dh), 0, 0, 0, False, 0)
    ends = (at(records), *records.shape, *written, columns, heads, num_threads())
    enough(library.gat_backward_int8(*given, *between, *ends))
    return dh, scale, da_src, ds


implement(int8_linear_heads, "cpu", _int8_linear_heads)
implement(gat_sum_int8, "cpu", _gat_sum_int8)
implement(gat_dots_int8, "cpu", _gat_dots_int8)
implement(gat_backward_int8, "cpu", _gat_backward_int8)
