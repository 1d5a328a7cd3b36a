"""Graph convolution: Kipf and Welling, Semi-Supervised Classification with Graph Convolutional Networks, ICLR 2017.

    X' = D^-1/2 (A + I) D^-1/2 X W + b

The normalised graph is made once per `edge_index`; it is fixed, so nothing but X (or A X) is kept for backward.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch_geometric import nn as pyg

from .. import ops
from ..activations.linear import products
from ..activations.neighbours import neighbour_sum
from ..activations.plan import of as plan_of
from ..compute.conv import Adjacency, convolve
from ..compute.plan import of as int8_of
from ..compute.plan import worth
from .adjacency import Weighted, gcn_graph_of, graph_of
from .border import by_pyg, keep_templates
from .chain import Pending
from .dense import apply_linear, entry_of, is_fixed, is_plain, sums_data
from .order import aggregate_first


class GCNConv(pyg.GCNConv):
    _set_jittable_templates = keep_templates

    def forward(self, x: Tensor, edge_index: Any, edge_weight: Tensor | None = None) -> Tensor:
        if by_pyg(self, x, edge_index):
            return super().forward(x, edge_index, edge_weight)
        graph, value, scale = self._graph(x, edge_index, edge_weight)
        linear = is_plain(self.lin) and self.lin.bias is None  # A (X W) = (A X) W holds for nothing else
        plan, how = plan_of(self), int8_of(self.lin)
        if how is not None and linear and worth(x) and is_fixed(value):
            first = "aggregate" if aggregate_first(x, x.size(1), self.out_channels, plan) else "multiply"
            adjacency = Adjacency(graph, value, scale, scale)
            return convolve(x, adjacency, [self.lin.weight], [self.bias], first, entry_of(how, plan, x))[0]
        if linear and aggregate_first(x, x.size(1), self.out_channels, plan):
            if plan is not None and is_fixed(value) and sums_data(plan, x):
                summed = ops.spmm(graph, x, value, scale=scale)
                return products(summed, [self.lin.weight], [self.bias], plan, is_sum=True)[0]
            return apply_linear(self.lin, neighbour_sum(graph, x, value, scale=scale, plan=plan), self.bias)
        return neighbour_sum(graph, apply_linear(self.lin, x), value, bias=self.bias, scale=scale, plan=plan)

    def after_chain(self, pending: Pending, edge_index: Any, edge_weight: Tensor | None = None) -> Tensor:
        """forward(pending.run(), ...), with the product made while the chain's result is in the cache."""
        if by_pyg(self, pending.x, edge_index) or not is_plain(self.lin):
            return self(pending.run(), edge_index, edge_weight)
        graph, value, scale = self._graph(pending.x, edge_index, edge_weight)
        how = int8_of(self.lin)
        if how is not None and self.lin.bias is None and is_fixed(value):
            adjacency, one = Adjacency(graph, value, scale, scale), ([self.lin.weight], [self.bias])
            return pending.in_int8(how, lambda x, *entry: convolve(x, adjacency, *one, "multiply", *entry))[0]
        if not pending.multiplies:
            return self(pending.run(), edge_index, edge_weight)
        (h,) = pending.products([self.lin.weight], [self.lin.bias])
        return neighbour_sum(graph, h, value, bias=self.bias, scale=scale, plan=plan_of(self))

    def _graph(self, x: Tensor, edge_index: Any, edge_weight: Tensor | None) -> Weighted:
        if self.normalize:
            return gcn_graph_of(edge_index, x.size(0), edge_weight, self.improved, self.add_self_loops)
        return graph_of(edge_index, (x.size(0), x.size(0)), edge_weight)
