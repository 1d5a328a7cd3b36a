"""GraphSAGE: Hamilton, Ying, Leskovec, Inductive Representation Learning on Large Graphs, NeurIPS 2017; and GraphConv:
Morris et al., Weisfeiler and Leman Go Neural, AAAI 2019, which is the same with sums and edge weights.

    X' = aggregate(X) W_n^T + X W_r^T + b           aggregate: mean, sum or maximum over the neighbours

Of equal maxima the first edge's gets the gradient, as in PyG with a CSR adjacency; with `edge_index` PyG shares it out.
Mean and sum are linear, so the neighbours' product may come first or last. Multiplied first, X alone is saved for
backward. The root's product is added while the sum of a row is still in registers.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.nn import functional
from torch_geometric import nn as pyg

from ..engine.choice import engine_of
from ..engine.epilogue import input_of, ready
from ..engine.rules import as_product, falls_back
from .inputs import adjacency_of, bias_of, block_of, keep_templates, pair_of


class SAGEConv(pyg.SAGEConv):
    _set_jittable_templates = keep_templates

    def forward(self, x: Any, edge_index: Any, size: Any = None) -> Tensor:
        x_src, x_dst = pair_of(x)
        edge_index = block_of(x_src, edge_index)
        if falls_back(self, input_of(x_src), edge_index):
            return super().forward(ready(x), edge_index, size)
        if self.project:
            plain = ready(x_src)
            x_src, x_dst = functional.relu(self.lin(plain)), plain if x_dst is x_src else ready(x_dst)
        adjacency = adjacency_of(self, (x_src, x_dst), edge_index, size)
        root: Any = self.lin_r if self.root_weight else None
        bias = bias_of(self.lin_l)
        out = as_product(engine_of(self).convolve(x_src, adjacency, self.lin_l, bias, root, x_dst))
        return functional.normalize(out, p=2.0, dim=-1) if self.normalize else out


class GraphConv(pyg.GraphConv):
    _set_jittable_templates = keep_templates

    def forward(self, x: Any, edge_index: Any, edge_weight: Tensor | None = None, size: Any = None) -> Tensor:
        x_src, x_dst = pair_of(x)
        edge_index = block_of(x_src, edge_index)
        if falls_back(self, input_of(x_src), edge_index):
            return super().forward(ready(x), edge_index, edge_weight, size)
        adjacency = adjacency_of(self, (x_src, x_dst), edge_index, size, edge_weight)
        bias = bias_of(self.lin_rel)
        return as_product(engine_of(self).convolve(x_src, adjacency, self.lin_rel, bias, self.lin_root, x_dst))
