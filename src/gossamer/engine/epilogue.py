"""Epilogues: norm, activation and dropout between two products, in as few memory passes as the mathematics allows.

`match` reads the three modules once; what it finds runs as one fused op (ops/norm_act.py, or ops.relu_dropout where
there is no norm). Where an engine can run it together with the product behind it, a `Deferred` takes the place of the
result. Modules that are hooked, of other kinds or changed in place are called one by one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch_geometric import nn as pyg

from .. import ops
from ..codecs import CodedRows
from ..ops.activation import ACTIVATIONS
from ..ops.norm_act import Epilogue, Over
from ..ranks import Ranks, own_seed
from . import gradient, rules, shared_norm
from .saved import epilogue as saved
from .saved.policy import Saving


class Act(NamedTuple):
    """An activation as fused ops know it."""

    name: str
    slope: float = 0.0


class Norm(NamedTuple):
    """A normalisation as fused ops know it: what its statistics are taken over, and its parameters."""

    over: Over
    eps: float
    weight: Tensor | None
    bias: Tensor | None
    mean: Tensor | None = None
    var: Tensor | None = None


NO_NORM = Norm(Over.NOTHING, 0.0, None, None)
IDENTITY = Act("identity")
Batch = tuple[Tensor | None, int | None] | None
"""Which rows are one graph, and how many graphs there are."""


class EpilogueSpec(NamedTuple):
    """dropout(act(norm(x))) as modules define it; `running` are statistics of a batch norm that are to follow."""

    norm: Norm = NO_NORM
    act: Act = IDENTITY
    p: float = 0.0
    running: Running | None = None
    seed: int | None = None
    """Of dropout, where it has been drawn."""

    def draw(self) -> Epilogue:
        """As ops take it, with a new seed for dropout."""
        norm, act, seed = self.norm, ACTIVATIONS.index(self.act.name), 0
        if self.p > 0:
            seed = draw_seed() if self.seed is None else self.seed
        drawn = Epilogue(norm.weight, norm.bias, norm.mean, norm.var, int(norm.over), norm.eps)
        return drawn._replace(act=act, slope=self.act.slope, p=self.p, seed=seed)

    @property
    def is_relu(self) -> bool:
        """Without a norm."""
        return self.norm.over == Over.NOTHING and self.act.name == "relu"

    @property
    def is_dropout(self) -> bool:
        """Neither norm nor activation."""
        return self.norm.over == Over.NOTHING and self.act.name == "identity"

    def follow(self, mean: Tensor, var: Tensor, rows: int) -> None:
        """Let the batch norm's running statistics follow."""
        if self.running is not None:
            self.running.follow(mean, var, rows)


def draw_seed() -> int:
    """A seed from torch's default generator: `torch.manual_seed` and saved generator states govern our masks too."""
    return own_seed(int(torch.randint(2**63 - 1, ())))


class Running:
    """The running statistics of a batch norm at one call of it, which they follow once, whenever it is computed."""

    def __init__(self, norm: _BatchNorm) -> None:
        assert norm.running_mean is not None and norm.running_var is not None
        self._mean, self._var, self._count = norm.running_mean, norm.running_var, norm.num_batches_tracked
        self._momentum, self.has_followed = norm.momentum, False

    @torch.no_grad()
    def follow(self, mean: Tensor, var: Tensor, rows: int) -> None:
        """Move towards this batch's, as torch does: by `momentum`, or to the mean of all batches."""
        if self.has_followed:
            return
        self.has_followed, momentum = True, self._momentum
        if self._count is not None:
            self._count.add_(1)
            momentum = 1.0 / float(self._count) if momentum is None else momentum
        self._mean.lerp_(mean, momentum or 0.0)
        self._var.lerp_(var * (rows / (rows - 1)), momentum or 0.0)


def running_of(module: nn.Module | None, norm: Norm) -> Running | None:
    """What of a module follows the input of its `norm`; None in evaluation, and for other norms."""
    return _running_of(module) if norm.over == Over.COLUMNS else None


def _running_of(module: nn.Module | None) -> Running | None:
    inner = module.module if isinstance(module, pyg.BatchNorm) else module
    if not isinstance(inner, _BatchNorm) or not inner.training or not inner.track_running_stats:
        return None
    return None if inner.running_mean is None or inner.running_var is None else Running(inner)


# Matching ---------------------------------------------------------------------------------------------------------


def act_of(module: nn.Module | None) -> Act | None:
    """The activation of a module, None if it is none that fused ops know."""
    if module is None or type(module) is nn.Identity:
        return IDENTITY
    if isinstance(module, nn.ReLU):
        return Act("relu") if rules.is_a(module, nn.ReLU) else None
    if isinstance(module, nn.LeakyReLU):
        return Act("leaky_relu", module.negative_slope) if rules.is_a(module, nn.LeakyReLU) else None
    if isinstance(module, nn.ELU):
        return Act("elu", module.alpha) if rules.is_a(module, nn.ELU) else None
    return Act("gelu") if rules.is_a(module, nn.GELU) and module.approximate == "none" else None


def norm_of(module: nn.Module | None, x: Tensor) -> Norm | None:
    """The normalisation that a module would apply to x, None if it is none that fused ops know."""
    if module is None or type(module) is nn.Identity:
        return NO_NORM
    if not rules.is_a(module, pyg.BatchNorm, nn.BatchNorm1d, nn.LayerNorm, pyg.LayerNorm):
        return None
    if isinstance(module, pyg.BatchNorm):
        return norm_of(module.module, x)
    if isinstance(module, nn.BatchNorm1d) and x.size(1) == module.num_features:
        if module.training or module.running_mean is None:
            ranks = shared_norm.ranks_of(module)
            if ranks is not None:
                return _over_ranks(module, x, ranks)
            return Norm(Over.COLUMNS, module.eps, module.weight, module.bias) if x.size(0) > 1 else None
        return Norm(Over.FIXED, module.eps, module.weight, module.bias, module.running_mean, module.running_var)
    if isinstance(module, nn.LayerNorm) and module.normalized_shape == (x.size(1),):
        return Norm(Over.ROWS, module.eps, module.weight, module.bias)
    if isinstance(module, pyg.LayerNorm) and x.size(1) == module.in_channels:
        over = Over.ALL if module.mode == "graph" else Over.ROWS
        if over == Over.ALL and shared_norm.ranks_of(module) is not None:
            raise ValueError(
                "a layer norm must have mode='node' on a part of a graph (got mode='graph', whose statistics are those "
                "of all nodes); batch norm takes them over all ranks"
            )
        return Norm(over, module.eps, module.weight, module.bias)
    return None


def _over_ranks(module: Any, x: Tensor, ranks: Ranks) -> Norm:
    """Batch norm by the statistics of all ranks' rows; the running ones follow."""
    weight, bias, mean, var, rows = shared_norm.statistics(module, x, ranks)
    if rows < 2:
        raise ValueError(f"batch norm must have more than one row on all ranks together (got {rows})")
    running = _running_of(module)
    if running is not None:
        running.follow(mean, var, rows)
    return Norm(Over.FIXED, module.eps, weight, bias, mean, var)


def match(
    x: Tensor, norm: nn.Module | None, act: nn.Module | None, drop: nn.Dropout | float, batch: Batch
) -> EpilogueSpec | None:
    """The epilogue of three modules on x, None if one of them is to be called by itself."""
    if batch is not None and batch[0] is not None:
        return None
    if rules.is_hooked(norm, act, drop, getattr(norm, "module", None)):
        return None
    if isinstance(drop, nn.Module) and not rules.is_a(drop, nn.Dropout):
        return None
    first = next((m for m in (norm, act, drop) if m is not None and type(m) is not nn.Identity), None)
    if getattr(first, "inplace", False):  # the caller may count on its x being changed
        return None
    p = drop if isinstance(drop, (int, float)) else drop.p if drop.training else 0.0
    known_act = act_of(act)
    known_norm = None if known_act is None else norm_of(norm, x)
    if known_norm is None or known_act is None:
        return None
    return EpilogueSpec(known_norm, known_act, p, running_of(norm, known_norm))


# Running ----------------------------------------------------------------------------------------------------------


class RunsEpilogues(Protocol):
    """What an engine does for epilogues."""

    def takes(self, x: Tensor, alone: bool = False) -> bool:
        """Whether a fused op on x is worth its call, or an activation `alone`."""

    def run(self, x: Tensor, epilogue: EpilogueSpec) -> Tensor:
        """The epilogue as one op."""

    def defer(self, x: Tensor, epilogue: EpilogueSpec) -> Deferred | None:
        """The epilogue, to be run with the product behind it; None if that gains nothing."""

    def dropout(self, x: Tensor, p: float) -> Tensor:
        """Dropout alone: ours pays from far fewer elements on than other ops, and for any number of dimensions."""


def run(
    engine: RunsEpilogues, x: Tensor, norm: nn.Module | None = None, act: nn.Module | None = None,
    drop: nn.Dropout | float = 0.0, batch: Batch = None, defer: bool = False,
) -> Any:  # fmt: skip
    """drop(act(norm(x))), fused where that is possible and pays; with `defer` maybe a Deferred.

    `drop` is a module, or a probability that holds now; `batch` is passed to norms that ask which rows are one graph.
    """
    epilogue = match(x, norm, act, drop, batch) if engine.takes(x) else None
    if epilogue is not None:
        deferred = engine.defer(x, epilogue) if defer else None
        return engine.run(x, epilogue) if deferred is None else deferred
    if norm is not None:
        x = norm(x) if batch is None else norm(x, *batch)
    x = x if act is None else act(x)
    return drop(x) if isinstance(drop, nn.Module) else engine.dropout(x, drop)


def run_fused(x: Tensor, epilogue: EpilogueSpec) -> Tensor:
    """The epilogue as one op that saves x, or a bit per element."""
    drawn = epilogue.draw()
    if epilogue.is_relu:
        return ops.relu_dropout(x, drawn.p, drawn.seed)
    if epilogue.is_dropout:
        return ops.dropout(x, drawn.p, drawn.seed) if drawn.p > 0 else x
    out, mean, var = ops.norm_act(x.contiguous(), drawn)
    epilogue.follow(mean, var, x.size(0))
    return out


Consume = Callable[[list[Tensor], Epilogue], tuple[Tensor, ...]]
"""Runs an epilogue with what follows it: the results, then the mean and variance of its input. The input is the only
tensor of a list and is to be taken out of it, so that it is free when it has been read."""


class Deferred:
    """An epilogue that waits for the product behind it: made together, its result never exists as a whole.

    It holds the only reference to its input, which is free once `products`, `quantise` or `run` has been called.
    `saving` saves its result in few bits; `asked` is what the maker of its input asks of the gradient. If someone else
    can reach the result, `waits` is told of sums that the product may leave waiting (pending.py).
    """

    waits: Callable[[Tensor], Tensor] | None = None

    def __init__(
        self, x: Tensor, epilogue: EpilogueSpec, run: Callable[[Tensor, EpilogueSpec], Tensor], saving: Saving | None,
        asked: gradient.Request | None,
    ) -> None:  # fmt: skip
        self._x: Tensor | None = x
        self._epilogue, self._run, self.saving, self.asked = epilogue, run, saving, asked

    @property
    def x(self) -> Tensor:
        """The epilogue's input; its result has the same shape and dtype."""
        assert self._x is not None, "the epilogue has run"
        return self._x

    def size(self, dim: int) -> int:
        return self.x.size(dim)

    def run(self) -> Tensor:
        """The result."""
        if self.asked is not None and self.saving is None:
            asked = self.asked
            return self._through(lambda x, drawn: gradient.norm_act(x.pop(), drawn, asked))[0]
        x, self._x = self.x, None
        return self._run(x, self._epilogue)

    @property
    def multiplies(self) -> bool:
        """Whether `products` may be called: their input is saved in few bits, or recomputed from the epilogue's."""
        if self.saving is not None:
            return True
        return self.asked is not None and gradient.multiplies(ACTIVATIONS.index(self._epilogue.act.name))

    def products(self, weights: list[Tensor], biases: list[Tensor | None]) -> tuple[Tensor, ...]:
        """out W_k^T + b_k for each k, out the epilogue's result."""
        saving, asked = self.saving, self.asked
        if saving is not None:
            given = (weights, biases, asked)
            return self._through(lambda x, drawn: saved.epilogue_products(x.pop(), drawn, saving, *given))
        assert asked is not None
        return self._through(lambda x, drawn: gradient.products(x.pop(), drawn, asked, weights, biases))

    def quantise(self, consume: Consume) -> tuple[Tensor, ...]:
        """The results of consume(x, epilogue), which makes the epilogue's result as int8 rows."""
        return self._through(consume)

    def _through(self, consume: Consume) -> tuple[Tensor, ...]:
        rows, x, self._x = self.x.size(0), [self.x.contiguous()], None
        *outs, mean, var = consume(x, self._epilogue.draw())
        self._epilogue.follow(mean, var, rows)
        return tuple(outs)


def ready(x: Any) -> Any:
    """A tensor: the result of a Deferred, rows that were codes, or x itself."""
    if isinstance(x, CodedRows):
        return x.decode()
    return x.run() if isinstance(x, Deferred) else x


def input_of(x: Any) -> Any:
    """A Deferred's input, or x itself: of the same shape and dtype as the result."""
    return x.x if isinstance(x, Deferred) else x
