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


@structure
class GatAttention(NamedTuple):
    """What the weights of edges are computed from: terms of logits, slope of leaky, probability and seed of dropout."""

    a_src: Tensor
    a_dst: Tensor | None
    a_edge: Tensor | None
    slope: float
    drop: float
    seed: int

    @property
    def heads(self) -> int:
        return self.a_src.size(1)

    def dropped(self, x: Tensor) -> Tensor:
        """Dropout of what edges have, in the order of the graph; by the definition."""
        return x if self.drop == 0 else dropout_op.reference(x, self.drop, self.seed)


def _check_attention(rowptr: Tensor, col: Tensor, a: GatAttention, h: QRows) -> None:
    _checks.dtype_of("a_src", a.a_src, (torch.float32,))
    gat_attention_op.check(rowptr, col, a.a_src, a.a_dst, a.a_edge, a.slope, None, None)
    check_probability(a.drop, "drop")
    _check_rows("h", h, a.a_src.size(0), a.heads)


def _check_rows(name: str, rows: QRows, count: int, heads: int) -> None:
    codes, scale = rows
    _checks.dtype_of(name, codes, (torch.int8,))
    _checks.shape_of(name, codes, (count, None), f"[{count}, columns]")
    _checks.dtype_of(f"{name}_scale", scale, (torch.float32,))
    _checks.shape_of(f"{name}_scale", scale, (count,), f"[{count}], one number per row")
    if heads == 0 or codes.size(1) % heads:
        raise ValueError(f"`a_src` must have heads that divide the {codes.size(1)} columns of `{name}` (got {heads})")


@structure
class GatSum(NamedTuple):
    """The sums, and log_sums by head."""

    out: Tensor
    log_sums: Tensor


def _check_sum(rowptr: Tensor, col: Tensor, a: GatAttention, h: QRows, bias: Tensor | None) -> None:
    _check_attention(rowptr, col, a, h)
    if bias is not None:
        columns = h.codes.size(1)
        _checks.dtype_of("bias", bias, (torch.float32,))
        _checks.shape_of("bias", bias, (columns,), f"[{columns}], one number per column")


def _log_sums(rowptr: Tensor, logits: Tensor) -> Tensor:
    """Infinity for rows without a weight: there every weight is e^(logit - infinity) = 0."""
    row = row_of_edge(rowptr).unsqueeze(1).expand_as(logits)
    lowest = logits.new_full((rowptr.numel() - 1, logits.size(1)), -torch.inf)
    top = lowest.scatter_reduce(0, row, logits, "amax")
    top = torch.where(top == -torch.inf, 0.0, top)
    sums = torch.zeros_like(top).scatter_add(0, row, (logits - top.gather(0, row)).exp())
    return torch.where(sums == 0, torch.inf, top + sums.log())


def _sum(rowptr: Tensor, col: Tensor, a: GatAttention, h: QRows, bias: Tensor | None) -> GatSum:
    p = gat_attention_op.reference(rowptr, col, a.a_src, a.a_dst, a.a_edge, a.slope, None, None)
    out = int8_sum(Sparse(rowptr, col, a.dropped(p)), h, bias)
    return GatSum(out, _log_sums(rowptr, leaky(gat_sums(rowptr, col, a.a_src, a.a_dst, a.a_edge), a.slope)))


def _sum_fake(rowptr: Tensor, col: Tensor, a: GatAttention, h: QRows, bias: Tensor | None) -> GatSum:
    nodes = rowptr.size(0) - 1
    return GatSum(a.a_src.new_empty(nodes, h.codes.size(1)), a.a_src.new_empty(nodes, a.heads))


gat_sum_int8 = define(
    "gat_sum_int8(Tensor rowptr, Tensor col, GatAttention, QRows h, Tensor? bias) -> GatSum",
    check=_check_sum,
    reference=_sum,
    fake=_sum_fake,
)


def _check_dots(rowptr: Tensor, col: Tensor, a: GatAttention, h: QRows, g: QRows) -> None:
    _check_attention(rowptr, col, a, h)
    check_dots(rowptr, col, g, h, a.heads, "g", "h")


def _dots(rowptr: Tensor, col: Tensor, a: GatAttention, h: QRows, g: QRows) -> Tensor:
    return head_products(g.codes, g.scale, _sum(rowptr, col, a, h, None).out, a.heads)


gat_dots_int8 = define(
    "gat_dots_int8(Tensor rowptr, Tensor col, GatAttention, QRows h, QRows g) -> Tensor",
    check=_check_dots,
    reference=_dots,
    fake=lambda rowptr, col, a, h, g: a.a_src.new_empty(rowptr.size(0) - 1, a.heads),
)


@structure
class GatGradient(NamedTuple):
    """dh as floats with no scales, or with `rows` codes and scales of dh * factor; da_src; ds."""

    dh: Tensor
    scale: Tensor
    da_src: Tensor
    ds: Tensor

    @property
    def rows(self) -> QRows:
        return QRows(self.dh, self.scale)


def _check_backward(
    t_rowptr: Tensor, t_col: Tensor, t_perm: Tensor, a: GatAttention, log_sums: Tensor, dots: Tensor, g: QRows,
    h: QRows, rows: bool, factor: Tensor | None, noise: int | None,
) -> None:  # fmt: skip
    _checks.shape_of("a_src", a.a_src, (None, None), "[num_src, heads]")
    nodes, heads = a.a_src.shape
    _checks.shape_of("g", g.codes, (None, None), "[num_dst, columns]")
    num_dst, num_edges = g.codes.size(0), t_col.numel()
    _checks.csr(t_rowptr, t_col, num_dst, "t_")
    _checks.shape_of("t_rowptr", t_rowptr, (nodes + 1,), f"[{nodes + 1}], as `a_src` has {nodes} rows")
    _checks.permutation("t_perm", t_perm, num_edges)
    for name, tensor, count in (
        ("a_src", a.a_src, nodes), ("a_dst", a.a_dst, num_dst), ("a_edge", a.a_edge, num_edges),
        ("log_sums", log_sums, num_dst), ("dots", dots, num_dst),
    ):  # fmt: skip
        if tensor is not None:
            _checks.dtype_of(name, tensor, (torch.float32,))
            _checks.shape_of(name, tensor, (count, heads), f"[{count}, {heads}]")
    check_slope(a.slope)
    check_probability(a.drop, "drop")
    _check_rows("h", h, nodes, heads)
    _check_rows("g", g, num_dst, heads)
    columns = h.codes.size(1)
    _checks.shape_of("g", g.codes, (None, columns), f"[num_dst, {columns}], the columns of `h`")
    check_dots(t_rowptr, t_col, h, g, heads, "h", "g")
    check_factor(factor, columns)


def _backward(
    t_rowptr: Tensor, t_col: Tensor, t_perm: Tensor, a: GatAttention, log_sums: Tensor, dots: Tensor, g: QRows,
    h: QRows, rows: bool, factor: Tensor | None, noise: int | None,
) -> GatGradient:  # fmt: skip
    def placed(x: Tensor) -> Tensor:  # what transposed edges have, in the order of the graph
        return torch.empty_like(x).index_copy(0, t_perm, x)

    dst = t_col.long()
    s = a.a_src[row_of_edge(t_rowptr)]
    s = s if a.a_dst is None else s + a.a_dst[dst]
    s = s if a.a_edge is None else s + a.a_edge[t_perm]
    p = placed((leaky(s, a.slope) - log_sums[dst]).exp())
    dp = a.dropped(placed(sddmm_int8.reference(t_rowptr, t_col, h, g, a.heads)))
    ds = p * (dp - placed(dots[dst])) * placed(leaky_derivative(s, a.slope))
    dh = int8_sum(Sparse(t_rowptr, t_col, a.dropped(p)[t_perm]), g)
    written = rounded(dh, factor, noise) if rows else (dh, g.scale.new_empty(0))
    return GatGradient(*written, sums_of_edges(t_rowptr, t_perm, ds), ds)


def _backward_fake(
    t_rowptr: Tensor, t_col: Tensor, t_perm: Tensor, a: GatAttention, log_sums: Tensor, dots: Tensor, g: QRows,
    h: QRows, rows: bool, factor: Tensor | None, noise: int | None,
) -> GatGradient:  # fmt: skip
    dh = g.scale.new_empty(h.codes.shape)
    written = empty_rows(dh) if rows else (dh, g.scale.new_empty(0))
    return GatGradient(*written, torch.empty_like(a.a_src), a.a_src.new_empty(t_col.size(0), a.heads))


gat_backward_int8 = define(
    "gat_backward_int8(Tensor t_rowptr, Tensor t_col, Tensor t_perm, GatAttention, Tensor log_sums, Tensor dots, "
    "QRows g, QRows h, bool rows, Tensor? factor, int? noise) -> GatGradient",
    check=_check_backward,
    reference=_backward,
    fake=_backward_fake,
)
