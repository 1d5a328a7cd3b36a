"""Deep graph convolution: Chen, Wei, Huang, Ding, Li, Simple and Deep Graph Convolutional Networks, ICML 2020 (GCNII).

    P = D^-1/2 (A + I) D^-1/2        beta = log(theta / layer + 1), or 1

    X' = H ((1 - beta) I + beta W_1),   H = (1 - alpha) P X + alpha X_0                             (one weight)
    X' = (1 - alpha) P X ((1 - beta) I + beta W_1) + alpha X_0 ((1 - beta) I + beta W_2)            (GCNII*, two)

1 - alpha is a factor of the adjacency. The identity is added to the product and is no part of its weight: in deep
layers beta W is small beside I, and a scale for both would round it away. X_0 is multiplied as it is, alpha being a
factor of W_2, because every layer reads it: what an engine made of it for one layer serves all of them.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch_geometric import nn as pyg

from ..aggregate import Adjacency
from ..aggregate.build import gcn
from ..engine.choice import engine_of
from ..engine.epilogue import input_of, ready
from ..engine.rules import as_product, falls_back
from .inputs import adjacency_of, block_of, keep_templates, under_policy


class GCN2Conv(pyg.GCN2Conv):
    _set_jittable_templates = keep_templates

    def forward(self, x: Any, x_0: Any, edge_index: Any, edge_weight: Tensor | None = None) -> Tensor:
        same, edge_index = x_0 is x, block_of(x, edge_index)
        if falls_back(self, input_of(x), edge_index):
            x = ready(x)
            return super().forward(x, x if same else ready(x_0), edge_index, edge_weight)
        x = ready(x)
        return as_product(self._formula(x, x if same else ready(x_0), self._adjacency(x, edge_index, edge_weight)))

    def _formula(self, x: Tensor, x_0: Tensor, adjacency: Adjacency) -> Tensor:
        engine, alpha, beta = engine_of(self), self.alpha, self.beta
        adjacency = adjacency.times(1 - alpha)
        x_0 = _first_rows(x_0, adjacency.graph.num_dst)
        initial = (alpha * x_0).to(x.dtype)  # autocast may have made one of them bfloat16
        if self.weight2 is None:
            h = engine.aggregate(adjacency, x, None, initial)
            return engine.product(h, beta * self.weight1.t(), None, (1 - beta) * h)
        h = engine.aggregate(adjacency, x)
        own = engine.product(x_0, alpha * beta * self.weight2.t(), None, (1 - beta) * (h + initial))
        return engine.product(h, beta * self.weight1.t(), None, own)

    def _adjacency(self, x: Tensor, edge_index: Any, edge_weight: Tensor | None) -> Adjacency:
        if not self.normalize:
            return adjacency_of(self, (x, x), edge_index, None, edge_weight)
        return under_policy(self, gcn(edge_index, x.size(0), edge_weight, False, self.add_self_loops))


def _first_rows(x_0: Tensor, rows: int) -> Tensor:
    """As PyG: features of more nodes than there are rows are cut. Uncut it stays the tensor that other layers read."""
    return x_0 if x_0.size(0) == rows else x_0[:rows]
