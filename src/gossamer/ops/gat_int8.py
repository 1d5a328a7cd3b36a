"""GAT on int8 rows: terms of logits with the rows, and the backward of attention and sum in two passes over the edges.

    int8_linear_heads   rows of h = int8_linear(x, w), and terms[k, i, head] = <h_i, att_k> over the head's columns,
                        from h as it was before it was rounded
    gat_backward_int8   by destination: dp_e = dropout(<g_i, h_j>), then ds and its sums da_dst by ops/attention.py
                        pairs[e] = (w_e, ds_e), with w = dropout(p)
    gat_sources_int8    by source: da_src, the sums of ds;  dh_j = sum over the edges e = (j -> i) of  w_e g_i
                        + da_src_j att_src  (+ da_dst_j att_dst, where the sources are the destinations too)

g and h are int8 rows with a scale each; attention, logits and their gradients are float32. A pair is what the second
pass reads of an edge, at a place that is as good as random: one cache line for both. Rows of dh leave as floats, or,
times `factor`, as codes. Sums are taken in an order that does not depend on the number of threads.
"""

from __future__ import annotations

import torch
from torch import Tensor

from . import _checks
from ._library import OPS, define
from .attention import gat_attention_backward_op, gat_attention_op, sums_of_edges
from .dropout import check_probability, dropout_op
from .int8_linear import check_product
from .int8_rows import check_factor, empty_rows, rounded
from .sddmm_int8 import check_dots, sddmm_int8
from .spmm_int8 import int8_sum

Result = tuple[Tensor, Tensor, Tensor]


def _check_linear(
    x: Tensor, x_scale: Tensor, w: Tensor, w_scale: Tensor, att: Tensor, heads: int, seed: int | None
) -> None:
    check_product(x, x_scale, w, w_scale, None)
    _checks.dtype_of("att", att, (torch.float32,))
    _checks.shape_of("att", att, (None, w.size(0)), f"[terms, {w.size(0)}], the outputs of `w`")
    if heads < 1 or w.size(0) % heads:
        raise ValueError(f"`heads` must divide the number of columns, {w.size(0)} (got {heads})")


def _linear(
    x: Tensor, x_scale: Tensor, w: Tensor, w_scale: Tensor, att: Tensor, heads: int, seed: int | None
) -> Result:
    h = OPS["int8_linear"].reference(x, x_scale, w, w_scale, None)
    terms = (h * att.unsqueeze(1)).view(len(att), len(h), heads, w.size(0) // heads).sum(3)
    return *rounded(h, None, seed), terms


def _linear_fake(
    x: Tensor, x_scale: Tensor, w: Tensor, w_scale: Tensor, att: Tensor, heads: int, seed: int | None
) -> Result:
    rows = x_scale.new_empty(x.size(0), w.size(0))
    return *empty_rows(rows), x_scale.new_empty(att.size(0), x.size(0), heads)


int8_linear_heads = define(
    "int8_linear_heads(Tensor x, Tensor x_scale, Tensor w, Tensor w_scale, Tensor att, int heads, int? seed) "
    "-> (Tensor, Tensor, Tensor)",
    check=_check_linear,
    reference=_linear,
    fake=_linear_fake,
)


def _check_backward(
    rowptr: Tensor, col: Tensor, a_src: Tensor, a_dst: Tensor | None, a_edge: Tensor | None, slope: float,
    p: Tensor, drop: float, seed: int, g: Tensor, g_scale: Tensor, h: Tensor, h_scale: Tensor,
) -> None:  # fmt: skip
    _checks.dtype_of("a_src", a_src, (torch.float32,))
    gat_attention_op.check(rowptr, col, a_src, a_dst, a_edge, slope, None, None)
    _checks.dtype_of("p", p, (torch.float32,))
    _checks.shape_of("p", p, (col.numel(), a_src.size(1)), f"[{col.numel()}, {a_src.size(1)}]")
    check_probability(drop, "drop")
    _checks.shape_of("g", g, (None, None), "[num_dst, columns]")
    if a_src.size(1) == 0 or g.size(1) % a_src.size(1):
        raise ValueError(f"`a_src` must have heads that divide the {g.size(1)} columns of `g` (got {a_src.size(1)})")
    check_dots(rowptr, col, g, g_scale, h, h_scale, a_src.size(1), "g", "h")


def _backward(
    rowptr: Tensor, col: Tensor, a_src: Tensor, a_dst: Tensor | None, a_edge: Tensor | None, slope: float,
    p: Tensor, drop: float, seed: int, g: Tensor, g_scale: Tensor, h: Tensor, h_scale: Tensor,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    dw = sddmm_int8.reference(rowptr, col, g, g_scale, h, h_scale, a_src.size(1))
    dp, w = (t if drop == 0 else dropout_op.reference(t, drop, seed) for t in (dw, p))
    ds, da_dst = gat_attention_backward_op.reference(rowptr, col, a_src, a_dst, a_edge, slope, p, dp)
    return torch.cat([w, ds], 1), da_dst


gat_backward_int8 = define(
    "gat_backward_int8(Tensor rowptr, Tensor col, Tensor a_src, Tensor? a_dst, Tensor? a_edge, float slope, Tensor p, "
    "float drop, int seed, Tensor g, Tensor g_scale, Tensor h, Tensor h_scale) -> (Tensor, Tensor)",
    check=_check_backward,
    reference=_backward,
    fake=lambda rowptr, col, a_src, a_dst, a_edge, slope, p, *rest: (
        p.new_empty(p.size(0), 2 * p.size(1)),
        p.new_empty(rowptr.size(0) - 1, p.size(1)),
    ),
)


def _check_sources(
    t_rowptr: Tensor, t_col: Tensor, t_perm: Tensor, pairs: Tensor, g: Tensor, g_scale: Tensor, att_src: Tensor,
    att_dst: Tensor | None, da_dst: Tensor | None, rows: bool, factor: Tensor | None, seed: int | None,
) -> None:  # fmt: skip
    _checks.dtype_of("g", g, (torch.int8,))
    _checks.shape_of("g", g, (None, None), "[num_dst, columns]")
    _checks.dtype_of("g_scale", g_scale, (torch.float32,))
    _checks.shape_of("g_scale", g_scale, (g.size(0),), f"[{g.size(0)}], one number per row")
    _checks.csr(t_rowptr, t_col, g.size(0), "t_")
    nnz, nodes, columns = t_col.numel(), t_rowptr.numel() - 1, g.size(1)
    _checks.permutation("t_perm", t_perm, nnz)
    _checks.dtype_of("pairs", pairs, (torch.float32,))
    _checks.shape_of("pairs", pairs, (nnz, None), f"[{nnz}, 2 * heads]")
    heads = pairs.size(1) // 2
    if heads == 0 or pairs.size(1) % 2 or columns % heads:
        raise ValueError(
            f"`pairs` must have two columns for each head, and heads divide the {columns} columns of `g` "
            f"(got {pairs.size(1)})"
        )
    if (att_dst is None) != (da_dst is None):
        raise ValueError("`att_dst` and `da_dst` must be given together, or neither")
    for name, tensor, shape in (
        ("att_src", att_src, (columns,)), ("att_dst", att_dst, (columns,)), ("da_dst", da_dst, (nodes, heads)),
    ):  # fmt: skip
        if tensor is not None:
            _checks.dtype_of(name, tensor, (torch.float32,))
            _checks.shape_of(name, tensor, shape, str(list(shape)))
    check_factor(factor, columns)


def _of_terms(da: Tensor, att: Tensor) -> Tensor:
    return da.repeat_interleave(att.numel() // da.size(1), 1) * att


def _sources(
    t_rowptr: Tensor, t_col: Tensor, t_perm: Tensor, pairs: Tensor, g: Tensor, g_scale: Tensor, att_src: Tensor,
    att_dst: Tensor | None, da_dst: Tensor | None, rows: bool, factor: Tensor | None, seed: int | None,
) -> Result:  # fmt: skip
    w, ds = pairs[t_perm].chunk(2, 1)
    da_src = sums_of_edges(t_rowptr, None, ds)
    dh = int8_sum(t_rowptr, t_col, w, g_scale, None, g, None, None, 0.0, None) + _of_terms(da_src, att_src)
    if att_dst is not None and da_dst is not None:
        dh = dh + _of_terms(da_dst, att_dst)
    if rows:
        return *rounded(dh, factor, seed), da_src
    return dh, g_scale.new_empty(0), da_src


def _sources_fake(
    t_rowptr: Tensor, t_col: Tensor, t_perm: Tensor, pairs: Tensor, g: Tensor, g_scale: Tensor, att_src: Tensor,
    att_dst: Tensor | None, da_dst: Tensor | None, rows: bool, factor: Tensor | None, seed: int | None,
) -> Result:  # fmt: skip
    dh = g_scale.new_empty(t_rowptr.size(0) - 1, g.size(1))
    written = empty_rows(dh) if rows else (dh, g_scale.new_empty(0))
    return *written, g_scale.new_empty(dh.size(0), pairs.size(1) // 2)


gat_sources_int8 = define(
    "gat_sources_int8(Tensor t_rowptr, Tensor t_col, Tensor t_perm, Tensor pairs, Tensor g, Tensor g_scale, "
    "Tensor att_src, Tensor? att_dst, Tensor? da_dst, bool rows, Tensor? factor, int? seed) "
    "-> (Tensor, Tensor, Tensor)",
    check=_check_sources,
    reference=_sources,
    fake=_sources_fake,
)
"""dh as floats with no scales, or with `rows` codes and scales of dh * factor; then da_src."""
