"""Gradients that go from a chain to the product before it as int8 rows: in float32 they never reach memory.

A product reads the gradient of its result only rounded, once or twice with different factors, and summed by columns. So
it leaves a `Box` with its result. A chain of norm, activation and dropout that is the only reader of that result puts
just this into the box in its backward (ops/norm_act_backward_rows.py), and hands autograd a stand-in: one NaN,
expanded.

If the product behind that chain is one in float32, as before a loss, it is made along with the chain, whose result is
then neither written nor kept: backward makes it again from the chain's input (ops/chain_products_backward.py).

Only containers know that a chain is the only reader: they take the box along (layers/chain.py). Should the gradient
have met another one on its way nevertheless, the product finds something else than the stand-in and says so.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from .. import ops
from ..activations.noise import refuse_twice
from ..ops.kept_chain import is_smooth
from ..ops.norm_act import Over
from ..ops.norm_act_backward_rows import COLUMNWISE, READERS
from .rows import Rows, Seeds
from .watch import Watch

_boxes: WeakTensorKeyDictionary = WeakTensorKeyDictionary()


class Found(NamedTuple):
    """A gradient as it came: rows by each factor, sums of columns, and products by head if they were asked for."""

    rows: list[Rows]
    sums: Tensor
    dots: Tensor | None


class Box:
    """What a product will read of its gradient, and later just that."""

    def __init__(self) -> None:
        self.factors: list[Tensor | None] = []
        self.seeds: list[int | None] = []
        self._products: tuple[int, Tensor | None] = (0, None)
        self._watch: Watch | None = None
        self._found: Found | None = None
        self._stand_in: Tensor | None = None

    def ask_for(self, factors: Sequence[Tensor | None], seeds: Seeds, watch: Watch | None) -> None:
        """Said in forward: rows multiplied by each factor, and who measures their rounding."""
        if len(factors) <= READERS:
            self.factors, self.seeds = list(factors), [seeds.of_gradient() for _ in factors]
            self._watch = watch

    def ask_for_products(self, heads: int, origin: Tensor | None) -> None:
        """By head the products of the first rows with the result itself, less `origin`."""
        self._products = (heads, origin)

    def fill(self, gradient: Sequence[Any], settings: Sequence[Any]) -> tuple[Tensor, Tensor, Tensor]:
        """Run a chain's backward into the box: the stand-in, and the gradients of the norm's weight and bias."""
        stochastic = self.seeds[0] is not None
        seeds = [seed or 0 for seed in self.seeds]
        given = (*gradient, *settings, self.factors, seeds, stochastic, *self._products)
        flat, sums, dweight, dbias, dots = ops.norm_act_backward_rows(*given)
        found = [Rows(*flat[k : k + 2]) for k in range(0, len(flat), 2)]
        if self._watch is not None:
            dx = ops.OPS["norm_act_backward"](*gradient, *settings)[0]
            for rows, factor in zip(found, self.factors, strict=True):
                self._watch.see("dout", dx, rows, factor)
        return self.put(Found(found, sums, dots if self._products[0] else None)), dweight, dbias

    def put(self, found: Found) -> Tensor:
        """The stand-in for autograd."""
        value = 0.0 if torch.is_anomaly_enabled() else torch.nan  # anomaly mode would take NaN for a divergence
        self._found, self._stand_in = found, stand_in(found.rows[0].codes, value)
        return self._stand_in

    def take(self, dout: Tensor) -> Found | None:
        """What was put in; None if nothing was, and dout is the gradient itself."""
        if self._found is None or self._stand_in is None:
            return None
        found, stand_in = self._found, self._stand_in
        self._found = self._stand_in = None
        if dout.data_ptr() != stand_in.data_ptr():
            raise RuntimeError(
                "the result of a layer inside a lightened container was used a second time, outside of it; "
                "register a forward hook on the layer instead of reaching into the container, or restore_ the model"
            )
        return found


def stand_in(rows: Tensor, value: float = torch.nan) -> Tensor:
    """One number, expanded: what autograd gets in place of a float tensor of that shape that is never made."""
    return torch.full((), value, device=rows.device).expand(rows.shape)


def leave_box(out: Tensor, box: Box) -> None:
    if box.factors and out.requires_grad:
        _boxes[out] = (box, out._version)


def drop_box(out: Any) -> Any:
    """For results that somebody listens to."""
    if isinstance(out, Tensor):
        _boxes.pop(out, None)
    return out


def box_of(x: Tensor) -> Box | None:
    box, version = _boxes.get(x, (None, None))
    return box if box is not None and version == x._version else None


class _Chain(torch.autograd.Function):
    """ops.norm_act whose gradient goes into a box."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Any, bias: Any, mean: Any, var: Any, box: Box, *settings: Any) -> Any:
        out, own_mean, own_var = ops.norm_act(x, weight, bias, mean, var, *settings)
        used = (own_mean, own_var) if mean is None else (mean, var)
        ctx.box, ctx.settings = box, settings
        ctx.save_for_backward(x, weight, bias, *used)
        ctx.mark_non_differentiable(own_mean, own_var)
        return out, own_mean, own_var

    @staticmethod
    def backward(ctx: Any, dout: Tensor, *unused: Tensor) -> tuple[Any, ...]:
        with torch.no_grad():
            dx, dweight, dbias = ctx.box.fill((dout.contiguous(), *ctx.saved_tensors), ctx.settings)
        needs = ctx.needs_input_grad
        own = (dweight if needs[1] else None, dbias if needs[2] else None)
        return dx, *own, None, None, None, *[None] * len(ctx.settings)


NO_CODES = (0, 1, True, None, None, 8)
"""Bits, block, metadata, levels, noise and slope bits of a chain that keeps marks alone."""
NO_POINTWISE = (0, 0.0, 0.0, 0)
"""Activation, slope, probability and seed of a norm alone."""


class _ChainProducts(torch.autograd.Function):
    """Products of the result of ops.norm_act, whose gradient goes into a box."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Any, bias: Any, mean: Any, var: Any, box: Box, settings: Any, *params: Any
    ) -> Any:
        weights, biases = list(params[::2]), list(params[1::2])
        outs, own_mean, own_var, *_ = ops.chain_keep(x, weight, bias, mean, var, *settings, *NO_CODES, weights, biases)
        used = (own_mean, own_var) if mean is None else (mean, var)
        ctx.box, ctx.settings, ctx.count = box, settings, len(weights)
        ctx.save_for_backward(*weights, x, weight, bias, *used)
        ctx.mark_non_differentiable(own_mean, own_var)
        return (*outs, own_mean, own_var)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
        saved = ctx.saved_tensors  # once: checkpointing unpacks a tensor only once
        weights, chain = saved[: ctx.count], saved[ctx.count :]
        needs, params = ctx.needs_input_grad, []
        with torch.no_grad():
            douts = [dout.contiguous() for dout in grads[: ctx.count]]
            dweights, dz = ops.chain_products_backward(douts, weights, *chain, *ctx.settings)
            for k, dout in enumerate(douts):
                dw, db = needs[7 + 2 * k : 9 + 2 * k]
                params += [dweights[k] if dw else None, ops.column_sums(dout) if db else None]
            dx, dweight, dbias = ctx.box.fill((dz, *chain), (*ctx.settings[:2], *NO_POINTWISE))
        own = (dweight if needs[1] else None, dbias if needs[2] else None)
        return refuse_twice(dx, *own, *[None] * 4, *params)


def takes(over: int) -> bool:
    """Whether the backward of such a norm can fill a box: one that keeps its input, with statistics by column."""
    return over in COLUMNWISE and over != Over.NOTHING


def norm_act(x: Tensor, norm: Sequence[Tensor | None], settings: Sequence[Any], box: Box) -> tuple[Tensor, ...]:
    """ops.norm_act, for a reader that is the only one of a result with a box."""
    return _Chain.apply(x, *norm, box, *settings)


def multiplies(act: int) -> bool:
    """Whether the products of such a chain can be made along with it."""
    return not is_smooth(act)


def chain_products(
    x: Tensor, norm: Sequence[Tensor | None], settings: Sequence[Any], box: Box, weights: Sequence[Tensor],
    biases: Sequence[Tensor | None],
) -> tuple[Tensor, ...]:  # fmt: skip
    """out W_k^T + b_k for each k, out the result of ops.norm_act, then its mean and variance."""
    params = [tensor for pair in zip(weights, biases, strict=True) for tensor in pair]
    return _ChainProducts.apply(x, *norm, box, settings, *params)
