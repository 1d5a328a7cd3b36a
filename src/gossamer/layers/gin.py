"""Graph isomorphism network: Xu, Hu, Leskovec, Jegelka, How Powerful are Graph Neural Networks?, ICLR 2019.

    X' = nn((A + (1 + eps) I) X)

The node's own row is added while the sum of its neighbours is in registers. A fixed adjacency keeps nothing.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch_geometric import nn as pyg

from .. import ops
from .adjacency import graph_of
from .border import REDUCE, by_pyg, keep_templates, sizes_of


class GINConv(pyg.GINConv):
    _set_jittable_templates = keep_templates

    def forward(self, x: Any, edge_index: Any, size: Any = None) -> Tensor:
        x_src, x_dst = (x, x) if isinstance(x, Tensor) else x
        if by_pyg(self, x_src, edge_index):
            return super().forward(x, edge_index, size)
        graph, value = graph_of(edge_index, sizes_of(x_src, x_dst, size))
        reduce = REDUCE[self.aggr]
        if x_dst is None:
            return self.nn(ops.spmm(graph, x_src, value, reduce))
        if x_dst is x_src and not self.eps.requires_grad:
            return self.nn(ops.spmm(graph, x_src, value, reduce, root=1.0 + float(self.eps)))
        return self.nn(ops.spmm(graph, x_src, value, reduce, rows=(1 + self.eps) * x_dst))
