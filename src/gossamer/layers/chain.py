"""norm, activation, dropout: the chain between two convolutions, in as few memory passes as the mathematics allows.

`run(x, norm, act, drop)` computes drop(act(norm(x))) as one fused op (ops/norm_act.py, or ops.relu_dropout where there
is no norm) when all three are kinds it knows and nobody has hooked them; otherwise it calls the modules one by one.
The converted modules call it with themselves alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch_geometric import nn as pyg

from .. import ops
from ..activations import chain as keeping
from ..activations.plan import Plan
from ..compute import box as boxes
from ..compute.entry import Entry
from ..compute.plan import LEAST as LEAST_INT8
from ..compute.plan import Int8, worth
from ..ops.activation import ACTIVATIONS
from ..ops.norm_act import Over
from . import rules


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


def act_of(module: nn.Module | None) -> Act | None:
    """The activation of a module, None if it is none that fused ops know."""
    if module is None or type(module) is nn.Identity:
        return Act("identity")
    if isinstance(module, nn.ReLU):
        return Act("relu") if rules.plainly(module, nn.ReLU) else None
    if isinstance(module, nn.LeakyReLU):
        return Act("leaky_relu", module.negative_slope) if rules.plainly(module, nn.LeakyReLU) else None
    if isinstance(module, nn.ELU):
        return Act("elu", module.alpha) if rules.plainly(module, nn.ELU) else None
    return Act("gelu") if rules.plainly(module, nn.GELU) and module.approximate == "none" else None


def norm_of(module: nn.Module | None, x: Tensor) -> Norm | None:
    """The normalisation that a module would apply to x, None if it is none that fused ops know."""
    if module is None or type(module) is nn.Identity:
        return Norm(Over.NOTHING, 0.0, None, None)
    if not rules.plainly(module, pyg.BatchNorm, nn.BatchNorm1d, nn.LayerNorm, pyg.LayerNorm):
        return None
    if isinstance(module, pyg.BatchNorm):
        return norm_of(module.module, x)
    if isinstance(module, nn.BatchNorm1d) and x.size(1) == module.num_features:
        if module.training or module.running_mean is None:
            return Norm(Over.COLUMNS, module.eps, module.weight, module.bias) if x.size(0) > 1 else None
        return Norm(Over.FIXED, module.eps, module.weight, module.bias, module.running_mean, module.running_var)
    if isinstance(module, nn.LayerNorm) and module.normalized_shape == (x.size(1),):
        return Norm(Over.ROWS, module.eps, module.weight, module.bias)
    if isinstance(module, pyg.LayerNorm) and x.size(1) == module.in_channels:
        over = Over.ALL if module.mode == "graph" else Over.ROWS
        return Norm(over, module.eps, module.weight, module.bias)
    return None


def takes(x: Tensor, plan: Plan | None, how: Int8 | None = None) -> bool:
    """Whether a fused op on x is worth its call: it saves memory passes, or what is kept of x is to be compressed.

    Where products are in int8, ours are used from few elements on: torch's norms depend on the number of threads.
    """
    if how is not None and rules.dense(x, LEAST_INT8):
        return True
    if plan is not None and plan.worth(x) and x.dim() == 2 and x.dtype in (torch.float32, torch.float64):
        return True
    return rules.dense(x)


def run(
    x: Tensor,
    norm: nn.Module | None = None,
    act: nn.Module | None = None,
    drop: nn.Dropout | float = 0.0,
    batch: Batch = None,
    plan: Plan | None = None,
    how: Int8 | None = None,
) -> Tensor:
    """drop(act(norm(x))), fused where that is possible and pays.

    `drop` is a module, or a probability that holds now; `batch` is passed to norms that ask which rows are one graph.
    """
    known = _known(x, norm, act, drop, batch, plan, how)
    if known is not None:
        return apply(x, *known, norm, plan)
    if norm is not None:
        x = norm(x) if batch is None else norm(x, *batch)
    x = x if act is None else act(x)
    return drop(x) if isinstance(drop, nn.Module) else dropout(x, drop, plan)


def dropout(x: Tensor, p: float, plan: Plan | None = None) -> Tensor:
    """Our dropout where it pays: from far fewer elements on than other ops, and for any number of dimensions."""
    few_bits = plan is not None and plan.worth(x) and x.dtype in (torch.float32, torch.float64)
    if 0 < p <= 1 and (few_bits or rules.dense(x, rules.LEAST_DROPOUT, any_shape=True)):
        return _drop(x, p, rules.draw_seed(), plan)
    return nn.functional.dropout(x, p) if p > 0 else x


def _drop(x: Tensor, p: float, seed: int, plan: Plan | None) -> Tensor:
    if plan is None or not plan.worth(x):
        return ops.dropout(x, p, seed)
    return keeping.dropout(x, p, seed) if plan.shared else ops.dropout_keeping_mask(x, p, seed)[0]


def _known(
    x: Tensor, norm: nn.Module | None, act: nn.Module | None, drop: nn.Dropout | float, batch: Batch,
    plan: Plan | None, how: Int8 | None,
) -> tuple[Norm, Act, float] | None:  # fmt: skip
    """The chain as fused ops know it, None if one of its modules is to be called by itself."""
    if (batch is not None and batch[0] is not None) or not takes(x, plan, how):
        return None
    if rules.hooked(norm, act, drop, getattr(norm, "module", None)):
        return None
    if isinstance(drop, nn.Module) and not rules.plainly(drop, nn.Dropout):
        return None
    first = next((m for m in (norm, act, drop) if m is not None and type(m) is not nn.Identity), None)
    if getattr(first, "inplace", False):  # the caller may count on its x being changed
        return None
    p = drop if isinstance(drop, (int, float)) else drop.p if drop.training else 0.0
    known_norm, known_act = norm_of(norm, x), act_of(act)
    return None if known_norm is None or known_act is None else (known_norm, known_act, p)


def apply(
    x: Tensor, norm: Norm, act: Act, p: float, module: nn.Module | None = None, plan: Plan | None = None
) -> Tensor:
    """The fused op; `module` is the batch norm whose running statistics are to follow."""
    if plan is not None and plan.worth(x):
        return _apply_keeping(x, norm, act, p, module, plan)
    seed = rules.draw_seed() if p > 0 else 0
    if norm.over == Over.NOTHING and act.name == "relu":
        return ops.relu_dropout(x, p, seed)
    if norm.over == Over.NOTHING and act.name == "identity":
        return ops.dropout(x, p, seed) if p > 0 else x
    parameters = (norm.weight, norm.bias, norm.mean, norm.var)
    out, mean, var = ops.norm_act(x.contiguous(), *parameters, *_settings(norm, act, p, seed))
    _follow(norm, module, mean, var, x.size(0))
    return out


def _apply_keeping(x: Tensor, norm: Norm, act: Act, p: float, module: nn.Module | None, plan: Plan) -> Tensor:
    """The same, with what backward needs kept as the plan says."""
    if not plan.shared and (norm.over != Over.NOTHING) + (act.name != "identity") + (p > 0) > 1:
        x = apply(x, norm, IDENTITY, 0.0, module, plan) if norm.over != Over.NOTHING else x
        x = apply(x, NO_NORM, act, 0.0, None, plan) if act.name != "identity" else x
        return apply(x, NO_NORM, IDENTITY, p, None, plan)
    seed = rules.draw_seed() if p > 0 else 0
    if norm.over == Over.NOTHING and act.name == "relu":
        return keeping.relu_dropout(x, p, seed)
    if norm.over == Over.NOTHING and act.name == "identity":
        return _drop(x, p, seed, plan) if p > 0 else x
    parameters = (norm.weight, norm.bias, norm.mean, norm.var)
    out, mean, var = keeping.chain(x.contiguous(), *parameters, _settings(norm, act, p, seed), plan)
    _follow(norm, module, mean, var, x.size(0))
    return out


def _settings(norm: Norm, act: Act, p: float, seed: int) -> keeping.Settings:
    return keeping.Settings(int(norm.over), norm.eps, ACTIVATIONS.index(act.name), act.slope, p, seed)


class Pending:
    """A chain that waits for the product behind it: made together, its result never exists as a whole.

    It holds the only reference to its input, which is free once `products` or `run` has been called.
    """

    def __init__(
        self, x: Tensor, known: tuple[Norm, Act, float], module: nn.Module | None, plan: Plan | None, keeps: bool,
        box: boxes.Box | None = None,
    ) -> None:  # fmt: skip
        self._x: Tensor | None = x
        self._known, self._module, self._plan, self._keeps, self._box = known, module, plan, keeps, box

    @property
    def x(self) -> Tensor:
        """The chain's input; its result has the same shape and dtype."""
        assert self._x is not None, "the chain has run"
        return self._x

    def run(self) -> Tensor:
        if self._box is not None:
            box = self._box
            return self._through(lambda x, norm, settings: boxes.norm_act(x, norm, settings, box))[0]
        x, self._x = self.x, None
        return apply(x, *self._known, self._module, self._plan)

    @property
    def multiplies(self) -> bool:
        """Whether `products` may be called: their input is kept in few bits, or made again from the chain's."""
        return self._keeps or (self._box is not None and boxes.multiplies(ACTIVATIONS.index(self._known[1].name)))

    def products(self, weights: list[Tensor], biases: list[Tensor | None]) -> tuple[Tensor, ...]:
        """out W_k^T + b_k for each k, out the chain's result."""
        plan, box = self._plan, self._box
        if self._keeps and plan is not None:
            return self._through(
                lambda x, norm, settings: keeping.chain_products(*(x, *norm, settings, plan, weights, biases))
            )
        assert box is not None
        return self._through(lambda x, norm, settings: boxes.chain_products(x, norm, settings, box, weights, biases))

    def in_int8(self, how: Int8, consume: Callable[..., tuple[Tensor, ...]]) -> tuple[Tensor, ...]:
        """The results of consume(x, entry, norm), which takes the chain's result as int8 rows."""
        plan = self._plan if self._keeps else None
        return self._through(lambda x, norm, settings: consume(x, Entry(how, settings, plan, self._box), norm))

    def _through(self, consume: Callable[..., tuple[Tensor, ...]]) -> tuple[Tensor, ...]:
        (norm, act, p), x = self._known, self.x.contiguous()
        settings = _settings(norm, act, p, rules.draw_seed() if p > 0 else 0)
        *outs, mean, var = consume(x, (norm.weight, norm.bias, norm.mean, norm.var), settings)
        self._x = None
        _follow(norm, self._module, mean, var, x.size(0))
        return tuple(outs)


def pend(
    x: Tensor, norm: nn.Module | None, act: nn.Module | None, drop: nn.Dropout | float, batch: Batch,
    plan: Plan | None, how: Int8 | None = None, sole: bool = False,
) -> Pending | Tensor:  # fmt: skip
    """The chain, to be run with what follows it if its result need then not be kept, or made; else its result.

    `sole`: nobody else reads x, so that its gradient may go to its maker as int8 rows.
    """
    how = how if worth(x) else None
    known = _known(x, norm, act, drop, batch, plan, how)
    if known is None or (plan is None and how is None):
        return run(x, norm, act, drop, batch, plan, how)
    linear_given_bits = known[1].name in ("identity", "relu", "leaky_relu")
    keeps = plan is not None and plan.shared and plan.worth(x) and keeping.fits(x, plan) and linear_given_bits
    if not keeps and (how is None or (plan is not None and plan.worth(x)) or x.dtype != torch.float32):
        return run(x, norm, act, drop, batch, plan, how)
    boxed = sole and not keeps and boxes.takes(known[0].over)
    return Pending(x, known, norm, plan, keeps, boxes.box_of(x) if boxed else None)


def _follow(norm: Norm, module: nn.Module | None, mean: Tensor, var: Tensor, rows: int) -> None:
    if norm.over != Over.COLUMNS:
        return
    inner = module.module if isinstance(module, pyg.BatchNorm) else module
    if isinstance(inner, _BatchNorm) and inner.training:
        follow(inner, mean, var, rows)


@torch.no_grad()
def follow(norm: _BatchNorm, mean: Tensor, var: Tensor, rows: int) -> None:
    """Move the running statistics towards this batch's, as torch does: by `momentum`, or to the mean of all batches."""
    if norm.running_mean is None or norm.running_var is None or not norm.track_running_stats:
        return
    momentum = norm.momentum
    if norm.num_batches_tracked is not None:
        norm.num_batches_tracked.add_(1)
        momentum = 1.0 / float(norm.num_batches_tracked) if momentum is None else momentum
    norm.running_mean.lerp_(mean, momentum or 0.0)
    norm.running_var.lerp_(var * (rows / (rows - 1)), momentum or 0.0)
