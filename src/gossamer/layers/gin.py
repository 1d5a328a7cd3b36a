"""Graph isomorphism network: Xu, Hu, Leskovec, Jegelka, How Powerful are Graph Neural Networks?, ICLR 2019.

    X' = nn((A + (1 + eps) I) X)

The node's own row is added while the sum of its neighbours is in registers. Where nn begins with a product, that may
come before the sum (order.py): nn(M X) with M = A + (1 + eps) I begins with (M X) W^T + b = M (X W^T) + b.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch_geometric import nn as pyg

from .. import ops
from ..activations.linear import products
from ..activations.plan import of as plan_of
from ..compute.conv import Adjacency, convolve
from ..compute.plan import is_steady, worth
from ..compute.plan import of as int8_of
from .adjacency import Weighted, graph_of
from .border import REDUCE, by_pyg, keep_templates, sizes_of
from .chain import Pending
from .dense import entry_of, is_fixed, linear, sums_data
from .models import leading_linear
from .order import aggregate_first
from .sage import fixed_adjacency


class GINConv(pyg.GINConv):
    _set_jittable_templates = keep_templates

    def forward(self, x: Any, edge_index: Any, size: Any = None) -> Tensor:
        x_src, x_dst = (x, x) if isinstance(x, Tensor) else x
        if by_pyg(self, x_src, edge_index):
            return super().forward(x, edge_index, size)
        weighted = graph_of(edge_index, sizes_of(x_src, x_dst, edge_index, size))
        first = leading_linear(self.nn) if x_dst is x_src and self.aggr != "max" else None
        plan, how = plan_of(self), int8_of(first)
        fixed = not self.eps.requires_grad and is_fixed(weighted.value)
        if first is not None and how is not None and worth(x_src) and fixed:
            order = "aggregate" if aggregate_first(x_src, x_src.size(1), first.weight.size(0), plan) else "multiply"
            given = ([first.weight], [first.bias], order, entry_of(how, plan, x_src))
            return self.nn.after_first(convolve(x_src, self._adjacency(weighted), *given)[0])
        if first is None or aggregate_first(x_src, x_src.size(1), first.weight.size(0), plan):
            if first is not None and plan is not None and fixed and sums_data(plan, x_src):
                summed = self._summed(weighted, x_src, x_src)
                return self.nn.after_first(products(summed, [first.weight], [first.bias], plan, is_sum=True)[0])
            return self.nn(self._summed(weighted, x_src, x_dst))
        h = linear(x_src, first.weight, None, plan=plan, how=how, steady=is_steady(self))
        return self.nn.after_first(self._summed(weighted, h, h, first.bias))

    def after_chain(self, pending: Pending, edge_index: Any) -> Tensor:
        """forward(pending.run(), ...), with the first product made while the chain's result is in the cache."""
        first = leading_linear(self.nn) if self.aggr != "max" else None
        if by_pyg(self, pending.x, edge_index) or first is None:
            return self(pending.run(), edge_index)
        how = int8_of(first)
        if not pending.multiplies and (how is None or self.eps.requires_grad):
            return self(pending.run(), edge_index)
        weighted = graph_of(edge_index, sizes_of(pending.x, pending.x, edge_index))
        if how is not None and not self.eps.requires_grad and is_fixed(weighted.value):
            adjacency, one = self._adjacency(weighted), ([first.weight], [first.bias])
            (h,) = pending.in_int8(how, lambda x, *entry: convolve(x, adjacency, *one, "multiply", *entry))
            return self.nn.after_first(h)
        (h,) = pending.products([first.weight], [None])
        return self.nn.after_first(self._summed(weighted, h, h, first.bias))

    def _adjacency(self, weighted: Weighted) -> Adjacency:
        return fixed_adjacency(weighted, REDUCE[self.aggr], self._diagonal(weighted.graph.num_dst, torch.float32))

    def _diagonal(self, nodes: int, dtype: torch.dtype) -> Tensor:
        """1 + eps for every node, expanded from one element."""
        return (1.0 + self.eps.detach().double()).to(dtype).expand(nodes)

    def _summed(self, weighted: Weighted, x_src: Tensor, x_dst: Tensor | None, bias: Tensor | None = None) -> Tensor:
        """The sum over neighbours, plus 1 + eps times the node's own row, plus a bias."""
        graph, value, _ = weighted
        reduce = REDUCE[self.aggr]
        if x_dst is None:
            return ops.spmm(graph, x_src, value, reduce, bias=bias)
        if x_dst is x_src and not self.eps.requires_grad:
            diagonal = self._diagonal(x_src.size(0), torch.promote_types(x_src.dtype, torch.float32))
            return ops.spmm(graph, x_src, value, reduce, bias=bias, diagonal=diagonal)
        return ops.spmm(graph, x_src, value, reduce, bias=bias, rows=(1 + self.eps) * x_dst)
