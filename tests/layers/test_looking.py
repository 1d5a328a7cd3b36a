"""A user's module inside of a ready model looks at gradients: it sees those of float32, rounded as the recipe says."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch_geometric import nn as pyg

import gossamer as gs
from support.paths import forced

NODES, WIDTH = 300, 32
SEEN: dict[str, Tensor] = {}


def look(name: str, x: Tensor) -> Tensor:
    """By `retain_grad`, and by a tensor hook."""
    if x.requires_grad:
        x.retain_grad()
        SEEN[name] = x
        x.register_hook(lambda grad: SEEN.__setitem__(f"{name}, hook", grad.clone()))
    return x


class Looking(nn.Module):
    def __init__(self, inner: nn.Module, name: str) -> None:
        super().__init__()
        self.inner, self.name = inner, name

    def forward(self, x: Tensor, *args: Any, **named: Any) -> Tensor:
        return look(f"{self.name}, out", self.inner(look(f"{self.name}, in", x), *args, **named))


MODELS = {
    "gcn": lambda: pyg.GCN(16, WIDTH, 3, 8, norm="batch_norm"),
    "sage": lambda: pyg.GraphSAGE(16, WIDTH, 3, 8, norm="batch_norm"),
    "gin": lambda: pyg.GIN(16, WIDTH, 3, 8),
    "gat": lambda: pyg.GAT(16, WIDTH, 3, 8, heads=4, norm="layer_norm"),
}


def placed(model: Any, place: str) -> nn.Module:
    if place == "act":
        model.act = Looking(model.act, "act")
    elif place == "conv":
        model.convs[1] = Looking(model.convs[1], "conv")
    elif model.norms[0] is not None and not isinstance(model.norms[0], nn.Identity):
        model.norms[0] = Looking(model.norms[0], "norm")
    return model


def gradients(model: nn.Module) -> dict[str, Tensor]:
    SEEN.clear()
    rng = torch.Generator().manual_seed(1)
    x, edges = torch.randn(NODES, 16, generator=rng), torch.randint(0, NODES, (2, 2000), generator=rng)
    functional.cross_entropy(model(x, edges), torch.arange(NODES) % 8).backward()
    return {name: seen if "hook" in name else seen.grad for name, seen in SEEN.items()}


@pytest.mark.parametrize("recipe", ["float32", "exact-int2", "exact-int8", "tango", "tango-auto", "feather"])
@pytest.mark.parametrize("place", ["act", "conv", "norm"])
@pytest.mark.parametrize("kind", MODELS)
def test_gradients_are_seen(kind: str, place: str, recipe: str) -> None:
    torch.manual_seed(0)
    model = placed(MODELS[kind](), place)
    light = copy.deepcopy(model)
    gs.lighten_(light, recipe)
    want = gradients(model)
    with forced(least=1):
        found = gradients(light)
    assert found.keys() == want.keys()
    for name, exact in want.items():
        alike = torch.cosine_similarity(found[name].flatten(), exact.flatten(), 0)
        assert float(alike) > (0.9999 if recipe == "float32" else 0.8), name
