"""Graph attention: Velickovic et al., Graph Attention Networks, ICLR 2018; Brody, Alon, Yahav, How Attentive are Graph
Attention Networks?, ICLR 2022 (GATv2).

    h = X W        p_ij = softmax over j of  leaky(a_src . h_j + a_dst . h_i + edge term)          (GAT)
                   p_ij = softmax over j of  a . leaky(W_l x_j + W_r x_i)                          (GATv2)
    X'_i = sum over j of dropout(p_ij) h_j + b,    per head; heads are concatenated or averaged

Rows are never laid out per edge: edge-sized tensors have one column per head. A loop is added to every node, as in PyG.
Where the recipe keeps activations in few bits, one op does it all: activations/attention.py, activations/gatv2.py.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch_geometric import nn as pyg
from torch_geometric.utils import add_self_loops, remove_self_loops

from .. import ops
from ..activations import plan as plans
from ..activations.attention import Product, Setting, gat_sum
from ..activations.gatv2 import gatv2_sum
from ..activations.linear import products
from ..graph import Graph
from . import rules
from .adjacency import Sizes, checked, from_edges, graph_of, is_sparse, listed_edges, remember
from .border import by_pyg, keep_templates, sizes_of
from .dense import apply_linear, is_plain, keeps_little, linear

Drop = tuple[float, int] | None


@torch.compiler.disable
def looped_graph(edge_index: Any, sizes: Sizes) -> Graph:
    """The graph with one loop for each node that is both source and destination."""
    if isinstance(edge_index, Graph):
        checked(edge_index, sizes)
        return edge_index._cached("looped", lambda: _looped(listed_edges(edge_index), sizes))
    return remember(edge_index, None, ("looped", sizes), lambda: _looped(edge_index, sizes))


def _looped(edge_index: Tensor, sizes: Sizes) -> Graph:
    plain = edge_index.as_tensor() if hasattr(edge_index, "as_tensor") else edge_index
    edges, _ = add_self_loops(remove_self_loops(plain)[0], num_nodes=min(sizes))
    return from_edges(edges, sizes, None)


def attention_graph(
    module: Any, edge_index: Any, sizes: Sizes, edge_attr: Tensor | None
) -> tuple[Graph, Tensor | None]:
    """The graph, with loops if the layer wants them, and the features of its edges, loops included, in CSR order."""
    if not module.add_self_loops:
        graph = graph_of(edge_index, sizes).graph
    else:
        graph = looped_graph(edge_index, sizes)
        if edge_attr is not None:
            edges = listed_edges(edge_index) if isinstance(edge_index, Graph) else edge_index
            plain = remove_self_loops(edges, edge_attr)
            edge_attr = add_self_loops(*plain, fill_value=module.fill_value, num_nodes=min(sizes))[1]
    return graph, None if edge_attr is None else graph.sort_edges(edge_attr)


def head_dots(h: Tensor, *atts: Tensor) -> tuple[Tensor, ...]:
    """<h_n, att> per head and att: [nodes, heads * width] with [1, heads, width] to [nodes, heads] each.

    All as one narrow product with rows that hold each head's att at its own columns: h is read once, and backward has
    one gradient to add to it.
    """
    spread = torch.cat([torch.block_diag(*att[0]) for att in atts])  # [heads * len(atts), heads * width]
    return linear(h, spread, None).split(atts[0].size(1), dim=1)


def weighted_rows(module: Any, graph: Graph, h: Tensor, p: Tensor, drop: Drop) -> tuple[Tensor, Tensor]:
    """The weighted sum of rows, and the weights after attention dropout."""
    p = p if drop is None else ops.dropout(p, *drop)
    return ops.spmm(graph, h, value=p, bias=early_bias(module)), p


def dropout_of(module: Any) -> Drop:
    """Probability and a new seed of the attention's dropout; drawn before any noise, so that recipes share masks."""
    return (module.dropout, rules.draw_seed()) if module.training and module.dropout > 0 else None


def early_bias(module: Any) -> Tensor | None:
    """The bias, if it can be added together with the neighbours."""
    return module.bias if module.concat and module.res is None else None


def finish(module: Any, out: Tensor, x: Tensor | None) -> Tensor:
    """What becomes of the heads; residual and bias, as far as they have not been added."""
    out = out if module.concat else out.view(-1, module.heads, module.out_channels).mean(dim=1)
    if module.res is not None and x is not None:
        out = apply_linear(module.res, x, rows=out)
    added = module.bias is None or early_bias(module) is not None
    return out if added else out + module.bias


def few_bits(module: Any, h: Tensor, shows_weights: bool | None) -> plans.Plan | None:
    """How to keep this call's activations; None: whole, as the weights are when they are returned."""
    plan = None if shows_weights else plans.of(module)
    return plan if plan is not None and plan.worth(h) else None


def is_bare(x: Any) -> bool:
    """What the attention kernels take."""
    fits = isinstance(x, Tensor) and x.dim() == 2 and x.dtype == torch.float32
    return fits and not torch.is_autocast_enabled(x.device.type)


def as_edges(edge_index: Any) -> Any:
    """What PyG's own forward takes: a Graph as the list of its edges."""
    if not isinstance(edge_index, Graph):
        return edge_index
    return edge_index._cached("listed", lambda: listed_edges(edge_index))


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
        h_src, h_dst = self._projected(x_src, x_dst)
        graph, attr = attention_graph(self, edge_index, sizes_of(x_src, x_dst, edge_index, size), edge_attr)
        plan = few_bits(self, h_src, return_attention_weights)
        if plan is not None:
            with torch.no_grad():
                of_nodes = self._node_terms(h_src, h_dst)
            setting = Setting(self.negative_slope, drop, plan)
            atts, terms = (self.att_src, self.att_dst), (*of_nodes, self._edge_term(attr))
            made_from = self._products(x_src, x_dst)
            out = gat_sum(graph, h_src, h_dst, atts, terms, early_bias(self), setting, made_from)
            return finish(self, out, x_dst)
        terms = (*self._node_terms(h_src, h_dst), self._edge_term(attr))
        out, p = weighted_rows(self, graph, h_src, ops.gat_attention(graph, *terms, self.negative_slope), drop)
        out = finish(self, out, x_dst)
        return (out, (listed_edges(graph), graph.unsort_edges(p))) if return_attention_weights else out

    def _projected(self, x_src: Tensor, x_dst: Tensor | None) -> tuple[Tensor, Tensor | None]:
        if self.lin is not None:
            h_src = apply_linear(self.lin, x_src)
            return h_src, h_src if x_dst is x_src else None if x_dst is None else apply_linear(self.lin, x_dst)
        h_dst = None if x_dst is None else apply_linear(self.lin_dst, x_dst)
        return apply_linear(self.lin_src, x_src), h_dst

    def _products(self, x_src: Tensor, x_dst: Tensor | None) -> tuple[Product | None, Product | None]:
        """What `_projected` multiplied, where it is nothing but a product."""
        lins = (self.lin, self.lin) if self.lin is not None else (self.lin_src, self.lin_dst)
        src, dst = (
            None if x is None or not is_plain(lin) or lin.bias is not None else Product(x, lin.weight)
            for x, lin in zip((x_src, x_dst), lins, strict=True)
        )
        return src, dst

    def _node_terms(self, h_src: Tensor, h_dst: Tensor | None) -> tuple[Tensor, Tensor | None]:
        if h_dst is h_src:
            a_src, a_dst = head_dots(h_src, self.att_src, self.att_dst)
            return a_src, a_dst
        return head_dots(h_src, self.att_src)[0], None if h_dst is None else head_dots(h_dst, self.att_dst)[0]

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
        plan = few_bits(self, h_src, return_attention_weights)
        if plan is not None:
            setting = Setting(self.negative_slope, drop, plan)
            out = gatv2_sum(graph, h_src, h_dst, self.att[0], early_bias(self), setting)
            return finish(self, out, x_dst)
        logits = ops.gatv2_logits(graph, h_src, h_dst, self.att[0], self.negative_slope)
        out, p = weighted_rows(self, graph, h_src, ops.edge_softmax(graph, logits), drop)
        out = finish(self, out, x_dst)
        return (out, (listed_edges(graph), graph.unsort_edges(p))) if return_attention_weights else out

    def _projected(self, x_src: Tensor, x_dst: Tensor) -> tuple[Tensor, Tensor]:
        same, lins = x_dst is x_src, (self.lin_l, self.lin_r)
        plan = plans.of(self.lin_l)
        if self.share_weights and same:
            h = apply_linear(self.lin_l, x_src)
            return h, h
        if same and plan is not None and plan.shared and keeps_little(plan, x_src) and all(map(is_plain, lins)):
            weights, biases = [lin.weight for lin in lins], [lin.bias for lin in lins]
            h_src, h_dst = products(x_src, weights, biases, plan)  # x is kept once
            return h_src, h_dst
        return apply_linear(self.lin_l, x_src), apply_linear(self.lin_r, x_dst)
