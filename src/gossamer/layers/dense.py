"""Linear layers, norms, activations and dropout as their originals define them, on our ops where that pays."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch_geometric import nn as pyg

from ..engine.choice import engine_of
from ..engine.epilogue import Deferred, EpilogueSpec, act_of, norm_of, running_of
from ..engine.rules import as_product
from ..engine.shared_norm import ranks_of


def _multiplied(lin: Any, x: Any) -> Tensor:
    """The product; x may be an epilogue that waits for it."""
    engine = engine_of(lin)
    if isinstance(x, Deferred):
        return as_product(engine.multiply(lin, x))
    return as_product(engine.product(x, lin.weight, lin.bias))


class Linear(nn.Linear):
    """y = x W^T + b."""

    def forward(self, x: Any) -> Tensor:
        return _multiplied(self, x)


class PygLinear(pyg.Linear):
    """y = x W^T + b, with PyG's initialisation."""

    def forward(self, x: Any) -> Tensor:
        return _multiplied(self, x)


def _normalised(module: Any, x: Tensor) -> Tensor | None:
    """The norm as a fused op; None where that does not pay."""
    engine = engine_of(module)
    norm = norm_of(module, x) if engine.takes(x) or ranks_of(module) is not None else None
    if norm is None:
        return None
    return engine.run(x, EpilogueSpec(norm, running=running_of(module, norm)))


class BatchNorm1d(nn.BatchNorm1d):
    """Each column to mean 0 and variance 1, then scaled and shifted."""

    def forward(self, x: Tensor) -> Tensor:
        out = _normalised(self, x)
        return super().forward(x) if out is None else out


class LayerNorm(nn.LayerNorm):
    """Each row to mean 0 and variance 1, then scaled and shifted."""

    def forward(self, x: Tensor) -> Tensor:
        out = _normalised(self, x)
        return super().forward(x) if out is None else out


class PygLayerNorm(pyg.LayerNorm):
    """Each graph (or each node's row) to mean 0 and variance 1, then scaled and shifted."""

    def forward(self, x: Tensor, batch: Tensor | None = None, batch_size: int | None = None) -> Tensor:
        out = _normalised(self, x) if batch is None or self.mode == "node" else None
        return super().forward(x, batch, batch_size) if out is None else out


def _activated(module: Any, x: Tensor) -> Tensor | None:
    """The activation as a fused op; None where that does not pay."""
    engine = engine_of(module)
    act = act_of(module) if not getattr(module, "inplace", False) and engine.takes(x, alone=True) else None
    return None if act is None else engine.run(x, EpilogueSpec(act=act))


class ReLU(nn.ReLU):
    """x where it is positive; one bit per element is saved for backward."""

    def forward(self, x: Tensor) -> Tensor:
        out = _activated(self, x)
        return super().forward(x) if out is None else out


class LeakyReLU(nn.LeakyReLU):
    """x where it is positive, slope times x elsewhere."""

    def forward(self, x: Tensor) -> Tensor:
        out = _activated(self, x)
        return super().forward(x) if out is None else out


class ELU(nn.ELU):
    """x where it is positive, alpha (e^x - 1) elsewhere."""

    def forward(self, x: Tensor) -> Tensor:
        out = _activated(self, x)
        return super().forward(x) if out is None else out


class GELU(nn.GELU):
    """x times the normal distribution function of x."""

    def forward(self, x: Tensor) -> Tensor:
        out = _activated(self, x)
        return super().forward(x) if out is None else out


class Dropout(nn.Dropout):
    """Zeros with probability p, the rest divided by 1 - p; the mask is recomputed in backward, not saved."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) if self.inplace or not self.training else engine_of(self).dropout(x, self.p)
