"""norm, activation, dropout: the chain between two convolutions, in as few memory passes as the mathematics allows.

`run(x, norm, act, drop)` computes drop(act(norm(x))) as one fused op (ops/norm_act.py, or ops.relu_dropout where there
is no norm) when all three are kinds it knows and nobody has hooked them; otherwise it calls the modules one by one.
The converted modules call it with themselves alone.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch_geometric import nn as pyg

from .. import ops
from ..ops.activation import ACTIVATIONS
from ..ops.norm_act import Over
from . import rules


class Act(NamedTuple):
    """An activation as fused ops know it."""

    name: str
    slope: float = 0.0


class Norm(NamedTuple):
    """A normalisation as fused ops know it: what its statistics are taken over, and its parameters."""

    over: Over
    eps: float
    weight: Tensor | None
    bias: Tensor | None
    mean: Tensor | None = None
    var: Tensor | None = None


def act_of(module: nn.Module | None) -> Act | None:
    """The activation of a module, None if it is none that fused ops know."""
    if module is None or type(module) is nn.Identity:
        return Act("identity")
    if isinstance(module, nn.ReLU):
        return Act("relu") if rules.plainly(module, nn.ReLU) else None
    if isinstance(module, nn.LeakyReLU):
        return Act("leaky_relu", module.negative_slope) if rules.plainly(module, nn.LeakyReLU) else None
    if isinstance(module, nn.ELU):
        return Act("elu", module.alpha) if rules.plainly(module, nn.ELU) else None
    return Act("gelu") if rules.plainly(module, nn.GELU) and module.approximate == "none" else None


def norm_of(module: nn.Module | None, x: Tensor) -> Norm | None:
    """The normalisation that a module would apply to x, None if it is none that fused ops know."""
    if module is None or type(module) is nn.Identity:
        return Norm(Over.NOTHING, 0.0, None, None)
    if not rules.plainly(module, pyg.BatchNorm, nn.BatchNorm1d, nn.LayerNorm, pyg.LayerNorm):
        return None
    if isinstance(module, pyg.BatchNorm):
        return norm_of(module.module, x)
    if isinstance(module, nn.BatchNorm1d) and x.size(1) == module.num_features:
        if module.training or module.running_mean is None:
            return Norm(Over.COLUMNS, module.eps, module.weight, module.bias) if x.size(0) > 1 else None
        return Norm(Over.FIXED, module.eps, module.weight, module.bias, module.running_mean, module.running_var)
    if isinstance(module, nn.LayerNorm) and module.normalized_shape == (x.size(1),):
        return Norm(Over.ROWS, module.eps, module.weight, module.bias)
    if isinstance(module, pyg.LayerNorm) and x.size(1) == module.in_channels:
        over = Over.ALL if module.mode == "graph" else Over.ROWS
        return Norm(over, module.eps, module.weight, module.bias)
    return None


def run(
    x: Tensor,
    norm: nn.Module | None = None,
    act: nn.Module | None = None,
    drop: nn.Dropout | float = 0.0,
    batch: tuple[Tensor | None, int | None] | None = None,
) -> Tensor:
    """drop(act(norm(x))), fused where that is possible and pays.

    `drop` is a module, or a probability that holds now; `batch` is passed to norms that ask which rows are one graph.
    """
    fused = _fused(x, norm, act, drop) if batch is None or batch[0] is None else None
    if fused is not None:
        return fused
    if norm is not None:
        x = norm(x) if batch is None else norm(x, *batch)
    x = x if act is None else act(x)
    return drop(x) if isinstance(drop, nn.Module) else dropout(x, drop)


def dropout(x: Tensor, p: float) -> Tensor:
    """Our dropout where it pays: from far fewer elements on than other ops, and for any number of dimensions."""
    if 0 < p <= 1 and rules.dense(x, rules.LEAST_DROPOUT, any_shape=True):
        return ops.dropout(x, p, rules.draw_seed())
    return nn.functional.dropout(x, p) if p > 0 else x


def _fused(x: Tensor, norm: nn.Module | None, act: nn.Module | None, drop: nn.Dropout | float) -> Tensor | None:
    if not rules.dense(x) or rules.hooked(norm, act, drop, getattr(norm, "module", None)):
        return None
    if isinstance(drop, nn.Module) and not rules.plainly(drop, nn.Dropout):
        return None
    first = next((m for m in (norm, act, drop) if m is not None and type(m) is not nn.Identity), None)
    if getattr(first, "inplace", False):  # the caller may count on its x being changed
        return None
    p = drop if isinstance(drop, (int, float)) else drop.p if drop.training else 0.0
    known_norm, known_act = norm_of(norm, x), act_of(act)
    if known_norm is None or known_act is None:
        return None
    return apply(x, known_norm, known_act, p, norm)


def apply(x: Tensor, norm: Norm, act: Act, p: float, module: nn.Module | None = None) -> Tensor:
    """The fused op; `module` is the batch norm whose running statistics are to follow."""
    seed = rules.draw_seed() if p > 0 else 0
    if norm.over == Over.NOTHING and act.name == "relu":
        return ops.relu_dropout(x, p, seed)
    if norm.over == Over.NOTHING and act.name == "identity":
        return ops.dropout(x, p, seed) if p > 0 else x
    settings = (int(norm.over), norm.eps, ACTIVATIONS.index(act.name), act.slope, p, seed)
    out, mean, var = ops.norm_act(x.contiguous(), norm.weight, norm.bias, norm.mean, norm.var, *settings)
    if norm.over == Over.COLUMNS:
        inner = module.module if isinstance(module, pyg.BatchNorm) else module
        if isinstance(inner, _BatchNorm) and inner.training:
            follow(inner, mean, var, x.size(0))
    return out


@torch.no_grad()
def follow(norm: _BatchNorm, mean: Tensor, var: Tensor, rows: int) -> None:
    """Move the running statistics towards this batch's, as torch does: by `momentum`, or to the mean of all batches."""
    if norm.running_mean is None or norm.running_var is None or not norm.track_running_stats:
        return
    momentum = norm.momentum
    if norm.num_batches_tracked is not None:
        norm.num_batches_tracked.add_(1)
        momentum = 1.0 / float(norm.num_batches_tracked) if momentum is None else momentum
    norm.running_mean.lerp_(mean, momentum or 0.0)
    norm.running_var.lerp_(var * (rows / (rows - 1)), momentum or 0.0)
