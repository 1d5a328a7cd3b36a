"""Graph attention: Velickovic et al., Graph Attention Networks, ICLR 2018; Brody, Alon, Yahav, How Attentive are Graph
Attention Networks?, ICLR 2022 (GATv2).

    h = X W        p_ij = softmax over j of  leaky(a_src . h_j + a_dst . h_i + edge term)          (GAT)
                   p_ij = softmax over j of  a . leaky(W_l x_j + W_r x_i)                          (GATv2)
    X'_i = sum over j of dropout(p_ij) h_j + b,    per head; heads are concatenated or averaged

Rows are never laid out per edge: edge-sized tensors have one column per head. A loop is added to every node, as in PyG:
it is an edge like any other, as its weight is one of the softmax.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from torch import Tensor
from torch.nn import functional
from torch_geometric import nn as pyg
from torch_geometric.utils import add_self_loops, remove_self_loops

from ..aggregate import Adjacency
from ..aggregate.build import in_csr_order, listed_edges, looped
from ..aggregate.halo import adjacency_on
from ..aggregate.traced import is_traced
from ..aggregate.traced import looped as looped_in_trace
from ..engine.attention import Attention, Gat, Gatv2
from ..engine.choice import engine_of
from ..engine.epilogue import input_of, ready
from ..engine.float32 import head_dots
from ..engine.rules import attends, falls_back, is_plain
from ..graph import Graph
from .inputs import adjacency_of, block_of, for_pyg, is_of_other_size, keep_templates, pair_of, sizes_of, under_policy


def _adjacency(conv: Any, x: tuple[Any, Any], edge_index: Any, size: Any = None) -> Adjacency:
    """The edges that attention weighs, with loops if the layer wants them."""
    if not conv.add_self_loops:
        return adjacency_of(conv, x, edge_index, size)
    return under_policy(conv, adjacency_on(looped(edge_index, sizes_of(*x, edge_index, size))))


def _is_of_other_size(conv: Any, x_src: Any, x_dst: Any, edge_index: Any) -> bool:
    """Without destinations PyG adds a loop to each source, and without loops the EdgeIndex says how many there are."""
    if x_dst is None and not conv.add_self_loops:
        return False
    return is_of_other_size(x_src, x_dst, edge_index)


def _sorted(conv: Any, graph: Graph, edge_index: Any, edge_attr: Tensor, sizes: tuple[int, int]) -> Tensor:
    """Features of edges, loops included, in CSR order."""
    if not conv.add_self_loops:
        return in_csr_order(graph, edge_attr)
    _, edges, given = for_pyg(None, edge_index, edge_attr)
    plain = remove_self_loops(edges, given)
    return graph.sort_edges(add_self_loops(*plain, fill_value=conv.fill_value, num_nodes=min(sizes))[1])


def _attended(
    conv: Any, x_src: Any, x_dst: Any, adjacency: Adjacency, attention: Attention, shows_weights: bool | None
) -> Any:
    """The result, with PyG's pair of edges and their weights if those are asked for."""
    graph = adjacency.graph
    out, p = engine_of(conv).attend(x_src, x_dst, adjacency, attention, bool(shows_weights))
    return (
        out
        if p is None or not shows_weights
        else (out, (listed_edges(graph), p if graph.perm is None else graph.unsort_edges(p)))
    )


def _is_left_to_pyg(edge_index: Any, edge_attr: Tensor | None, shows_weights: bool | None) -> bool:
    """Traced calls with what follows the edges as PyG lists them, loops included."""
    return is_traced(edge_index) and (edge_attr is not None or shows_weights is not None)


def _traced(conv: Any, x_src: Any, x_dst: Any, edge_index: Any, size: Any, attention: Attention) -> Tensor:
    """In a traced program loops that were there go to a row more at both ends, which is cut off again."""
    engine, sizes = engine_of(conv), sizes_of(x_src, x_dst, edge_index, size)
    if not conv.add_self_loops:
        return engine.attend(x_src, x_dst, adjacency_of(conv, (x_src, x_dst), edge_index, size), attention)[0]
    longer = _with_a_row(x_src)
    ends = (longer, longer if x_dst is x_src else None if x_dst is None else _with_a_row(x_dst))
    return engine.attend(*ends, Adjacency.of(looped_in_trace(edge_index, sizes)), attention)[0][: sizes[1]]


def _with_a_row(x: Tensor) -> Tensor:
    return functional.pad(x, (0, 0, 0, 1))


def _settings(conv: Any) -> dict[str, Any]:
    """What GAT and GATv2 share."""
    return {
        "heads": conv.heads, "width": conv.out_channels, "slope": conv.negative_slope,
        "dropout": conv.dropout if conv.training else 0.0, "concat": conv.concat, "bias": conv.bias, "res": conv.res,
    }  # fmt: skip


class GATConv(pyg.GATConv):
    _set_jittable_templates = keep_templates

    def forward(
        self, x: Any, edge_index: Any, edge_attr: Tensor | None = None, size: Any = None,
        return_attention_weights: bool | None = None,
    ) -> Any:  # fmt: skip
        x_src, x_dst = pair_of(x)
        edge_index = block_of(x_src, edge_index)
        plain = attends(input_of(x_src), edge_index) and not _is_of_other_size(self, x_src, x_dst, edge_index)
        plain = plain and not _is_left_to_pyg(edge_index, edge_attr, return_attention_weights)
        if falls_back(self, input_of(x_src), edge_index) or not plain:
            return super().forward(*for_pyg(ready(x), edge_index, edge_attr), size, return_attention_weights)
        lins = (self.lin,) if self.lin is not None else (self.lin_src, self.lin_dst)
        attention = Gat(lins, (self.att_src, self.att_dst), **_settings(self))
        if is_traced(edge_index):
            return _traced(self, x_src, x_dst, edge_index, size, attention)
        adjacency, sizes = _adjacency(self, (x_src, x_dst), edge_index, size), sizes_of(x_src, x_dst, edge_index, size)
        term = self._edge_term(adjacency.graph, edge_index, edge_attr, sizes)
        attention = dataclasses.replace(attention, edge_term=term)
        return _attended(self, x_src, x_dst, adjacency, attention, return_attention_weights)

    def _edge_term(
        self, graph: Graph, edge_index: Any, edge_attr: Tensor | None, sizes: tuple[int, int]
    ) -> Tensor | None:
        """<W_e attr_e, a_edge> per head, as attr_e times the product of the two."""
        if edge_attr is None or self.lin_edge is None:
            return None
        attr = _sorted(self, graph, edge_index, edge_attr, sizes)
        attr = attr.view(-1, 1) if attr.dim() == 1 else attr
        if not is_plain(self.lin_edge):
            return head_dots(self.lin_edge(attr), (self.att_edge,))[0]
        (weight,) = head_dots(self.lin_edge.weight.t(), (self.att_edge,))  # [edge_dim, heads]
        return attr @ weight


class GATv2Conv(pyg.GATv2Conv):
    _set_jittable_templates = keep_templates

    def forward(
        self, x: Any, edge_index: Any, edge_attr: Tensor | None = None, return_attention_weights: bool | None = None
    ) -> Any:
        x_src, x_dst = pair_of(x)
        edge_index = block_of(x_src, edge_index)
        plain = edge_attr is None and x_dst is not None and attends(input_of(x_src), edge_index)
        plain = plain and not _is_of_other_size(self, x_src, x_dst, edge_index)
        plain = plain and not _is_left_to_pyg(edge_index, None, return_attention_weights)
        if falls_back(self, input_of(x_src), edge_index) or not plain:
            return super().forward(*for_pyg(ready(x), edge_index, edge_attr), return_attention_weights)
        lins = (self.lin_l,) if self.share_weights else (self.lin_l, self.lin_r)
        attention = Gatv2(lins, (self.att[0],), **_settings(self))
        if is_traced(edge_index):
            return _traced(self, x_src, x_dst, edge_index, None, attention)
        adjacency = _adjacency(self, (x_src, x_dst), edge_index)
        return _attended(self, x_src, x_dst, adjacency, attention, return_attention_weights)
