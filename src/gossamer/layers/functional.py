"""`F.relu`, `F.dropout` and their like inside a user's own forward, on our ops.

While a converted model runs, a torch function mode sees the calls it makes and replaces those that have a fused
counterpart. Everything else passes through. A plain function run under gradient checkpointing is left alone: its second
run, in backward, happens outside of the model, and both must draw the same mask. Layers of ours run outside of the
mode (`unwatched`): it would see every attribute of a tensor that they read, hundreds in a step. For the same reason a
model whose call had nothing to replace is called without the mode from then on, up to that size of its input
(`ModelState.nothing_to_replace`).
"""

from __future__ import annotations

import functools
import math
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from torch.utils import checkpoint

from ..engine.engine import Engine
from ..engine.epilogue import Act, EpilogueSpec
from ..state import state_of


def _act(engine: Engine, x: Any, act: Act, inplace: bool) -> Any:
    if inplace or not isinstance(x, Tensor) or not engine.takes(x):
        return NotImplemented
    return engine.run(x, EpilogueSpec(act=act))


def _relu(engine: Engine, input: Any, inplace: bool = False) -> Any:
    return _act(engine, input, Act("relu"), inplace)


def _leaky_relu(engine: Engine, input: Any, negative_slope: float = 0.01, inplace: bool = False) -> Any:
    return _act(engine, input, Act("leaky_relu", negative_slope), inplace)


def _elu(engine: Engine, input: Any, alpha: float = 1.0, inplace: bool = False) -> Any:
    return _act(engine, input, Act("elu", alpha), inplace)


def _gelu(engine: Engine, input: Any, approximate: str = "none") -> Any:
    return _act(engine, input, Act("gelu"), approximate != "none")


def _dropout(engine: Engine, input: Any, p: float = 0.5, training: bool = True, inplace: bool = False) -> Any:
    if not training or inplace or not 0 < p <= 1 or not isinstance(input, Tensor):
        return NotImplemented
    return engine.dropout(input, p)


REPLACED: dict[Callable[..., Any], Callable[..., Any]] = {
    functional.relu: _relu,
    torch.relu: _relu,
    Tensor.relu: _relu,
    functional.leaky_relu: _leaky_relu,
    functional.elu: _elu,
    functional.gelu: _gelu,
    functional.dropout: _dropout,
}


class _Replacing(TorchFunctionMode):
    def __init__(self, engine: Engine) -> None:
        super().__init__()
        self.engine, self.has_replaced = engine.floats, False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        replacement = REPLACED.get(func)
        if replacement is not None and not torch.compiler.is_compiling() and not _runs_again_outside():
            result = replacement(self.engine, *args, **(kwargs or {}))
            if result is not NotImplemented:
                self.has_replaced = True
                return result
        return func(*args, **(kwargs or {}))


def _runs_again_outside() -> bool:
    """Whether a checkpointed function, not a module of ours, made this call: read off the stack, innermost first."""
    frame = sys._getframe(2)
    while frame is not None:
        if frame.f_code is replacing.__code__:
            return False
        if frame.f_code.co_filename == checkpoint.__file__:
            return True
        frame = frame.f_back  # type: ignore[assignment]
    return False


def unwatched(forward: Callable[..., Any]) -> Callable[..., Any]:
    """The forward of a layer of ours: while it runs, calls are not looked at."""

    @functools.wraps(forward)
    def run(*args: Any, **named: Any) -> Any:
        if torch.compiler.is_compiling() or not _is_replacing():
            return forward(*args, **named)
        with torch.overrides._pop_mode_temporarily():
            return forward(*args, **named)

    return run


def _is_replacing() -> bool:
    """Whether the innermost torch function mode is ours."""
    count = torch._C._len_torch_function_stack()
    return count > 0 and isinstance(torch._C._get_function_stack_at(count - 1), _Replacing)


def replacing(module: Any, forward: Callable[..., Any], *args: Any, **named: Any) -> Any:
    """forward(*args, **named) of a lightened module, with the calls above replaced."""
    state = state_of(module)
    if state is None or torch.compiler.is_compiling() or _is_replacing():
        return forward(*args, **named)
    engine, known = state.engine, state.model.nothing_to_replace
    kind, size = f"{state.name} {module.training} {torch.is_grad_enabled()}", _largest((args, named))
    if size <= known.get(kind, 0):
        out = forward(*args, **named)
        return engine.leave_room_for_loss(out) if state.name == "" else out
    with _Replacing(engine) as mode:
        out = forward(*args, **named)
    if not mode.has_replaced and math.isfinite(size):
        known[kind] = size
    return engine.leave_room_for_loss(out)


def _largest(given: Any) -> float:
    """The number of elements of the largest tensor in what a model is called with; infinite if there may be others."""
    if isinstance(given, Tensor):
        return given.numel()
    if isinstance(given, dict):
        return max(map(_largest, given.values()), default=0)
    if isinstance(given, (tuple, list)):
        return max(map(_largest, given), default=0)
    if hasattr(given, "stores"):  # PyG's Data and HeteroData
        return max((_largest(dict(store)) for store in given.stores), default=0)
    return 0 if given is None or isinstance(given, (int, float, str)) else math.inf
