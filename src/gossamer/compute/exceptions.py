"""Which modules of a model compute in float32 though the recipe says int8.

The layer that feeds the loss: an error e of a logit multiplies a probability by exp(e). It is the last product in the
order in which the model lists its modules, a convolution with all it holds or a linear layer. And what the user named.
"""

from __future__ import annotations

import warnings
from typing import Any

from torch import nn

from .plan import Int8

FEEDS_LOSS = "float32: it feeds the loss"
NAMED = "float32: as the recipe says"


def float32_modules(model: nn.Module, compute: Any) -> dict[str, str]:
    """Names of modules, those inside of them included, and why they stay in float32."""
    if not isinstance(compute, Int8):
        return {}
    found: dict[str, str] = {}
    unknown = [name for name in compute.float32 if name not in dict(model.named_modules())]
    if unknown:
        raise ValueError(
            f"`float32` must name modules of the model (there is no {unknown[0]!r}); "
            f"they are {', '.join(name for name, _ in model.named_modules() if name)[:300]}"
        )
    products = product_names(model)
    for top, why in [(name, NAMED) for name in compute.float32] + [(name, FEEDS_LOSS) for name in products[-1:]]:
        found |= {name: why for name, _ in model.named_modules() if name == top or name.startswith(f"{top}.")}
    return found


def product_names(model: nn.Module) -> list[str]:
    """Names of the modules that multiply, in order; of a convolution that is more than its MLP, the whole."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyG scripts some of its classes, which newer torch versions call deprecated
        from torch_geometric import nn as pyg

    kinds = (nn.Linear, pyg.Linear, pyg.GCNConv, pyg.SAGEConv, pyg.GraphConv, pyg.GATConv, pyg.GATv2Conv)
    named = [name for name, module in model.named_modules() if isinstance(module, kinds)]
    return [name for name in named if not any(name.startswith(f"{other}.") for other in named)]
