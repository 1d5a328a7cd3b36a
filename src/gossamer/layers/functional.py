"""`F.relu`, `F.dropout` and their like inside a user's own forward, on our ops.

While a converted model runs, a torch function mode sees the calls it makes and replaces those that have a fused
counterpart. Everything else passes through. A plain function run under gradient checkpointing is left alone: its second
run, in backward, happens outside of the model, and both must draw the same mask. Layers of ours run outside of the
mode (`unwatched`): it would see every attribute of a tensor that they read, hundreds in a step.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from torch.utils import checkpoint

from ..engine.choice import note_call
from ..engine.engine import Engine
from ..engine.epilogue import Act, EpilogueSpec
from ..state import LayerState, state_of
from . import as_pyg


def _act(engine: Engine, x: Any, act: Act, inplace: bool) -> Any:
    if inplace or not isinstance(x, Tensor) or not engine.takes(x, alone=True):
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
        self.engine = engine.floats

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        replacement = REPLACED.get(func)
        if replacement is not None and not torch.compiler.is_compiling() and not _runs_again_outside():
            result = replacement(self.engine, *args, **(kwargs or {}))
            if result is not NotImplemented:
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
    def run(module: Any, *args: Any, **named: Any) -> Any:
        if torch.compiler.is_compiling():
            return forward(module, *args, **named)
        if _is_replacing():
            with torch.overrides._pop_mode_temporarily():
                return forward(module, *args, **named)
        state = state_of(module)
        if state is None or state.name:
            return forward(module, *args, **named)
        if as_pyg.gained_nothing(module, state.model, args, named):
            return as_pyg.with_own_classes(module, state.model, args, named)
        return as_pyg.watched(module, state.model, forward, args, named)

    return run


def _is_replacing() -> bool:
    """Whether the innermost torch function mode is ours."""
    count = torch._C._len_torch_function_stack()
    return count > 0 and isinstance(torch._C._get_function_stack_at(count - 1), _Replacing)


def replacing(module: Any, forward: Callable[..., Any], args: Any, named: Any) -> Any:
    """forward(module, *args, **named), the forward of its own class, with the calls above replaced."""
    state = state_of(module)
    if state is not None and state.name == "" and as_pyg.gained_nothing(module, state.model, args, named):
        return as_pyg.with_own_classes(module, state.model, args, named)
    if state is None or torch.compiler.is_compiling() or _is_replacing():
        return forward(module, *args, **named)
    ours = functools.partial(_replaced, state, forward)
    return as_pyg.watched(module, state.model, ours, args, named) if state.name == "" else ours(module, *args, **named)


def _replaced(state: LayerState, forward: Callable[..., Any], module: Any, *args: Any, **named: Any) -> Any:
    note_call(state, forward, args, named)
    with _Replacing(state.engine):
        out = forward(module, *args, **named)
    return state.engine.leave_room_for_loss(out)
