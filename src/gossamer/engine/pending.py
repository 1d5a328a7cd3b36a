"""Results of a user's forward that wait: norms, activations, dropout, and the sum along edges before them.

    x = F.dropout(F.relu(norm(conv(x, edge_index))), p)

is one op, made together with the product of the next convolution, and what x was before is free by then. So each of
these calls returns a `Pending`: a tensor with shape, dtype and place in the autograd graph, whose numbers are computed
when something reads them. A convolution of ours does not read a pending epilogue, it runs it (`deferred`). The rules:

    1. All but the arithmetic happens at the call: checks, modes, statistics to follow, the seed of dropout.
    2. Whatever else touches a Pending gets an ordinary tensor, the same for all who ask (`plain`).
    3. A torch function that is none of these, seen by the model's function mode, first has all numbers computed that
       are still due. So nothing changes a parameter, an input or the generator in between, and none leaves the model.
    4. A result that has been read, that autograd has given another place, or that was made in another mode of
       gradients is not continued: what follows is computed from it as from any tensor.
    5. Numbers that a convolution has run along with its product are computed anew if they are read after all.

Anomaly mode, autocast, inference mode, torch.func and torch.compile have no such results.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from .. import ops
from ..ops.norm_act import Epilogue, Over
from . import rules
from .engine import Engine
from .epilogue import IDENTITY, EpilogueSpec, RunsEpilogues
from .gradient import whole, without_memory
from .noise import refuse_twice
from .saved.source import Dropped, SavedResult, saved_of
from .virtual import Pending, Plain, plain

# Epilogues --------------------------------------------------------------------------------------------------------


class _Batch:
    """What a batch norm was called on: its statistics follow even if nobody ever reads the result."""

    def __init__(self, base: Tensor, spec: EpilogueSpec) -> None:
        self._base, self._running = base, spec.running

    def __del__(self) -> None:
        if self._running is not None and not self._running.has_followed:
            with torch._C.DisableTorchFunction(), torch.no_grad():
                x = _numbers(self._base).contiguous()
                _, mean, var = ops.norm_act(x, Epilogue(over=int(Over.COLUMNS)))
                self._running.follow(mean, var, x.size(0))


class _Waiting:
    """An epilogue that was called on `base`, and not yet run."""

    def __init__(self, base: Tensor, spec: EpilogueSpec, engine: RunsEpilogues, batch: _Batch) -> None:
        self._base: Tensor | None = base
        self.spec, self._engine, self._batch = spec, engine, batch
        self._version, self._hooks, self._with_grad = _version(base, spec), _top_hooks(True), torch.is_grad_enabled()
        self.needs: tuple[bool, ...] = (False, False, False)
        self.saved: SavedResult | Dropped | None = None
        """What was saved of the result."""
        self._leaves: list[Tensor] = []
        self._graph: Tensor | None = None

    def base(self) -> Tensor:
        assert self._base is not None
        if _version(self._base, self.spec) != self._version:
            raise RuntimeError(
                "what a norm, activation or dropout was called on, or a parameter of it, must not be changed in place "
                "before its result is read, except by functions of torch (got a change that none of these made); read "
                "the result first, for instance by x = x.clone()"
            )
        return self._base

    def continued(self, base: Tensor, change: EpilogueSpec) -> _Waiting | None:
        """With one more part; None where that is not its order."""
        spec = self.spec
        if change.norm.over != Over.NOTHING or spec.p > 0 or (change.act != IDENTITY and spec.act != IDENTITY):
            return None
        act = spec.act if change.act == IDENTITY else change.act
        return _Waiting(base, spec._replace(act=act, p=change.p, seed=change.seed), self._engine, self._batch)

    def numbers(self) -> Tensor:
        """The result; of the graph that leads to it no more is held than backward needs."""
        x, norm = _numbers(self.base()).detach(), self.spec.norm
        self._base = None
        if not self._with_grad or not any(self.needs):
            return self._engine.run(x, self.spec)
        with torch.enable_grad(), _saving_by(self._hooks):
            place = x.new_empty(()).expand(x.shape).requires_grad_(self.needs[0])
            x = Plain.apply(place, x, None)
            given = (place, *(None if t is None else t.detach().requires_grad_() for t in (norm.weight, norm.bias)))
            out = self._engine.run(x, self.spec._replace(norm=norm._replace(weight=given[1], bias=given[2])))
            self._leaves = [t for t, needed in zip(given, self.needs, strict=True) if t is not None and needed]
            self.saved, self._graph = saved_of(out), without_memory(out)
        return out.detach()

    def gradients(self, dout: Tensor) -> list[Tensor | None]:
        """Of the input, weight and bias."""
        if self._graph is None:  # a function of the user's own handed on a gradient and never looked at the numbers
            self.numbers()
        assert self._graph is not None
        again = torch._C._autograd._get_current_graph_task_keep_graph()
        given = torch.autograd.grad(self._graph, self._leaves, whole(dout), retain_graph=again, allow_unused=True)
        found = iter(given)
        return [next(found) if needed else None for needed in self.needs]


_top_hooks = torch._C._autograd._top_saved_tensors_default_hooks


@contextlib.contextmanager
def _saving_by(hooks: Any) -> Iterator[None]:
    """With the hooks on saved tensors of another time: those of a checkpointed part count what that part saves."""
    if _top_hooks(True) == hooks:
        yield
        return
    with torch.autograd.graph.saved_tensors_hooks(*(hooks or (_as_it_is, _as_it_is))):
        yield


def _as_it_is(x: Tensor) -> Tensor:
    return x


class _Later(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor | None, bias: Tensor | None, waiting: _Waiting) -> Pending:
        ctx.waiting, waiting.needs = waiting, ctx.needs_input_grad[:3]
        return Pending(x.shape, waiting.numbers)

    @staticmethod
    def backward(ctx: Any, dout: Tensor) -> tuple[Tensor | None, ...]:
        return refuse_twice(*ctx.waiting.gradients(dout), None)


def _numbers(x: Tensor) -> Tensor:
    return x.numbers() if isinstance(x, Pending) else x


def _version(base: Tensor, spec: EpilogueSpec) -> list[int]:
    norm = spec.norm
    given = [base, norm.weight, norm.bias, norm.mean, norm.var]
    with torch._C.DisableTorchFunction():
        return [t._version for t in given if t is not None and not t.is_inference()]


def possible() -> bool:
    """Whether results may wait at all."""
    return not (
        torch.is_inference_mode_enabled()
        or torch.is_autocast_enabled("cpu")
        or torch.is_anomaly_enabled()
        or torch.compiler.is_compiling()
        or rules.transformed()
    )


def epilogue(x: Any, change: EpilogueSpec, engine: Engine) -> Pending | None:
    """What a norm, activation or dropout (one part of an epilogue) makes of x; None if that is not to wait."""
    if not engine.defers or not possible():
        return None
    found: _Waiting | None = None
    if isinstance(x, Pending) and x.is_open:
        base: Tensor = x
        if x.epilogue is not None:
            base = x.epilogue.base()
            found = x.epilogue.continued(base, change)
            base = x if found is None else base
    elif type(x) is Tensor and (change.norm.over != Over.NOTHING or (change.act != IDENTITY and x.requires_grad)):
        base = x
    else:
        return None
    if found is None:
        if base.dtype != torch.float32 or not engine.takes(base, alone=change.norm.over == Over.NOTHING):
            return None
        found = _Waiting(base, change, engine, _Batch(base, change))
    made: Pending = _Later.apply(base, found.spec.norm.weight, found.spec.norm.bias, found)
    made.epilogue = found
    return made.settle_place()


def deferred(x: Pending, engine: Engine, waits: Callable[[Tensor], Tensor]) -> Any:
    """For a layer of ours: the epilogue that it is to run, or x as an ordinary tensor; `waits` is told of sums."""
    if not x.is_open or x.epilogue is None or not possible():
        return x.plain()
    base = x.epilogue.base()
    found = engine.defer(plain(base), x.epilogue.spec)
    if found is None:
        return x.plain()
    found.waits = waits
    return found
