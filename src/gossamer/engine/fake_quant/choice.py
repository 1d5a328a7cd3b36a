"""Which modules get quantisers, and at which sites.

A convolution has the sites of its whole formula, so the linear layers that it multiplies by have none of their own; any
other linear layer has one at its input, by the published plan another at its output. By the fused plan the first linear
layer of GIN's network is multiplied by within the sum, hence it has the sites of a convolution. Convolutions without an
integer form (GCNII, GATv2) stay in float32, with all they hold.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import nn
from torch_geometric import nn as pyg

from ...state import ModelState
from .engine import SITES, FakeQuant, Quantising, Sites
from .published import FakeQuantPublished
from .settings import Plan, Quantised

Names = tuple[str, ...]


@dataclass(frozen=True)
class PlanSites:
    """The sites that a plan has, by kind of module; `sum`: GIN's, None where its first linear layer has them."""

    convolution: Names
    attention: Names
    product: Names
    sum: Names | None = None


PLANS: dict[Plan, PlanSites] = {
    "fused": PlanSites(("input", "message", "aggregate", "edges"), ("input", "message"), ("input",)),
    "published": PlanSites(
        ("input", "features", "norm", "message", "aggregate", "update"),
        ("input", "features", "logits", "message", "aggregate", "update"),
        ("input", "output"),
        ("norm", "message", "aggregate", "update"),
    ),
}
MULTIPLIED: dict[type[nn.Module], tuple[str, ...]] = {
    pyg.GCNConv: ("lin",),
    pyg.SAGEConv: ("lin_l", "lin_r"),
    pyg.GraphConv: ("lin_rel", "lin_root"),
    pyg.GATConv: ("lin", "lin_src", "lin_dst", "lin_edge"),
}
"""The linear layers that a convolution multiplies by inside of its formula; the first has the columns of its input."""
FLOAT = (pyg.GCN2Conv, pyg.GATv2Conv)
NO_INTEGER_FORM = "float32: it has no integer form"


def left_in_float(model: nn.Module) -> list[str]:
    """Names of the convolutions that have no integer form."""
    return [name for name, module in model.named_modules() if isinstance(module, FLOAT)]


def sites_of(model: nn.Module, plan: Plan) -> dict[nn.Module, Names]:
    """The modules that get quantisers, with the names of these."""
    found: dict[nn.Module, Names] = {}
    has = PLANS[plan]
    inside: set[nn.Module] = set()
    for module in model.modules():
        lins = next((names for kind, names in MULTIPLIED.items() if isinstance(module, kind)), ())
        inside |= {lin for name in lins if (lin := getattr(module, name, None)) is not None}
        if lins:
            found[module] = has.attention if isinstance(module, pyg.GATConv) else has.convolution
        elif isinstance(module, pyg.GINConv):
            first = _first_of(module.nn) if has.sum is None else None
            found[module if first is None else first] = has.sum or has.convolution
        elif isinstance(module, (nn.Linear, pyg.Linear)) and module not in inside:
            found.setdefault(module, has.product)
    return found


def _first_of(network: Any) -> nn.Module | None:
    """The linear layer that a network begins with."""
    first = next(iter(network.lins if isinstance(network, pyg.MLP) else network.children()), None)
    return first if isinstance(first, (nn.Linear, pyg.Linear)) else None


def quantised(module: nn.Module, names: Names, setting: Quantised, model: ModelState, name: str) -> Quantising:
    """The engine of a module, with new quantisers in it."""
    fused = setting.plan == "fused"
    sites = Sites(setting, _columns_of(module) if fused else None, names)
    sites.train(module.training)
    module.add_module(SITES, sites)
    return (FakeQuant if fused else FakeQuantPublished)(setting, sites, model, name)


def _columns_of(module: Any) -> int | None:
    """Columns of the input, which those of a model's features may be."""
    lins = next((names for kind, names in MULTIPLIED.items() if isinstance(module, kind)), None)
    lin = module if lins is None else next(filter(None, (getattr(module, name, None) for name in lins)), None)
    weight = getattr(lin, "weight", None)
    return None if weight is None or weight.dim() != 2 else weight.size(1)
