"""Graph convolution: Kipf and Welling, Semi-Supervised Classification with Graph Convolutional Networks, ICLR 2017.

    X' = D^-1/2 (A + I) D^-1/2 X W + b

The normalised adjacency is made once per `edge_index`; it is fixed, so nothing but X (or A X) is saved for backward.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch_geometric import nn as pyg

from ..aggregate import Adjacency
from ..aggregate.build import gcn
from ..engine.choice import engine_of
from ..engine.epilogue import input_of, ready
from ..engine.rules import falls_back
from .inputs import adjacency_of, block_of, keep_templates, under_policy


class GCNConv(pyg.GCNConv):
    _set_jittable_templates = keep_templates

    def forward(self, x: Any, edge_index: Any, edge_weight: Tensor | None = None) -> Tensor:
        edge_index = block_of(x, edge_index)
        if falls_back(self, input_of(x), edge_index):
            return super().forward(ready(x), edge_index, edge_weight)
        adjacency = self._adjacency(x, edge_index, edge_weight)
        return engine_of(self).convolve(x, adjacency, self.lin, self.bias, inside=True)

    def _adjacency(self, x: Any, edge_index: Any, edge_weight: Tensor | None) -> Adjacency:
        if not self.normalize:
            return adjacency_of(self, (x, x), edge_index, None, edge_weight)
        return under_policy(self, gcn(edge_index, x.size(0), edge_weight, self.improved, self.add_self_loops))
