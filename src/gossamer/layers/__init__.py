"""Layers: each computes what the PyTorch or PyG class it is named after defines, one paper to a file.

A layer is its formula, written on an engine (how to compute) and an adjacency (along which edges). `CONVERTED` maps
each original class to ours, a subclass of it; `why_not` says why a module must stay as it is. A module is converted by
changing its class (gossamer.pyg), so parameters, buffers, hooks and names stay what they were.
"""

from __future__ import annotations

from typing import Any

from torch import nn
from torch_geometric import nn as pyg

from ..engine.rules import has_message_hooks
from . import dense, gat, gcn, gcn2, gin, inputs, models, sage
from .roles import NORMS_THAT_HOLD, role_of

__all__ = ["CONTAINERS", "CONVERTED", "NORMS_THAT_HOLD", "role_of", "why_not"]

CONVERTED: dict[type[nn.Module], type[nn.Module]] = {
    pyg.GCNConv: gcn.GCNConv,
    pyg.GCN2Conv: gcn2.GCN2Conv,
    pyg.SAGEConv: sage.SAGEConv,
    pyg.GraphConv: sage.GraphConv,
    pyg.GINConv: gin.GINConv,
    pyg.GATConv: gat.GATConv,
    pyg.GATv2Conv: gat.GATv2Conv,
    pyg.GCN: models.GCN,
    pyg.GraphSAGE: models.GraphSAGE,
    pyg.GIN: models.GIN,
    pyg.GAT: models.GAT,
    pyg.MLP: models.MLP,
    nn.Sequential: models.Sequential,
    nn.Linear: dense.Linear,
    pyg.Linear: dense.PygLinear,
    nn.BatchNorm1d: dense.BatchNorm1d,
    nn.LayerNorm: dense.LayerNorm,
    pyg.LayerNorm: dense.PygLayerNorm,
    nn.ReLU: dense.ReLU,
    nn.LeakyReLU: dense.LeakyReLU,
    nn.ELU: dense.ELU,
    nn.GELU: dense.GELU,
    nn.Dropout: dense.Dropout,
}
for _original, _kind in CONVERTED.items():
    _kind.__name__ = _original.__name__  # what `repr` shows; pickle goes by __qualname__

CONTAINERS = (pyg.GCN, pyg.GraphSAGE, pyg.GIN, pyg.GAT, pyg.MLP, nn.Sequential)
"""Converted for what happens between their parts; alone they make nothing lighter."""


def why_not(module: Any) -> str | None:
    """Why this module of a known class cannot be converted, None if it can."""
    if isinstance(module, pyg.MessagePassing):
        if module.flow != "source_to_target":
            return f"flow={module.flow!r}: only source_to_target has kernels"
        if str(module.aggr) not in inputs.REDUCE:
            return f"aggr={module.aggr!r}: only mean, sum and max have kernels"
        if module.decomposed_layers > 1:
            return "decomposed_layers > 1 splits messages by columns, which no kernel of ours needs"
        if has_message_hooks(module):
            return "someone listens to its messages (register_message_forward_hook and the like)"
    sums = (pyg.GCNConv, pyg.GCN2Conv, pyg.GATConv, pyg.GATv2Conv)
    if isinstance(module, sums) and module.aggr not in ("add", "sum"):
        return f"aggr={module.aggr!r}: {type(module).__name__} has kernels for sums only"
    if isinstance(module, pyg.GATv2Conv) and module.edge_dim is not None:
        return "edge features enter every column of GATv2's attention: no kernel yet"
    if isinstance(module, nn.GELU) and module.approximate != "none":
        return f"approximate={module.approximate!r}: only the exact form has a kernel"
    return None
