"""Linear layers, norms, activations and dropout as their originals define them, on our ops where that pays."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric import nn as pyg
from torch_geometric.nn.dense.linear import is_uninitialized_parameter

from .. import ops
from ..activations.linear import products
from ..activations.plan import Plan
from ..activations.plan import of as plan_of
from ..activations.stash import layout_of
from ..compute.box import drop_box
from ..compute.conv import products as int8_products
from ..compute.entry import Entry
from ..compute.plan import Int8, is_steady, worth
from ..compute.plan import of as int8_of
from . import chain, rules


def linear(
    x: Tensor, weight: Tensor, bias: Tensor | None, rows: Tensor | None = None, plan: Plan | None = None,
    how: Int8 | None = None, steady: bool = False,
) -> Tensor:  # fmt: skip
    """x W^T + bias + rows; our op where its result is large enough for pooled pages to pay, or keeps few bits."""
    if how is not None and worth(x) and weight.dtype == torch.float32:
        return int8_products(x, [weight], [bias], entry_of(how, plan, x), rows=rows)[0]
    if plan is not None and keeps_little(plan, x):
        return products(x, [weight], [bias], plan, rows)[0]
    if rules.dense(x, least=1) and (steady or x.size(0) * weight.size(0) >= rules.LEAST_PASS):
        return ops.linear(x, weight, bias, rows)
    out = nn.functional.linear(x, weight, bias)
    return out if rows is None else out + rows


def entry_of(how: Int8, plan: Plan | None, x: Tensor) -> Entry:
    """How rows of x come into an int8 product: kept by the plan if it has bits for them."""
    fits = plan is not None and plan.shared and plan.worth(x) and layout_of(plan.rows, x.size(1), x.device) is not None
    return Entry(how, None, plan if fits else None)


def keeps_little(plan: Plan, x: Tensor) -> bool:
    """Whether a product of x is to keep by the plan what it needs in backward."""
    return x.dim() == 2 and x.dtype in (torch.float32, torch.float64) and plan.worth(x)


def sums_data(plan: Plan, x: Tensor) -> bool:
    """Whether a sum of x over a fixed graph is one of data that the plan asks few bits of."""
    return plan.shared and not x.requires_grad and keeps_little(plan, x)


def is_fixed(value: Tensor | None) -> bool:
    """Whether the weights of edges are not learned."""
    return value is None or not value.requires_grad


def is_plain(module: Any) -> bool:
    """Whether a module is only a weight and a bias: nobody listens to it, and it does not wait for its first input."""
    known = rules.plainly(module, nn.Linear, pyg.Linear)
    return known and not rules.hooked(module) and not is_uninitialized_parameter(module.weight)


def apply_linear(module: Any, x: Tensor, bias: Tensor | None = None, rows: Tensor | None = None) -> Tensor:
    """module(x) + bias + rows in one product where the module is plain."""
    how = int8_of(module)
    if not is_plain(module):
        out = module(x)
        out = out if bias is None else out + bias
        return out if rows is None else out + rows
    own = module.bias
    total = own if bias is None else bias if own is None else own + bias
    return linear(x, module.weight, total, rows, plan_of(module), how, is_steady(module))


class Linear(nn.Linear):
    """y = x W^T + b."""

    def forward(self, x: Tensor) -> Tensor:
        out = linear(x, self.weight, self.bias, plan=plan_of(self), how=int8_of(self), steady=is_steady(self))
        return drop_box(out) if rules.hooked(self) else out


class PygLinear(pyg.Linear):
    """y = x W^T + b, with PyG's initialisation."""

    def forward(self, x: Tensor) -> Tensor:
        out = linear(x, self.weight, self.bias, plan=plan_of(self), how=int8_of(self), steady=is_steady(self))
        return drop_box(out) if rules.hooked(self) else out


class BatchNorm1d(nn.BatchNorm1d):
    """Each column to mean 0 and variance 1, then scaled and shifted."""

    def forward(self, x: Tensor) -> Tensor:
        norm = chain.norm_of(self, x) if chain.takes(x, plan_of(self), int8_of(self)) else None
        return super().forward(x) if norm is None else chain.apply(x, norm, chain.IDENTITY, 0.0, self, plan_of(self))


class LayerNorm(nn.LayerNorm):
    """Each row to mean 0 and variance 1, then scaled and shifted."""

    def forward(self, x: Tensor) -> Tensor:
        norm = chain.norm_of(self, x) if chain.takes(x, plan_of(self), int8_of(self)) else None
        return super().forward(x) if norm is None else chain.apply(x, norm, chain.IDENTITY, 0.0, self, plan_of(self))


class PygLayerNorm(pyg.LayerNorm):
    """Each graph (or each node's row) to mean 0 and variance 1, then scaled and shifted."""

    def forward(self, x: Tensor, batch: Tensor | None = None, batch_size: int | None = None) -> Tensor:
        plain = batch is None or self.mode == "node"
        norm = chain.norm_of(self, x) if plain and chain.takes(x, plan_of(self), int8_of(self)) else None
        if norm is None:
            return super().forward(x, batch, batch_size)
        return chain.apply(x, norm, chain.IDENTITY, 0.0, self, plan_of(self))


def _activation(module: Any, x: Tensor) -> Tensor | None:
    plan = plan_of(module)
    if getattr(module, "inplace", False) or not chain.takes(x, plan, int8_of(module)):
        return None
    act = chain.act_of(module)
    return None if act is None else chain.apply(x, chain.NO_NORM, act, 0.0, None, plan)


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
        return super().forward(x) if self.inplace or not self.training else chain.dropout(x, self.p, plan_of(self))
