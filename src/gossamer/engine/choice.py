"""Which engine computes a module: a recipe is lowered to one engine per module, once, by `lighten_`.

The exceptions of int8: the layer that feeds the loss, as an error e of a logit multiplies a probability by exp(e). It
is the last product in the order in which the model lists its modules, a convolution with all it holds or a linear
layer. GCNII's convolutions hand on as many columns as they take: another layer makes logits of these, wherever it is
listed. And what the user named.

Where a model is trained for integer inference, its products have quantisers in every layer, the last one included.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch_geometric import nn as pyg

from ..state import LayerState, ModelState, state_of
from ..state.layer import ATTRIBUTE
from .engine import Engine
from .fake_quant import protection
from .fake_quant.choice import NO_INTEGER_FORM, left_in_float, quantised, sites_of
from .float32 import FLOAT32, Float32
from .int8.engine import Int8Engine
from .int8.precision import Watch
from .published import Published
from .saved.engine import Saved
from .saved.policy import saving_of
from .settings import Float32 as Float32Setting
from .settings import Int8
from .settings import Published as PublishedSetting

FEEDS_LOSS = "float32: it feeds the loss"
NAMED = "float32: as the recipe says"


def engine_of(module: Any) -> Engine:
    """The engine of a lightened module; float32 for any other, and in what `torch.compile` traces."""
    state = state_of(module)
    return FLOAT32 if state is None or torch.compiler.is_compiling() else state.engine


def note_call(state: LayerState | None, forward: Callable[..., Any], args: Any, named: Any) -> None:
    """What the layers of a model should know of a call of it: nothing, unless they protect nodes by degree."""
    if state is None or state.name != "" or state.model.recipe.training is None:
        return
    if not torch.compiler.is_compiling():  # what is traced has no quantisers
        protection.note_call(state.model, forward, args, named)


def lower(compute: Any, activations: Any, deterministic: bool = False, watch: Watch | None = None) -> Engine:
    """The engine of a recipe's `compute` and `activations`."""
    whole, saving = Float32(deterministic), saving_of(activations)
    beneath: Float32 | Saved | Published = whole
    if saving is not None:
        saved = Saved(saving, whole)
        beneath = Published(saved) if isinstance(activations, PublishedSetting) else saved
    return Int8Engine(compute, beneath, watch) if isinstance(compute, Int8) else beneath


def attach(model: nn.Module, recipe: Any, names: list[str], exceptions: dict[str, str]) -> ModelState:
    """Give the modules of these names their state."""
    state, modules = ModelState(recipe, seed=torch.initial_seed() % 2**62), dict(model.named_modules())
    int8 = recipe.compute if isinstance(recipe.compute, Int8) else None
    in_int8 = [name for name in names if name not in exceptions]
    watches = _watches(in_int8, products_of(model), int8.tolerance) if int8 is not None and int8.auto else {}
    sites = {} if recipe.training is None else sites_of(model, recipe.training.plan)
    for name in names:
        own = dataclasses.replace(recipe, compute=Float32Setting()) if name in exceptions else recipe
        watch = watches.get(name)
        engine = lower(own.compute, own.activations, int8 is not None, watch)
        if name not in exceptions and modules[name] in sites:
            engine = quantised(modules[name], sites[modules[name]], recipe.training, state, name)
        layer = state.layers[name] = LayerState(
            own, name, state, engine, own.backward.bound_to(name, state), own.messages, watch
        )
        if watch is not None:
            watch.decides_for(layer)
        modules[name].__dict__[ATTRIBUTE] = layer
    return state


def exceptions_of(model: nn.Module, recipe: Any) -> dict[str, str]:
    """Names of modules, those inside of them included, and why they stay in float32 despite the recipe."""
    found: dict[str, str] = {}
    if isinstance(recipe.compute, Int8):
        _check_names("float32", recipe.compute.float32, model)
        tops = [(name, NAMED) for name in recipe.compute.float32] + [(name, FEEDS_LOSS) for name in _last(model)]
    elif recipe.training is not None:
        _check_names("skip", recipe.training.skip, model)
        tops = [(name, NAMED) for name in recipe.training.skip]
        tops += [(name, NO_INTEGER_FORM) for name in left_in_float(model)]
    else:
        return found
    for top, why in tops:
        found |= {name: why for name, _ in model.named_modules() if top in ("", name) or name.startswith(f"{top}.")}
    return found


def _check_names(argument: str, names: tuple[str, ...], model: nn.Module) -> None:
    unknown = [name for name in names if name not in dict(model.named_modules())]
    if unknown:
        raise ValueError(
            f"`{argument}` must name modules of the model (there is no {unknown[0]!r}); "
            f"they are {', '.join(name for name, _ in model.named_modules() if name)[:300]}"
        )


def products_of(model: nn.Module) -> list[str]:
    """Names of the modules that multiply, in order; of a convolution with weights of its own, the whole."""
    named = [name for name, module in model.named_modules() if _multiplies(module)]
    if "" in named:  # the model is itself a convolution
        return [""]
    return [name for name in named if not any(name.startswith(f"{other}.") for other in named)]


def _last(model: nn.Module) -> list[str]:
    """The name of the product that feeds the loss, in a list; none if nothing multiplies."""
    products = products_of(model)
    changing = [name for name in products if not isinstance(model.get_submodule(name), pyg.GCN2Conv)]
    return (changing or products)[-1:]


def _multiplies(module: nn.Module) -> bool:
    """A linear layer, or a convolution that holds one by itself and not in an MLP (as GIN does), or bare weights."""
    lins = (nn.Linear, pyg.Linear)
    holds = isinstance(module, pyg.MessagePassing) and any(isinstance(child, lins) for child in module.children())
    return isinstance(module, (*lins, pyg.GCN2Conv)) or holds


def _watches(names: list[str], products: list[str], tolerance: float) -> dict[str, Watch]:
    """A new watch for each of `products`; those of `names` that it holds have the same one."""
    made = {product: Watch(tolerance) for product in products}
    found = {}
    for name in names:
        holder = next((p for p in products if p in (name, "") or name.startswith(f"{p}.")), None)
        if holder is not None:
            found[name] = made[holder]
    return found
