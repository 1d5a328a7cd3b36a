"""Graph isomorphism network: Xu, Hu, Leskovec, Jegelka, How Powerful are Graph Neural Networks?, ICLR 2019.

    X' = nn((A + (1 + eps) I) X)

1 + eps is the diagonal of the adjacency M. Where nn begins with a product, that may come before the sum: nn(M X) begins
with (M X) W^T + b = M (X W^T) + b.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch_geometric import nn as pyg

from ..engine.choice import engine_of
from ..engine.epilogue import input_of, ready
from ..engine.rules import falls_back
from .inputs import adjacency_of, block_of, keep_templates, pair_of
from .models import leading_linear


class GINConv(pyg.GINConv):
    _set_jittable_templates = keep_templates

    def forward(self, x: Any, edge_index: Any, size: Any = None) -> Tensor:
        x_src, x_dst = pair_of(x)
        edge_index = block_of(x_src, edge_index)
        if falls_back(self, input_of(x_src), edge_index):
            return super().forward(ready(x), edge_index, size)
        adjacency, engine = adjacency_of(self, (x_src, x_dst), edge_index, size), engine_of(self)
        if x_dst is not x_src:
            own = None if x_dst is None else (1 + self.eps) * x_dst
            return engine.transform(self.nn, None, adjacency, x_src, own)
        first = leading_linear(self.nn) if adjacency.is_linear else None
        return engine.transform(self.nn, first, adjacency.with_diagonal(self._diagonal()), x_src)

    def _diagonal(self) -> Tensor:
        if self.eps.requires_grad or torch.compiler.is_compiling():
            return 1 + self.eps
        return torch.full((1,), 1.0 + float(self.eps), dtype=torch.float64)  # rounded to what the rows are
