"""`F.relu`, `F.dropout` and their like, and norms, inside a user's own forward, on our ops.

While a converted model runs, a torch function mode sees the calls it makes and replaces those that have a fused
counterpart; their results may wait for the convolution behind them (engine/pending.py). Everything else passes through.
A plain function run under gradient checkpointing is left alone: its second run, in backward, happens outside of the
model, and both must draw the same mask. Layers of ours run outside of the mode (`unwatched`): it would see every
attribute of a tensor that they read, hundreds in a step.
"""

from __future__ import annotations

import functools
import sys
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from torch.utils import checkpoint

from ..engine.choice import note_call
from ..engine.engine import Engine
from ..engine.epilogue import Act, EpilogueSpec, act_of, draw_seed, norm_of, running_of
from ..engine.pending import deferred, epilogue
from ..engine.rules import is_plain
from ..engine.shared_norm import ranks_of
from ..engine.virtual import FACTS, Pending, plain
from ..layers import dense, gat, gcn, gin, sage
from ..ops.norm_act import Over
from ..state import LayerState, state_of
from . import as_pyg


def _act(mode: _Replacing, x: Any, act: Act, inplace: bool) -> Any:
    if inplace or not isinstance(x, Tensor):
        return NotImplemented
    later = mode.wait(x, EpilogueSpec(act=act)) if mode.engine.defers else None
    if later is not None:
        return later
    x, engine = plain(x), mode.engine.floats
    return engine.run(x, EpilogueSpec(act=act)) if engine.takes(x, alone=True) else NotImplemented


def _relu(mode: _Replacing, input: Any, inplace: bool = False) -> Any:
    return _act(mode, input, Act("relu"), inplace)


def _leaky_relu(mode: _Replacing, input: Any, negative_slope: float = 0.01, inplace: bool = False) -> Any:
    return _act(mode, input, Act("leaky_relu", negative_slope), inplace)


def _elu(mode: _Replacing, input: Any, alpha: float = 1.0, inplace: bool = False) -> Any:
    return _act(mode, input, Act("elu", alpha), inplace)


def _gelu(mode: _Replacing, input: Any, approximate: str = "none") -> Any:
    return _act(mode, input, Act("gelu"), approximate != "none")


def _dropout(mode: _Replacing, input: Any, p: float = 0.5, training: bool = True, inplace: bool = False) -> Any:
    if not isinstance(input, Tensor) or not 0 <= p <= 1 or inplace:
        return NotImplemented
    if not training or p == 0:
        return input if isinstance(input, Pending) else NotImplemented  # torch returns the very tensor, too
    later = mode.wait_dropout(input, p)
    return mode.engine.floats.dropout(plain(input), p) if later is None else later


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
        self.engine, self.has_replaced = engine, False
        self._waiting: list[weakref.ref[Pending]] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        replacement = REPLACED.get(func)
        if replacement is not None and not torch.compiler.is_compiling() and not _runs_again_outside():
            result = replacement(self, *args, **(kwargs or {}))
            if result is not NotImplemented:
                self.has_replaced = True
                return result
        if self._waiting and func not in FACTS:
            self.settle()
        return func(*args, **(kwargs or {}))

    # What waits -------------------------------------------------------------------------------------------------

    def wait(self, x: Any, change: EpilogueSpec) -> Pending | None:
        """One part of an epilogue on x that waits; None if it is to be computed now."""
        if not self.engine.defers or not isinstance(x, Tensor):
            return None
        large = isinstance(x, Pending) or self.engine.takes(x, alone=change.norm.over == Over.NOTHING)
        later = epilogue(x, change, self.engine) if large and not _is_checkpointed() else None
        return None if later is None else self._noted(later)

    def wait_dropout(self, x: Any, p: float) -> Pending | None:
        return self.wait(x, EpilogueSpec(p=p, seed=draw_seed())) if isinstance(x, Pending) and x.is_open else None

    def _noted(self, later: Pending) -> Pending:
        self._waiting.append(weakref.ref(later))
        self.has_replaced = True
        return later

    def _noted_sum(self, out: Any) -> Any:
        return self._noted(out.settle_place()) if isinstance(out, Pending) else out

    def settle(self) -> None:
        """Compute all numbers that are still due and can be read."""
        waiting, self._waiting = self._waiting, []
        for found in waiting:
            later = found()
            if later is not None:
                later.numbers()

    def settled(self, out: Any) -> Any:
        """A model's result, with nothing waiting."""
        if not self._waiting:
            return out
        out = plain(out)
        self.settle()
        return out

    def run(self, forward: Callable[..., Any], layer: Any, x: Any, *args: Any, **named: Any) -> Any:
        """The forward of a layer of ours."""
        kind, x = type(layer), plain(x) if isinstance(x, Pending) and _is_checkpointed() else x
        if kind in PARTS:
            later = PARTS[kind](self, layer, x)
            if later is not None:
                return later
        elif isinstance(x, Pending) and (kind in TAKING_DEFERRED or (kind in LINEAR and is_plain(layer))):
            x = deferred(x, self.engine, self._noted_sum)
        if self._waiting:
            x, args, named = plain((x, args, named))
        return forward(layer, x, *args, **named)


def _wait_for_norm(mode: _Replacing, layer: Any, x: Any) -> Pending | None:
    if not isinstance(x, Tensor) or not mode.engine.defers or ranks_of(layer) is not None or not mode.engine.takes(x):
        return None
    found = norm_of(layer, x)
    return None if found is None else mode.wait(x, EpilogueSpec(found, running=running_of(layer, found)))


def _wait_for_act(mode: _Replacing, layer: Any, x: Any) -> Pending | None:
    found = None if getattr(layer, "inplace", False) else act_of(layer)
    return None if found is None else mode.wait(x, EpilogueSpec(act=found))


def _wait_for_dropout(mode: _Replacing, layer: Any, x: Any) -> Any:
    if not isinstance(x, Pending) or layer.inplace:
        return None
    return mode.wait_dropout(x, layer.p) if layer.training and layer.p > 0 else x


PARTS: dict[type, Callable[[_Replacing, Any, Any], Any]] = {
    dense.BatchNorm1d: _wait_for_norm,
    dense.LayerNorm: _wait_for_norm,
    dense.ReLU: _wait_for_act,
    dense.LeakyReLU: _wait_for_act,
    dense.ELU: _wait_for_act,
    dense.GELU: _wait_for_act,
    dense.Dropout: _wait_for_dropout,
}
"""Layers that are one part of an epilogue."""
LINEAR = (dense.Linear, dense.PygLinear)
TAKING_DEFERRED = (gcn.GCNConv, sage.SAGEConv, sage.GraphConv, gin.GINConv, gat.GATConv, gat.GATv2Conv)


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


def _is_checkpointed() -> bool:
    """Whether what is computed now is computed again in backward: then both times alike, hence nothing waits."""
    frame = sys._getframe(2)
    while frame is not None:
        if frame.f_code.co_filename == checkpoint.__file__:
            return True
        frame = frame.f_back  # type: ignore[assignment]
    return False


def refuse_jit_trace() -> None:
    """`torch.jit.trace` would take the graph that it is shown for a constant."""
    if torch._C._is_tracing():
        raise RuntimeError(
            f"a lightened model {JIT.format('traced by torch.jit.trace (or torch.onnx.export without dynamo=True)')}"
        )


def refuse_jit_script(module: Any) -> Any:
    """In place of `__prepare_scriptable__`, which `torch.jit.script` calls on every module first."""
    raise RuntimeError(f"a lightened {type(module).__name__} {JIT.format('compiled by torch.jit.script')}")


JIT = (
    "cannot be {}: call gs.restore_(model) first, which keeps the weights. torch.compile, torch.export.export and "
    "torch.onnx.export(..., dynamo=True) take it as it is"
)


def unwatched(forward: Callable[..., Any]) -> Callable[..., Any]:
    """The forward of a layer of ours: while it runs, calls are not looked at."""

    @functools.wraps(forward)
    def run(module: Any, *args: Any, **named: Any) -> Any:
        if torch.compiler.is_compiling():
            return forward(module, *args, **named)
        refuse_jit_trace()
        mode = _innermost()
        if mode is not None:
            with torch.overrides._pop_mode_temporarily():
                return mode.run(forward, module, *args, **named) if args else forward(module, **plain(named))
        state = state_of(module)
        if state is not None and state.name == "" and as_pyg.is_known(state.model.gained_nothing, module, args, named):
            return as_pyg.with_own_classes(module, state.model, args, named)
        args = plain(args) if any(type(each) is Pending for each in args) else args  # kept by a module of the user's
        if state is None or state.name:
            return forward(module, *args, **named)
        return as_pyg.watched(module, state.model, forward, args, named)

    return run


def _innermost() -> _Replacing | None:
    """The innermost torch function mode, if it is ours."""
    count = torch._C._len_torch_function_stack()
    found = torch._C._get_function_stack_at(count - 1) if count > 0 else None
    return found if isinstance(found, _Replacing) else None


def replacing(module: Any, forward: Callable[..., Any], args: Any, named: Any) -> Any:
    """forward(module, *args, **named), the forward of its own class, with the calls above replaced."""
    if torch.compiler.is_compiling():
        return forward(module, *args, **named)
    state = state_of(module)
    if state is not None and state.name == "" and as_pyg.is_known(state.model.gained_nothing, module, args, named):
        return as_pyg.with_own_classes(module, state.model, args, named)
    refuse_jit_trace()
    if state is None or _innermost() is not None:
        return forward(module, *args, **named)
    ours = functools.partial(_replaced, state, forward)
    return as_pyg.watched(module, state.model, ours, args, named) if state.name == "" else ours(module, *args, **named)


def _replaced(state: LayerState, forward: Callable[..., Any], module: Any, *args: Any, **named: Any) -> Any:
    """With the mode, which looks at every function called, unless calls of this kind have nothing to replace."""
    note_call(state, forward, args, named)
    if state.name == "" and as_pyg.is_known(state.model.replaced_nothing, module, args, named):
        return state.engine.leave_room_for_loss(forward(module, *args, **named))
    with _Replacing(state.engine) as mode:
        out = forward(module, *args, **named)
    if state.name == "" and not mode.has_replaced:
        as_pyg.note(state.model.replaced_nothing, module, args, named)
    return state.engine.leave_room_for_loss(mode.settled(out))
