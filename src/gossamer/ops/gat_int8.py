"""GAT on int8 rows: terms of logits with the rows, attention with its weighted sum, and the backward of those two.

    int8_linear_heads   rows of h = int8_linear(x, w), and terms[k, i, head] = <h_i, att_k> over the head's columns,
                        from h as it was before it was rounded
    gat_sum_int8        p = softmax over row i of s_e = leaky(a_src_j + a_dst_i + a_edge_e),  w = dropout(p)
                        out_i = sum over the edges e = (j -> i) of  w_e h_j + bias,  and  log_sums_i = log sum e^(s_e)
    gat_dots_int8       dots_i = <g_i, sum over the edges of w_e h_j> by head
    gat_backward_int8   dp_e = dropout(<g_i, h_j>)     ds_e = p_e (dp_e - dots_i) leaky'     da_src_j = sum of ds_e
                        dh_j = sum over the edges out of j of  w_e g_i

Softmax's gradient needs the mean of dp under p over each row. That mean is dots_i, as dropout may stand on either side
of the product: sum of p_e dropout(<g_i, h_j>) = <g_i, sum of dropout(p_e) h_j>. Whoever has the sum at hand knows it by
a product of two rows, and with log_sums all weights can be recomputed where they are used. So backward goes over the
edges once, by source, reads one row of g for each, and no weight is saved.

g and h are int8 rows with a scale each; attention, logits and their gradients are float32. ds stands in the order of
the graph, so that its sums by row are da_dst. Rows of dh leave as floats, or, times `factor`, as codes. Sums are taken
in an order that does not depend on the number of threads.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from . import _checks
from ._library import define
from ._structure import structure
from .activation import check_slope
from .attention import gat_attention_op, gat_sums, leaky, leaky_derivative, sums_of_edges
from .csr import Sparse, row_of_edge
from .dropout import check_probability, dropout_op
from .int8_linear import check_product, int8_linear_op
from .int8_rows import check_factor, empty_rows, head_products, rounded
from .quantize_rows import QRows
from .sddmm_int8 import check_dots, sddmm_int8
from .spmm_int8 import int8_sum

Result4 = tuple[Tensor, Tensor, Tensor, Tensor]


@structure
class HeadRows(NamedTuple):
    """Rows of h, and its terms."""

    codes: Tensor
    scale: Tensor
    terms: Tensor

    @property
    def rows(self) -> QRows:
        return QRows(self.codes, self.scale)


def _check_linear(x: QRows, w: QRows, att: Tensor, heads: int, seed: int | None) -> None:
    check_product(x, w, None)
    outputs = w.codes.size(0)
    _checks.dtype_of("att", att, (torch.float32,))
    _checks.shape_of("att", att, (None, outputs), f"[terms, {outputs}], the outputs of `w`")
    if heads < 1 or outputs % heads:
        raise ValueError(f"`heads` must divide the number of columns, {outputs} (got {heads})")


def _linear(x: QRows, w: QRows, att: Tensor, heads: int, seed: int | None) -> HeadRows:
    h = int8_linear_op.reference(x, w, None)
    terms = (h * att.unsqueeze(1)).view(len(att), len(h), heads, h.size(1) // heads).sum(3)
    return HeadRows(*rounded(h, None, seed), terms)


def _linear_fake(x: QRows, w: QRows, att: Tensor, heads: int, seed: int | None) -> HeadRows:
    rows = x.scale.new_empty(x.codes.size(0), w.codes.size(0))
    return HeadRows(*empty_rows(rows), x.scale.new_empty(att.size(0), x.codes.size(0), heads))


int8_linear_heads = define(
    "int8_linear_heads(QRows x, QRows w, Tensor att, int heads, int? seed) -> HeadRows",
    check=_check_linear,
    reference=_linear,
    fake=_linear_fake,
)


def _check_attention(
    rowptr: Tensor, col: Tensor, a_src: Tensor, a_dst: Tensor | None, a_edge: Tensor | None, slope: float,
    drop: float, h: Tensor, h_scale: Tensor,
) -> None:  # fmt: skip
    _checks.dtype_of("a_src", a_src, (torch.float32,))
    gat_attention_op.check(rowptr, col, a_src, a_dst, a_edge, slope, None, None)
    check_probability(drop, "drop")
    _check_rows("h", h, h_scale, a_src.size(0), a_src.size(1))


def _check_rows(name: str, codes: Tensor, scale: Tensor, count: int, heads: int) -> None:
    _checks.dtype_of(name, codes, (torch.int8,))
    _checks.shape_of(name, codes, (count, None), f"[{count}, columns]")
    _checks.dtype_of(f"{name}_scale", scale, (torch.float32,))
    _checks.shape_of(f"{name}_scale", scale, (count,), f"[{count}], one number per row")
    if heads == 0 or codes.size(1) % heads:
        raise ValueError(f"`a_src` must have heads that divide the {codes.size(1)} columns of `{name}` (got {heads})")


def _check_sum(
    rowptr: Tensor, col: Tensor, a_src: Tensor, a_dst: Tensor | None, a_edge: Tensor | None, slope: float,
    drop: float, seed: int, h: Tensor, h_scale: Tensor, bias: Tensor | None,
) -> None:  # fmt: skip
    _check_attention(rowptr, col, a_src, a_dst, a_edge, slope, drop, h, h_scale)
    if bias is not None:
        _checks.dtype_of("bias", bias, (torch.float32,))
        _checks.shape_of("bias", bias, (h.size(1),), f"[{h.size(1)}], one number per column")


def _dropped(x: Tensor, drop: float, seed: int) -> Tensor:
    return x if drop == 0 else dropout_op.reference(x, drop, seed)


def _log_sums(rowptr: Tensor, logits: Tensor) -> Tensor:
    """Infinity for rows without a weight: there every weight is e^(logit - infinity) = 0."""
    row = row_of_edge(rowptr).unsqueeze(1).expand_as(logits)
    lowest = logits.new_full((rowptr.numel() - 1, logits.size(1)), -torch.inf)
    top = lowest.scatter_reduce(0, row, logits, "amax")
    top = torch.where(top == -torch.inf, 0.0, top)
    sums = torch.zeros_like(top).scatter_add(0, row, (logits - top.gather(0, row)).exp())
    return torch.where(sums == 0, torch.inf, top + sums.log())


def _sum(
    rowptr: Tensor, col: Tensor, a_src: Tensor, a_dst: Tensor | None, a_edge: Tensor | None, slope: float,
    drop: float, seed: int, h: Tensor, h_scale: Tensor, bias: Tensor | None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    p = gat_attention_op.reference(rowptr, col, a_src, a_dst, a_edge, slope, None, None)
    out = int8_sum(Sparse(rowptr, col, _dropped(p, drop, seed)), QRows(h, h_scale), bias)
    return out, _log_sums(rowptr, leaky(gat_sums(rowptr, col, a_src, a_dst, a_edge), slope))


gat_sum_int8 = define(
    "gat_sum_int8(Tensor rowptr, Tensor col, Tensor a_src, Tensor? a_dst, Tensor? a_edge, float slope, float drop, "
    "int seed, Tensor h, Tensor h_scale, Tensor? bias) -> (Tensor, Tensor)",
    check=_check_sum,
    reference=_sum,
    fake=lambda rowptr, col, a_src, a_dst, a_edge, slope, drop, seed, h, *rest: (
        a_src.new_empty(rowptr.size(0) - 1, h.size(1)),
        a_src.new_empty(rowptr.size(0) - 1, a_src.size(1)),
    ),
)


def _check_dots(
    rowptr: Tensor, col: Tensor, a_src: Tensor, a_dst: Tensor | None, a_edge: Tensor | None, slope: float,
    drop: float, seed: int, h: Tensor, h_scale: Tensor, g: Tensor, g_scale: Tensor,
) -> None:  # fmt: skip
    _check_attention(rowptr, col, a_src, a_dst, a_edge, slope, drop, h, h_scale)
    check_dots(rowptr, col, g, g_scale, h, h_scale, a_src.size(1), "g", "h")


def _dots(
    rowptr: Tensor, col: Tensor, a_src: Tensor, a_dst: Tensor | None, a_edge: Tensor | None, slope: float,
    drop: float, seed: int, h: Tensor, h_scale: Tensor, g: Tensor, g_scale: Tensor,
) -> Tensor:  # fmt: skip
    out, _ = _sum(rowptr, col, a_src, a_dst, a_edge, slope, drop, seed, h, h_scale, None)
    return head_products(g, g_scale, out, a_src.size(1))


gat_dots_int8 = define(
    "gat_dots_int8(Tensor rowptr, Tensor col, Tensor a_src, Tensor? a_dst, Tensor? a_edge, float slope, float drop, "
    "int seed, Tensor h, Tensor h_scale, Tensor g, Tensor g_scale) -> Tensor",
    check=_check_dots,
    reference=_dots,
    fake=lambda rowptr, col, a_src, *rest: a_src.new_empty(rowptr.size(0) - 1, a_src.size(1)),
)


def _check_backward(
    t_rowptr: Tensor, t_col: Tensor, t_perm: Tensor, a_src: Tensor, a_dst: Tensor | None, a_edge: Tensor | None,
    slope: float, drop: float, seed: int, log_sums: Tensor, dots: Tensor, g: Tensor, g_scale: Tensor, h: Tensor,
    h_scale: Tensor, rows: bool, factor: Tensor | None, noise: int | None,
) -> None:  # fmt: skip
    _checks.shape_of("a_src", a_src, (None, None), "[num_src, heads]")
    nodes, heads = a_src.shape
    _checks.shape_of("g", g, (None, None), "[num_dst, columns]")
    _checks.csr(t_rowptr, t_col, g.size(0), "t_")
    _checks.shape_of("t_rowptr", t_rowptr, (nodes + 1,), f"[{nodes + 1}], as `a_src` has {nodes} rows")
    _checks.permutation("t_perm", t_perm, t_col.numel())
    given = (g.size(0), heads)
    for name, tensor, shape in (
        ("a_src", a_src, (nodes, heads)), ("a_dst", a_dst, given), ("a_edge", a_edge, (t_col.numel(), heads)),
        ("log_sums", log_sums, given), ("dots", dots, given),
    ):  # fmt: skip
        if tensor is not None:
            _checks.dtype_of(name, tensor, (torch.float32,))
            _checks.shape_of(name, tensor, shape, str(list(shape)))
    check_slope(slope)
    check_probability(drop, "drop")
    _check_rows("h", h, h_scale, nodes, heads)
    _check_rows("g", g, g_scale, g.size(0), heads)
    _checks.shape_of("g", g, (None, h.size(1)), f"[num_dst, {h.size(1)}], the columns of `h`")
    check_dots(t_rowptr, t_col, h, h_scale, g, g_scale, heads, "h", "g")
    check_factor(factor, g.size(1))


def _backward(
    t_rowptr: Tensor, t_col: Tensor, t_perm: Tensor, a_src: Tensor, a_dst: Tensor | None, a_edge: Tensor | None,
    slope: float, drop: float, seed: int, log_sums: Tensor, dots: Tensor, g: Tensor, g_scale: Tensor, h: Tensor,
    h_scale: Tensor, rows: bool, factor: Tensor | None, noise: int | None,
) -> Result4:  # fmt: skip
    def placed(x: Tensor) -> Tensor:  # what transposed edges have, in the order of the graph
        return torch.empty_like(x).index_copy(0, t_perm, x)

    dst, heads = t_col.long(), a_src.size(1)
    s = a_src[row_of_edge(t_rowptr)]
    s = s if a_dst is None else s + a_dst[dst]
    s = s if a_edge is None else s + a_edge[t_perm]
    p = placed((leaky(s, slope) - log_sums[dst]).exp())
    dp = _dropped(placed(sddmm_int8.reference(t_rowptr, t_col, h, h_scale, g, g_scale, heads)), drop, seed)
    ds = p * (dp - placed(dots[dst])) * placed(leaky_derivative(s, slope))
    w = _dropped(p, drop, seed)[t_perm]
    dh = int8_sum(Sparse(t_rowptr, t_col, w), QRows(g, g_scale))
    written = rounded(dh, factor, noise) if rows else (dh, g_scale.new_empty(0))
    return *written, sums_of_edges(t_rowptr, t_perm, ds), ds


def _backward_fake(
    t_rowptr: Tensor, t_col: Tensor, t_perm: Tensor, a_src: Tensor, a_dst: Tensor | None, a_edge: Tensor | None,
    slope: float, drop: float, seed: int, log_sums: Tensor, dots: Tensor, g: Tensor, g_scale: Tensor, h: Tensor,
    h_scale: Tensor, rows: bool, factor: Tensor | None, noise: int | None,
) -> Result4:  # fmt: skip
    dh = g_scale.new_empty(h.shape)
    written = empty_rows(dh) if rows else (dh, g_scale.new_empty(0))
    return *written, torch.empty_like(a_src), a_src.new_empty(t_col.size(0), a_src.size(1))


gat_backward_int8 = define(
    "gat_backward_int8(Tensor t_rowptr, Tensor t_col, Tensor t_perm, Tensor a_src, Tensor? a_dst, Tensor? a_edge, "
    "float slope, float drop, int seed, Tensor log_sums, Tensor dots, Tensor g, Tensor g_scale, Tensor h, "
    "Tensor h_scale, bool rows, Tensor? factor, int? noise) -> (Tensor, Tensor, Tensor, Tensor)",
    check=_check_backward,
    reference=_backward,
    fake=_backward_fake,
)
"""dh as floats with no scales, or with `rows` codes and scales of dh * factor; da_src; ds."""
