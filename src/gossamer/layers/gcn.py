"""Graph convolution: Kipf and Welling, Semi-Supervised Classification with Graph Convolutional Networks, ICLR 2017.

    X' = D^-1/2 (A + I) D^-1/2 X W + b

The normalised adjacency is made once per `edge_index`; it is fixed, so nothing but X (or A X) is saved for backward.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch_geometric import nn as pyg

from ..aggregate import Adjacency
from ..aggregate.build import gcn
from ..engine.choice import engine_of
from ..engine.epilogue import input_of, ready
from ..engine.rules import autocast_dtype, falls_back
from .inputs import adjacency_of, block_of, is_of_other_size, keep_templates, under_policy


class GCNConv(pyg.GCNConv):
    _set_jittable_templates = keep_templates

    def forward(self, x: Any, edge_index: Any, edge_weight: Tensor | None = None) -> Tensor:
        edge_index = block_of(x, edge_index)
        if falls_back(self, input_of(x), edge_index) or is_of_other_size(x, x, edge_index):
            return super().forward(ready(x), edge_index, edge_weight)
        adjacency, dtype = self._adjacency(x, edge_index, edge_weight), self._autocast_to(input_of(x), edge_weight)
        out = engine_of(self).convolve(x, adjacency, self.lin, self.bias, inside=True)
        return out if dtype is None else out.to(dtype)

    def _autocast_to(self, x: Tensor, edge_weight: Tensor | None) -> torch.dtype | None:
        """Under autocast the dtype of PyG's result: that of products, promoted by the weights of edges and the bias."""
        dtype = autocast_dtype(x)
        if dtype is None:
            return None
        weights = edge_weight.dtype if edge_weight is not None else x.dtype if self.normalize else dtype
        dtype = torch.promote_types(dtype, weights)
        return dtype if self.bias is None else torch.promote_types(dtype, self.bias.dtype)

    def _adjacency(self, x: Any, edge_index: Any, edge_weight: Tensor | None) -> Adjacency:
        if not self.normalize:
            return adjacency_of(self, (x, x), edge_index, None, edge_weight)
        return under_policy(self, gcn(edge_index, x.size(0), edge_weight, self.improved, self.add_self_loops))
