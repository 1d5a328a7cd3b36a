"""What a module is to a reader of the report: a convolution, a norm, another one that computes, or a part of these."""

from __future__ import annotations

from typing import Literal

from torch import nn
from torch.nn.modules.batchnorm import _NormBase
from torch_geometric import nn as pyg
from torch_geometric.nn.aggr import Aggregation
from torch_geometric.utils._trim_to_layer import TrimToLayer

Role = Literal["convolution", "norm", "other", "part"]
"""A part has no arithmetic of its own, or is told of by the module that holds it."""

HOLDERS = (nn.ModuleList, nn.ModuleDict, nn.Sequential, nn.Identity, pyg.MLP, TrimToLayer)
NORMS_THAT_HOLD = (pyg.BatchNorm,)
"""Norms of PyG's that are a norm of torch's."""
NORMS = (_NormBase, nn.LayerNorm, nn.GroupNorm, nn.LocalResponseNorm)


def role_of(module: nn.Module, holder: nn.Module | None) -> Role:
    """`holder`: the module that it is a child of, None for the model."""
    if holder is not None and type(module) in HOLDERS:
        return "part"
    if isinstance(holder, pyg.MessagePassing) and isinstance(module, Aggregation):
        return "part"
    if isinstance(module, NORMS) or type(module).__module__.startswith(pyg.norm.__name__):
        return "part" if type(holder) in NORMS_THAT_HOLD else "norm"
    return "convolution" if isinstance(module, pyg.MessagePassing) else "other"
