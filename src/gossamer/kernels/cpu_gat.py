"""Native kernels of GAT on int8 rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from .. import memory
from ..ops._library import OPS
from . import native, num_threads
from ._arguments import F32, MASK64, at, contiguous, noise
from .cpu_int8 import empty_rows, enough

Result = tuple[Tensor, Tensor, Tensor]


def _int8_linear_heads(
    x: Tensor, x_scale: Tensor, w: Tensor, w_scale: Tensor, att: Tensor, heads: int, seed: int | None
) -> Result:
    x, x_scale, w, w_scale, att = contiguous(x, x_scale, w, w_scale, att)
    codes, scale = empty_rows(x.size(0), w.size(0))
    terms = memory.empty([att.size(0), x.size(0), heads], F32)
    given = (at(x), at(x_scale), at(w), at(w_scale), 0, 0, 0, at(codes), at(scale), 0, *noise(seed))
    ends = (at(att), at(terms), att.size(0), heads, *x.shape, w.size(0), num_threads())
    enough(native.int8_linear(*given, *ends))
    return codes, scale, terms


def _gat_backward_int8(
    rowptr: Tensor, col: Tensor, a_src: Tensor, a_dst: Tensor | None, a_edge: Tensor | None, slope: float,
    p: Tensor, drop: float, seed: int, g: Tensor, g_scale: Tensor, h: Tensor, h_scale: Tensor,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    rowptr, col, a_src, a_dst, a_edge, p = contiguous(rowptr, col, a_src, a_dst, a_edge, p)
    g, g_scale, h, h_scale = contiguous(g, g_scale, h, h_scale)
    nodes, heads = rowptr.numel() - 1, p.size(1)
    pairs, da_dst = memory.empty([len(p), 2 * heads], F32), memory.empty([nodes, heads], F32)
    given = (at(rowptr), at(col), nodes, at(a_src), at(a_dst), at(a_edge), slope, at(p), drop, seed & MASK64)
    rows = (at(g), at(g_scale), at(h), at(h_scale))
    enough(native.gat_backward_int8(*given, *rows, at(pairs), at(da_dst), g.size(1), heads, num_threads()))
    return pairs, da_dst


def _gat_sources_int8(
    t_rowptr: Tensor, t_col: Tensor, t_perm: Tensor, pairs: Tensor, g: Tensor, g_scale: Tensor, att_src: Tensor,
    att_dst: Tensor | None, da_dst: Tensor | None, rows: bool, factor: Tensor | None, seed: int | None,
) -> Result:  # fmt: skip
    nodes, columns, heads = t_rowptr.numel() - 1, g.size(1), pairs.size(1) // 2
    if nodes * columns == 0:  # dh has no address, by which the kernel would know what is wanted
        atts = (att_src, att_dst, da_dst)
        return OPS["gat_sources_int8"].reference(t_rowptr, t_col, t_perm, pairs, g, g_scale, *atts, rows, factor, seed)
    t_rowptr, t_col, t_perm, pairs, g, g_scale = contiguous(t_rowptr, t_col, t_perm, pairs, g, g_scale)
    att_src, att_dst, da_dst, factor = contiguous(att_src, att_dst, da_dst, factor)
    da_src = memory.empty([nodes, heads], F32)
    dh, scale = empty_rows(nodes, columns) if rows else (memory.empty([nodes, columns], F32), g_scale.new_empty(0))
    given = (at(t_rowptr), at(t_col), nodes, at(t_perm), at(pairs), at(g), at(g_scale))
    terms = (at(da_src), at(da_dst), at(att_src), at(att_dst))
    written = (0, at(dh), at(scale), at(factor), *noise(seed)) if rows else (at(dh), 0, 0, 0, False, 0)
    enough(native.gat_sources_int8(*given, *terms, *written, columns, heads, num_threads()))
    return dh, scale, da_src


KERNELS: dict[str, Callable[..., Any]] = {
    "int8_linear_heads": _int8_linear_heads,
    "gat_backward_int8": _gat_backward_int8,
    "gat_sources_int8": _gat_sources_int8,
}
