"""Graph attention: Velickovic et al., Graph Attention Networks, ICLR 2018; Brody, Alon, Yahav, How Attentive are Graph
Attention Networks?, ICLR 2022 (GATv2).

    h = X W        p_ij = softmax over j of  leaky(a_src . h_j + a_dst . h_i + edge term)          (GAT)
                   p_ij = softmax over j of  a . leaky(W_l x_j + W_r x_i)                          (GATv2)
    X'_i = sum over j of dropout(p_ij) h_j + b,    per head; heads are concatenated or averaged

Rows are never laid out per edge: edge-sized tensors have one column per head. A loop is added to every node, as in PyG.
Where the recipe keeps activations in few bits, one op does it all: activations/attention.py, activations/gatv2.py. If
it computes in int8, one of compute/attention.py or gatv2.py; with both, the former, and int8 is for the projections.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch_geometric import nn as pyg

from .. import ops
from ..activations import plan as plans
from ..activations.attention import Setting, gat_sum
from ..activations.gatv2 import gatv2_sum
from ..activations.linear import products
from ..compute.attention import Setting as Int8Setting
from ..compute.attention import gat_sum as int8_gat_sum
from ..compute.conv import Projected
from ..compute.conv import products as int8_products
from ..compute.gatv2 import gatv2_sum as int8_gatv2_sum
from ..compute.plan import is_steady, worth
from ..compute.plan import of as int8_of
from ..graph import Graph
from .adjacency import is_sparse, listed_edges
from .attention import (
    Drop,
    as_edges,
    attention_graph,
    averages,
    dropout_of,
    early_bias,
    few_bits,
    finish,
    float_products_of_chain,
    head_dots,
    in_int8,
    is_bare,
    own_terms,
    products_of_chain,
    projected,
    projected_chain,
    weighted_rows,
)  # fmt: skip
from .border import by_pyg, keep_templates, sizes_of
from .chain import Pending
from .dense import apply_linear, entry_of, is_plain, keeps_little


class GATConv(pyg.GATConv):
    _set_jittable_templates = keep_templates

    def forward(
        self, x: Any, edge_index: Any, edge_attr: Tensor | None = None, size: Any = None,
        return_attention_weights: bool | None = None,
    ) -> Any:  # fmt: skip
        x_src, x_dst = (x, x) if isinstance(x, Tensor) else x
        if not is_bare(x_src) or is_sparse(edge_index) or by_pyg(self, x_src, edge_index):
            return super().forward(x, as_edges(edge_index), edge_attr, size, return_attention_weights)
        drop = dropout_of(self)
        made = projected(self, x_src, return_attention_weights) if x_dst is x_src else None
        h_src, h_dst = self._projected(x_src, x_dst) if made is None else (made.h, made.h)
        graph, attr = attention_graph(self, edge_index, sizes_of(x_src, x_dst, edge_index, size), edge_attr)
        known = made is not None or return_attention_weights
        terms = None if known else self._own_terms((x_src, x_dst), (h_src, h_dst))
        out, p = self._summed(graph, (h_src, h_dst), attr, drop, return_attention_weights, made, terms)
        out = finish(self, out, x_dst)
        return (out, (listed_edges(graph), graph.unsort_edges(p))) if return_attention_weights else out

    def after_chain(self, pending: Pending, edge_index: Any, edge_attr: Tensor | None = None) -> Tensor:
        """forward(pending.run(), ...), with the products made while the chain's result is in the cache."""
        rows = projected_chain(self, pending, edge_index)
        if rows is not None:
            return finish(self, self._summed_of(edge_index, (rows.h, rows.h), edge_attr, rows), None)
        lins = [self.lin] if self.lin is not None else [self.lin_src, self.lin_dst]
        made = products_of_chain(self, pending, edge_index, [*lins, *([] if self.res is None else [self.res])])
        terms = None
        if made is None:
            made = float_products_of_chain(self, pending, edge_index)
            if made is None:
                return self(pending.run(), edge_index, edge_attr)
            terms = made[1].split(self.heads, dim=1)
        out = self._summed_of(edge_index, (made[0], made[len(lins) - 1]), edge_attr, terms=terms)
        return finish(self, out, None, None if self.res is None else made[-1])

    def _summed_of(
        self, edge_index: Any, rows: tuple[Tensor, Tensor], edge_attr: Tensor | None, made: Projected | None = None,
        terms: tuple[Tensor, ...] | None = None,
    ) -> Tensor:  # fmt: skip
        """The sum of rows that are there already."""
        drop = dropout_of(self)
        graph, attr = attention_graph(self, edge_index, sizes_of(*rows, edge_index), edge_attr)
        return self._summed(graph, rows, attr, drop, made=made, own=terms)[0]

    def _summed(
        self, graph: Graph, rows: tuple[Tensor, Tensor | None], attr: Tensor | None, drop: Drop,
        shows_weights: bool | None = None, made: Projected | None = None, own: tuple[Tensor | None, ...] | None = None,
    ) -> tuple[Tensor, Any]:  # fmt: skip
        """The weighted sum of rows, and the weights if they are asked for; `own` are terms of `_own_terms`."""
        plan, how = few_bits(self, rows[0], shows_weights), in_int8(self, rows[0], shows_weights)
        atts: Any = (self.att_src, self.att_dst) if own is None else (None, None)
        of_nodes: Any = own if made is None else made.terms
        if of_nodes is None:
            with torch.set_grad_enabled(torch.is_grad_enabled() and plan is None and how is None):
                of_nodes = self._node_terms(*rows)
        a_src, a_dst = of_nodes
        terms = (a_src, a_dst, self._edge_term(attr))
        bias = early_bias(self, averaged=plan is not None and averages(self))
        given = (graph, *rows, atts, terms, bias)
        if plan is not None:
            return gat_sum(*given, Setting(self.negative_slope, drop, plan, averages(self))), None
        if how is not None:
            return int8_gat_sum(*given, Int8Setting(self.negative_slope, drop, how), made), None
        return weighted_rows(self, graph, rows[0], ops.gat_attention(graph, *terms, self.negative_slope), drop)

    def _projected(self, x_src: Tensor, x_dst: Tensor | None) -> tuple[Tensor, Tensor | None]:
        if self.lin is not None:
            h_src = apply_linear(self.lin, x_src)
            return h_src, h_src if x_dst is x_src else None if x_dst is None else apply_linear(self.lin, x_dst)
        h_dst = None if x_dst is None else apply_linear(self.lin_dst, x_dst)
        return apply_linear(self.lin_src, x_src), h_dst

    def _own_terms(self, xs: tuple[Any, Any], rows: tuple[Tensor, Any]) -> tuple[Tensor | None, ...] | None:
        """The terms of nodes with a gradient of their own, as products of x that is there anyway; None: it is not."""
        plan = few_bits(self, rows[0], None)
        if plan is None:
            return None
        lins = (self.lin, self.lin) if self.lin is not None else (self.lin_src, self.lin_dst)
        atts, steady = (self.att_src, self.att_dst), is_steady(self)
        if rows[1] is rows[0]:
            return own_terms(plan, xs[0], lins[0], atts, rows[0], steady)
        found: list[Tensor | None] = []
        for x, lin, att, h in zip(xs, lins, atts, rows, strict=True):
            terms = None if x is None else own_terms(plan, x, lin, (att,), h, steady)
            if terms is None and x is not None:
                return None
            found.append(None if terms is None else terms[0])
        return tuple(found)

    def _node_terms(self, h_src: Tensor, h_dst: Tensor | None) -> tuple[Tensor, Tensor | None]:
        if h_dst is h_src:
            a_src, a_dst = head_dots(h_src, self.att_src, self.att_dst, steady=is_steady(self))
            return a_src, a_dst
        dots = partial(head_dots, steady=is_steady(self))
        return dots(h_src, self.att_src)[0], None if h_dst is None else dots(h_dst, self.att_dst)[0]

    def _edge_term(self, edge_attr: Tensor | None) -> Tensor | None:
        """<W_e attr_e, a_edge> per head, as attr_e times the product of the two."""
        if edge_attr is None or self.lin_edge is None:
            return None
        attr = edge_attr.view(-1, 1) if edge_attr.dim() == 1 else edge_attr
        if not is_plain(self.lin_edge):
            return head_dots(self.lin_edge(attr), self.att_edge)[0]
        (weight,) = head_dots(self.lin_edge.weight.t(), self.att_edge)  # [edge_dim, heads]
        return attr @ weight


class GATv2Conv(pyg.GATv2Conv):
    _set_jittable_templates = keep_templates

    def forward(
        self, x: Any, edge_index: Any, edge_attr: Tensor | None = None, return_attention_weights: bool | None = None
    ) -> Any:
        x_src, x_dst = (x, x) if isinstance(x, Tensor) else x
        plain = edge_attr is None and x_dst is not None and is_bare(x_src) and not is_sparse(edge_index)
        if not plain or by_pyg(self, x_src, edge_index):
            return super().forward(x, as_edges(edge_index), edge_attr, return_attention_weights)
        drop = dropout_of(self)
        h_src, h_dst = self._projected(x_src, x_dst)
        graph, _ = attention_graph(self, edge_index, sizes_of(x_src, x_dst, edge_index), None)
        out, p = self._summed(graph, h_src, h_dst, drop, return_attention_weights)
        out = finish(self, out, x_dst)
        return (out, (listed_edges(graph), graph.unsort_edges(p))) if return_attention_weights else out

    def after_chain(self, pending: Pending, edge_index: Any, edge_attr: Tensor | None = None) -> Tensor:
        """forward(pending.run(), ...), with the products made while the chain's result is in the cache."""
        lins = [self.lin_l] if self.share_weights else [self.lin_l, self.lin_r]
        wanted = [*lins, *([] if self.res is None else [self.res])]
        made = products_of_chain(self, pending, edge_index, wanted) if edge_attr is None else None
        if made is None:
            return self(pending.run(), edge_index, edge_attr)
        drop, h_src, h_dst = dropout_of(self), made[0], made[len(lins) - 1]
        graph, _ = attention_graph(self, edge_index, sizes_of(h_src, h_dst, edge_index), None)
        out, _ = self._summed(graph, h_src, h_dst, drop)
        return finish(self, out, None, None if self.res is None else made[-1])

    def _summed(
        self, graph: Graph, h_src: Tensor, h_dst: Tensor, drop: Drop, shows_weights: bool | None = None
    ) -> tuple[Tensor, Any]:
        """The weighted sum of rows, and the weights if they are asked for."""
        plan, how = few_bits(self, h_src, shows_weights), in_int8(self, h_src, shows_weights)
        bias = early_bias(self, averaged=plan is not None and averages(self))
        given, slope = (graph, h_src, h_dst, self.att[0], bias), self.negative_slope
        if plan is not None:
            return gatv2_sum(*given, Setting(slope, drop, plan, averages(self))), None
        if how is not None:
            return int8_gatv2_sum(*given, Int8Setting(slope, drop, how)), None
        logits = ops.gatv2_logits(graph, h_src, h_dst, self.att[0], slope)
        return weighted_rows(self, graph, h_src, ops.edge_softmax(graph, logits), drop)

    def _projected(self, x_src: Tensor, x_dst: Tensor) -> tuple[Tensor, Tensor]:
        same, lins = x_dst is x_src, (self.lin_l, self.lin_r)
        plan = plans.of(self.lin_l)
        if self.share_weights and same:
            h = apply_linear(self.lin_l, x_src)
            return h, h
        if same and all(map(is_plain, lins)):  # x is kept once
            given, how = ([lin.weight for lin in lins], [lin.bias for lin in lins]), int8_of(self.lin_l)
            if how is not None and int8_of(self.lin_r) is not None and worth(x_src):
                h_src, h_dst, *_ = int8_products(x_src, *given, entry_of(how, plan, x_src))
                return h_src, h_dst
            if plan is not None and plan.shared and keeps_little(plan, x_src):
                h_src, h_dst = products(x_src, *given, plan)
                return h_src, h_dst
        return apply_linear(self.lin_l, x_src), apply_linear(self.lin_r, x_dst)
