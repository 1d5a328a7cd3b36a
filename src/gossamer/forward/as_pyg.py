"""What is too small to gain runs as PyG runs it: with the classes that its modules had before `lighten_`.

A layer asks before every path of ours whether that pays (engine/rules.py). If in a whole call of a model none did, then
asking is all that our layers added, on a small graph a third of the time. So from then on such a call, with inputs no
larger, has its modules back in their own classes while it runs. The same functions of torch run either way: the results
are the same bits. Sizes alone decide, and each rule looks at one input, so the largest of each are remembered.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ..engine.rules import gains, transformed
from ..layers import CONVERTED
from ..state import ModelState, state_of
from ..state.layer import MADE

Known = dict[tuple[Any, ...], tuple[int, ...]]
"""Kinds of calls, and the largest number of elements of each tensor that they were called with."""


def is_known(known: Known, module: Any, args: Any, named: Any) -> bool:
    """Whether a call of this kind, no smaller, is known. Asked before every call of a model: hence short."""
    if not known:
        return False
    given = _flat(args, named)
    most = known.get((module.training, torch.is_grad_enabled(), torch.is_autocast_enabled("cpu"), len(given)))
    if most is None or transformed() or torch._C._is_tracing():
        return False
    for each, size in zip(given, most, strict=True):
        if type(each) is Tensor:
            if each.numel() > size:
                return False
        elif type(each) not in PLAIN:
            return False
    return True


def note(known: Known, module: Any, args: Any, named: Any) -> None:
    """Let the kind of this call be known."""
    given = _flat(args, named)
    if not transformed() and all(type(each) is Tensor or type(each) in PLAIN for each in given):
        kind = (module.training, torch.is_grad_enabled(), torch.is_autocast_enabled("cpu"), len(given))
        sizes = tuple(each.numel() if type(each) is Tensor else 0 for each in given)
        known[kind] = tuple(map(max, sizes, known.get(kind, sizes)))


def watched(module: Any, model: ModelState, ours: Callable[..., Any], args: Any, named: Any) -> Any:
    """ours(module, *args, **named), and whether it gained anything is remembered."""
    before = gains.count
    out = ours(module, *args, **named)
    if gains.count == before and model.recipe.training is None:
        note(model.gained_nothing, module, args, named)
    return out


def own_class(kind: type[nn.Module]) -> type[nn.Module]:
    """The class that a module of this class of ours had before."""
    return kind.__mro__[1] if MADE in kind.__dict__ else next(base for base in kind.__mro__ if base in CONVERTED)


def with_own_classes(module: nn.Module, model: ModelState, args: Any, named: Any) -> Any:
    """The original forward."""
    classes, change = model.classes, object.__setattr__  # nn.Module's own would look for parameters first
    if classes is None:
        lightened = [each for each in module.modules() if state_of(each) is not None]
        classes = [(weakref.ref(each), type(each), own_class(type(each))) for each in lightened]
        model.classes = classes
    changed = []
    try:
        for ref, ours, own in classes:
            each = ref()
            if type(each) is ours:
                change(each, "__class__", own)
                changed.append((each, ours))
        return module.forward(*args, **named)
    finally:
        for each, ours in changed:
            change(each, "__class__", ours)


PLAIN = {int, float, str, bool, type(None)}
NESTED = {dict, tuple, list}


def _flat(args: Any, named: Any) -> Sequence[Any]:
    """What a model is called with, one by one."""
    given = (*args, *named.values()) if named else args
    for each in given:
        if type(each) in NESTED:
            leaves: list[Any] = []
            _add_leaves(given, leaves)
            return leaves
    return given


def _add_leaves(given: Iterable[Any], leaves: list[Any]) -> None:
    for each in given:
        if type(each) in NESTED:
            _add_leaves(each.values() if type(each) is dict else each, leaves)
        else:
            leaves.append(each)
