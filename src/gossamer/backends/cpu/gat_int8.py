"""Native kernels of ops/gat_int8.py."""

from __future__ import annotations

from torch import Tensor

from ... import memory
from ...native import library, num_threads
from ...ops._library import implement
from ...ops.gat_int8 import (
    GatAttention,
    GatGradient,
    GatSum,
    HeadRows,
    gat_backward_int8,
    gat_dots_int8,
    gat_sum_int8,
    int8_linear_heads,
)
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


def _contiguous_terms(a: GatAttention) -> GatAttention:
    a_src, a_dst, a_edge = contiguous(a.a_src, a.a_dst, a.a_edge)
    return a._replace(a_src=a_src, a_dst=a_dst, a_edge=a_edge)


def _given(a: GatAttention) -> tuple[float, ...]:
    """What weights of edges are computed from, as kernels take it."""
    return at(a.a_src), at(a.a_dst), at(a.a_edge), a.slope, a.drop, a.seed & MASK64


def _gat_sum_int8(rowptr: Tensor, col: Tensor, a: GatAttention, h: QRows, bias: Tensor | None) -> GatSum:
    out = memory.empty([rowptr.numel() - 1, h.codes.size(1)], F32)
    return GatSum(out, _summed(rowptr, col, a, h, bias=as_float(bias), out=out))


def _gat_dots_int8(rowptr: Tensor, col: Tensor, a: GatAttention, h: QRows, g: QRows) -> Tensor:
    dots = memory.empty([rowptr.numel() - 1, a.heads], F32)
    _summed(rowptr, col, a, h, g=contiguous_rows(g), dots=dots)
    return dots


def _summed(
    rowptr: Tensor, col: Tensor, a: GatAttention, h: QRows, *, bias: Tensor | None = None, out: Tensor | None = None,
    g: QRows | None = None, dots: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """log_sums; the sums are written to `out`, or their products with g to `dots`."""
    rowptr, col, a, h = rowptr.contiguous(), col.contiguous(), _contiguous_terms(a), contiguous_rows(h)
    nodes = rowptr.numel() - 1
    log_sums = memory.empty([nodes, a.heads], F32)
    rows = (at(h.codes), at(h.scale), at(bias), at(out), at(log_sums))
    against = (0, 0, 0) if g is None else (at(g.codes), at(g.scale), at(dots))
    ends = (h.codes.size(1), a.heads, num_threads())
    enough(library.gat_sum_int8(at(rowptr), at(col), nodes, *_given(a), *rows, *against, *ends))
    return log_sums


def _record(heads: int) -> int:
    """Floats of what an edge reads of its destination, so that few records cross a cache line."""
    size = 3 * heads + 1
    return 1 << (size - 1).bit_length() if size <= 16 else (size + 15) // 16 * 16


def _gat_backward_int8(
    t_rowptr: Tensor, t_col: Tensor, t_perm: Tensor, a: GatAttention, log_sums: Tensor, dots: Tensor, g: QRows,
    h: QRows, rows: bool, factor: Tensor | None, seed_of_noise: int | None,
) -> GatGradient:  # fmt: skip
    if h.codes.numel() == 0:  # dh has no address, by which the kernel would know what is wanted
        own = (t_rowptr, t_col, t_perm, a, log_sums, dots)
        return gat_backward_int8.reference(*own, g, h, rows, factor, seed_of_noise)
    t_rowptr, t_col, t_perm, log_sums, dots, factor = contiguous(t_rowptr, t_col, t_perm, log_sums, dots, factor)
    a, g, h = _contiguous_terms(a), contiguous_rows(g), contiguous_rows(h)
    (nodes, columns), heads = h.codes.shape, a.heads
    ds, da_src = memory.empty([t_col.numel(), heads], F32), memory.empty([nodes, heads], F32)
    records = memory.empty([g.codes.size(0), _record(heads)], F32)
    dh, scale = empty_rows(nodes, columns) if rows else (memory.empty([nodes, columns], F32), g.scale.new_empty(0))
    given = (at(t_rowptr), at(t_col), nodes, at(t_perm), *_given(a), at(log_sums), at(dots))
    between = (at(g.codes), at(g.scale), at(h.codes), at(h.scale), at(ds), at(da_src))
    written = (0, at(dh), at(scale), at(factor), *noise(seed_of_noise)) if rows else (at(dh), 0, 0, 0, False, 0)
    ends = (at(records), *records.shape, *written, columns, heads, num_threads())
    enough(library.gat_backward_int8(*given, *between, *ends))
    return GatGradient(dh, scale, da_src, ds)


implement(int8_linear_heads, "cpu", _int8_linear_heads)
implement(gat_sum_int8, "cpu", _gat_sum_int8)
implement(gat_dots_int8, "cpu", _gat_dots_int8)
implement(gat_backward_int8, "cpu", _gat_backward_int8)
