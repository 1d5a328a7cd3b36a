"""The published plan of sites: Tailor, Fernandez-Marques, Lane, Degree-Quant, ICLR 2021, as its released code rounds.

Every message is rounded by itself before it is summed, and so is what a layer hands on. M(x) are the rounded rows of x,
those of protected nodes as they are; L(x) is rounded for everybody. With X^ = M(X), W^ = L(W), and j a neighbour of i:

    GCN       M( M(sum of M(L(norm_ij) h_j)) + b )             h = M(X^ W^); loops are edges, too
    GAT       M( M(sum of M(p_ij h_j)) + b )                   h = M(X^ W^); heads are concatenated or averaged
              p_ij = softmax over j of  leaky(M(L(a_src) . h_j + L(a_dst) . h_i))
    SAGE      M( M(mean of x^_j) W_n^ + x^_i W_r^ + b )
    GIN       M( network((1 + eps) x_i + M(sum of M(x_j))) )
    product   L( L(X) W^ + b )                                 in GIN's network, and outside of convolutions

What belongs to an edge is protected with its source, sums and results with the node itself. Where edges have weights,
they are the norms of SAGE, GraphConv and GIN. A message x^_j without a norm is rounded already. Columns of features are
not equalised, and 1 + eps is not rounded. Weights have a scale per output, attention vectors one per head.

A layer makes tensors of edges x columns, in plain PyTorch: this plan is for comparison with published numbers.
"""

from __future__ import annotations

from typing import Any, final

import torch
from torch import Tensor
from torch.nn import functional

from ... import ops
from ...aggregate import Adjacency
from ...graph import Graph
from ...graph.normalise import Normalised, as_edges
from ...ops.csr import Sparse, row_of_edge
from ...state import facts
from .. import rules
from ..attention import Attention, Drop, Gat, Projected
from ..epilogue import ready
from .engine import DROPPED, Masks, Quantising, tensors_of


@final
class FakeQuantPublished(Quantising):
    """The sites of the paper."""

    # Products ---------------------------------------------------------------------------------------------------

    def product(self, x: Tensor, weight: Tensor, bias: Tensor | None, add: Tensor | None = None) -> Tensor:
        out = self.rounded("output", self.whole.product(self.rounded("input", x), self.weight(weight), bias))
        return out if add is None else out + add

    def convolve(
        self, x: Any, adjacency: Adjacency, lin: Any, bias: Tensor | None, root: Any = None, x_dst: Any = None,
        inside: bool = False,
    ) -> Tensor:  # fmt: skip
        masks, num_dst = self.masks(adjacency), adjacency.graph.num_dst
        x, x_dst = tensors_of(x, x_dst)
        x_dst = None if x_dst is None else x_dst[:num_dst]
        inner = self.rounded("input", x, None, masks.src)
        rooted = self.rounded_root(root, x_dst, x, inner, masks.dst)
        if inside:
            h = self.rounded("features", self._times(lin, inner, getattr(lin, "bias", None)), None, masks.src)
            out = self.summed(adjacency, h, masks)
            out = out if bias is None else out + bias
        else:
            out = self._times(lin, self.summed(adjacency, inner, masks, is_rounded=True), bias)
        return self.rounded("update", out if rooted is None else out + rooted, None, masks.dst)

    def convolve_plain(
        self, x: Tensor, adjacency: Adjacency, lin: Any, bias: Tensor | None, root: Any, x_dst: Tensor | None
    ) -> Tensor:
        raise AssertionError("`convolve` serves every `lin`")

    def _times(self, lin: Any, x: Tensor, bias: Tensor | None) -> Tensor:
        """x W^T + b of what is rounded already; a module that is more than a weight adds its own bias."""
        return self.whole.product(x, self.weight(lin.weight), bias) if rules.is_plain(lin) else lin(x)

    # Sums -------------------------------------------------------------------------------------------------------

    def transform(self, network: Any, first: Any, adjacency: Adjacency, x: Any, add: Tensor | None = None) -> Tensor:
        masks, x = self.masks(adjacency), ready(x)
        return self.rounded("update", network(self._with_own(adjacency, x, add, masks)), None, masks.dst)

    def aggregate(
        self, adjacency: Adjacency, x: Tensor, bias: Tensor | None = None, add: Tensor | None = None
    ) -> Tensor:
        out = self._with_own(adjacency, x, add, self.masks(adjacency))
        return out if bias is None else out + bias

    def _with_own(self, adjacency: Adjacency, x: Tensor, add: Tensor | None, masks: Masks) -> Tensor:
        """The rounded sum over the neighbours, plus the diagonal times the node's own row, which is not rounded."""
        out, own = self.summed(adjacency.with_diagonal(None), x, masks), adjacency.diagonal
        if own is not None:
            out = out + own.reshape(-1, 1).to(x.dtype) * x[: adjacency.graph.num_dst]
        return out if add is None else out + add

    def summed(self, adjacency: Adjacency, x: Tensor, masks: Masks, is_rounded: bool = False) -> Tensor:
        """M(sum of M(L(norm_ij) x_j)); `is_rounded`: a message without a norm has no site, as x has passed one."""
        matrix, over = self._edges(adjacency)
        if is_rounded and matrix.value is None:
            return self.rounded("aggregate", self._sum(adjacency, x, "input"), None, masks.dst)
        messages = x.index_select(0, matrix.col)  # [edges, columns]
        if matrix.value is not None:
            messages = messages * self.rounded("norm", matrix.value.unsqueeze(1))
        elif (dropped := facts.recall(x, DROPPED)) is not None:
            facts.note(messages, DROPPED, dropped)
        messages = self.rounded("message", messages, None, _of_edges(masks.src, matrix.col))
        return self.rounded("aggregate", self._sum(over, messages, "message"), None, masks.dst)

    def _sum(self, adjacency: Adjacency, x: Tensor, site: str) -> Tensor:
        """The sum of rows that have passed a site. In evaluation they are summed as whole numbers of its steps.

        These sums are exact, as they are in the integer engine: where one lies midway between two codes, both round it
        to the same.
        """
        step = self.sites[site].levels()[0]
        steps = x / step
        if not self.sites.training:
            steps = steps + (steps.detach().round() - steps.detach())
        return self.whole.aggregate(adjacency, steps) * step

    def _edges(self, adjacency: Adjacency) -> tuple[Sparse, Adjacency]:
        """The edges with their norms; and the same edges as an adjacency whose sources are the messages.

        Factors of sources and destinations are a norm together; those of destinations alone divide a sum to a mean.
        """
        graph, is_mean = adjacency.graph, adjacency.src_scale is None
        value = graph.value if adjacency.value is None else adjacency.value
        dst = None if is_mean else adjacency.dst_scale
        matrix = as_edges(Normalised(graph, adjacency.src_scale, dst, adjacency.diagonal), value)
        mean = adjacency.dst_scale if is_mean else None
        return matrix, Adjacency(messages_of(matrix.rowptr), dst_scale=mean, reduce=adjacency.reduce)

    # Attention --------------------------------------------------------------------------------------------------

    def attend(
        self, x: Any, x_dst: Any, adjacency: Adjacency, attention: Attention, shows_weights: bool = False
    ) -> tuple[Tensor, Tensor | None]:
        masks, num_dst = self.masks(adjacency), adjacency.graph.num_dst
        x, x_dst = tensors_of(x, x_dst)
        drop = attention.draw_dropout()
        rows = self.projected("features", x, x_dst, attention, masks, num_dst)
        p = self._weights(adjacency.graph, rows, attention, masks)
        p = p if drop is None else ops.dropout(p, *drop)
        out = self._weighted(adjacency.graph, rows.h_src, p, masks)
        early = attention.early_bias()
        out = out if early is None else out + early
        out = self._finish(attention, out, None if x_dst is None else x_dst[:num_dst], None)
        return self.rounded("update", out, None, masks.dst), p

    def _weights(self, graph: Graph, rows: Projected, a: Attention, masks: Masks) -> Tensor:
        """p_ij, [edges, heads]."""
        assert isinstance(a, Gat), "GATv2 stays in float32"
        a_src, a_dst = self.terms(rows, a)
        logits = a_src.index_select(0, graph.col)
        if a_dst is not None:
            logits = logits + a_dst.index_select(0, row_of_edge(graph.rowptr))
        if a.edge_term is not None:
            logits = logits + a.edge_term
        logits = self.rounded("logits", logits, None, _of_edges(masks.src, graph.col))
        return ops.edge_softmax(graph, functional.leaky_relu(logits, a.slope))

    def _weighted(self, graph: Graph, h: Tensor, p: Tensor, masks: Masks) -> Tensor:
        """M(sum of M(p_ij h_j)), [nodes, heads * width]."""
        by_head = h.index_select(0, graph.col).unflatten(1, (p.size(1), -1))  # [edges, heads, width]
        messages = (p.unsqueeze(2) * by_head).flatten(1)
        messages = self.rounded("message", messages, None, _of_edges(masks.src, graph.col))
        sums = self.whole.aggregate(Adjacency(messages_of(graph.rowptr)), messages)
        return self.rounded("aggregate", sums, None, masks.dst)

    def weigh(
        self, adjacency: Adjacency, rows: Projected, a: Attention, drop: Drop, shows_weights: bool
    ) -> tuple[Tensor, Tensor | None]:
        raise AssertionError("`attend` weighs by itself")


def messages_of(rowptr: Tensor) -> Graph:
    """Edges as sources: each hands its message to its destination alone."""
    count = int(rowptr[-1])
    return Graph(rowptr, torch.arange(count, dtype=torch.int32, device=rowptr.device), count)


def _of_edges(keep: Tensor | None, col: Tensor) -> Tensor | None:
    """The mask of each edge's source."""
    return None if keep is None else keep.index_select(0, col)
