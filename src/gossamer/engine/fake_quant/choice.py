"""Which modules get quantisers, and at which sites.

A convolution has the sites of its whole formula, so the linear layers that it multiplies by have none of their own; any
other linear layer has one at its input. The first linear layer of GIN's network is multiplied by within the sum, hence
it has those of a convolution. Convolutions without an integer form (GCNII, GATv2) stay in float32, with all they hold.
"""

from __future__ import annotations

from typing import Any

from torch import nn
from torch_geometric import nn as pyg

from ...state import ModelState
from .engine import SITES, FakeQuant, Sites
from .settings import Quantised

CONVOLUTION = ("input", "message", "aggregate", "edges")
ATTENTION = ("input", "message")
PRODUCT = ("input",)
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


def sites_of(model: nn.Module) -> dict[nn.Module, tuple[str, ...]]:
    """The modules that get quantisers, with the names of these."""
    found: dict[nn.Module, tuple[str, ...]] = {}
    inside: set[nn.Module] = set()
    for module in model.modules():
        lins = next((names for kind, names in MULTIPLIED.items() if isinstance(module, kind)), ())
        inside |= {lin for name in lins if (lin := getattr(module, name, None)) is not None}
        if lins:
            found[module] = ATTENTION if isinstance(module, pyg.GATConv) else CONVOLUTION
        elif isinstance(module, pyg.GINConv):
            first = _first_of(module.nn)
            found[module if first is None else first] = CONVOLUTION
        elif isinstance(module, (nn.Linear, pyg.Linear)) and module not in inside:
            found.setdefault(module, PRODUCT)
    return found


def _first_of(network: Any) -> nn.Module | None:
    """The linear layer that a network begins with."""
    first = next(iter(network.lins if isinstance(network, pyg.MLP) else network.children()), None)
    return first if isinstance(first, (nn.Linear, pyg.Linear)) else None


def quantised(module: nn.Module, names: tuple[str, ...], setting: Quantised, model: ModelState, name: str) -> FakeQuant:
    """The engine of a module, with new quantisers in it."""
    sites = Sites(setting, _columns_of(module), names)
    sites.train(module.training)
    module.add_module(SITES, sites)
    return FakeQuant(setting, sites, model, name)


def _columns_of(module: Any) -> int | None:
    """Columns of the input, which those of a model's features may be."""
    lins = next((names for kind, names in MULTIPLIED.items() if isinstance(module, kind)), None)
    lin = module if lins is None else next(filter(None, (getattr(module, name, None) for name in lins)), None)
    weight = getattr(lin, "weight", None)
    return None if weight is None or weight.dim() != 2 else weight.size(1)
