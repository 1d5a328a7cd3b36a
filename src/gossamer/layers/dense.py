"""Linear layers, norms, activations and dropout as their originals define them, on our ops where that pays."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch_geometric import nn as pyg
from torch_geometric.nn.dense.linear import is_uninitialized_parameter

from .. import ops
from . import chain, rules


def linear(x: Tensor, weight: Tensor, bias: Tensor | None, rows: Tensor | None = None) -> Tensor:
    """x W^T + bias + rows; our op where its result is large enough for pooled pages to pay."""
    if rules.dense(x, least=1) and x.size(0) * weight.size(0) >= rules.LEAST_PASS:
        return ops.linear(x, weight, bias, rows)
    out = nn.functional.linear(x, weight, bias)
    return out if rows is None else out + rows


def is_plain(module: Any) -> bool:
    """Whether a module is only a weight and a bias: nobody listens to it, and it does not wait for its first input."""
    known = rules.plainly(module, nn.Linear, pyg.Linear)
    return known and not rules.hooked(module) and not is_uninitialized_parameter(module.weight)


def apply_linear(module: Any, x: Tensor, bias: Tensor | None = None, rows: Tensor | None = None) -> Tensor:
    """module(x) + bias + rows in one product where the module is plain."""
    if not is_plain(module):
        out = module(x)
        out = out if bias is None else out + bias
        return out if rows is None else out + rows
    own = module.bias
    total = own if bias is None else bias if own is None else own + bias
    return linear(x, module.weight, total, rows)


class Linear(nn.Linear):
    """y = x W^T + b."""

    def forward(self, x: Tensor) -> Tensor:
        return linear(x, self.weight, self.bias)


class PygLinear(pyg.Linear):
    """y = x W^T + b, with PyG's initialisation."""

    def forward(self, x: Tensor) -> Tensor:
        return linear(x, self.weight, self.bias)


class BatchNorm1d(nn.BatchNorm1d):
    """Each column to mean 0 and variance 1, then scaled and shifted."""

    def forward(self, x: Tensor) -> Tensor:
        norm = chain.norm_of(self, x) if rules.dense(x) else None
        return super().forward(x) if norm is None else chain.apply(x, norm, chain.Act("identity"), 0.0, self)


class LayerNorm(nn.LayerNorm):
    """Each row to mean 0 and variance 1, then scaled and shifted."""

    def forward(self, x: Tensor) -> Tensor:
        norm = chain.norm_of(self, x) if rules.dense(x) else None
        return super().forward(x) if norm is None else chain.apply(x, norm, chain.Act("identity"), 0.0)


class PygLayerNorm(pyg.LayerNorm):
    """Each graph (or each node's row) to mean 0 and variance 1, then scaled and shifted."""

    def forward(self, x: Tensor, batch: Tensor | None = None, batch_size: int | None = None) -> Tensor:
        plain = batch is None or self.mode == "node"
        norm = chain.norm_of(self, x) if plain and rules.dense(x) else None
        if norm is None:
            return super().forward(x, batch, batch_size)
        return chain.apply(x, norm, chain.Act("identity"), 0.0)


def _activation(module: Any, x: Tensor) -> Tensor | None:
    if getattr(module, "inplace", False) or not rules.dense(x):
        return None
    act = chain.act_of(module)
    return None if act is None else chain.apply(x, chain.Norm(chain.Over.NOTHING, 0.0, None, None), act, 0.0)


class ReLU(nn.ReLU):
    """x where it is positive; one bit per element is kept for backward."""

    def forward(self, x: Tensor) -> Tensor:
        out = _activation(self, x)
        return super().forward(x) if out is None else out


class LeakyReLU(nn.LeakyReLU):
    """x where it is positive, slope times x elsewhere."""

    def forward(self, x: Tensor) -> Tensor:
        out = _activation(self, x)
        return super().forward(x) if out is None else out


class ELU(nn.ELU):
    """x where it is positive, alpha (e^x - 1) elsewhere."""

    def forward(self, x: Tensor) -> Tensor:
        out = _activation(self, x)
        return super().forward(x) if out is None else out


class GELU(nn.GELU):
    """x times the normal distribution function of x."""

    def forward(self, x: Tensor) -> Tensor:
        out = _activation(self, x)
        return super().forward(x) if out is None else out


class Dropout(nn.Dropout):
    """Zeros with probability p, the rest divided by 1 - p; the mask is made again in backward, not kept."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) if self.inplace or not self.training else chain.dropout(x, self.p)
