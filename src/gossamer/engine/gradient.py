"""Gradients that go from an epilogue to the product before it as int8 rows: in float32 they never reach memory.

A product reads the gradient of its result only quantised, once or twice with different factors, and summed by columns.
It says so in a `Request`, which lives on the autograd node of its result. An epilogue (norm, activation, dropout) that
reads that result makes just these rows in its backward (ops/norm_act_backward_rows.py) and returns a `QGradient`: a
tensor that carries codes and dequantises itself as soon as anyone but that product touches it. Tensor hooks,
`retain_grad`, anomaly mode and a second reader of the result thus see the gradient, rounded to int8 without bias.

If the product behind that epilogue is one in float32, as before a loss, it is made along with it, and the epilogue's
result is neither written nor saved: backward recomputes it from the input (ops/epilogue_products_backward.py).
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from .. import ops
from ..ops._structure import tensors_of, with_tensors, without_tensors
from ..ops.norm_act import Epilogue, EpilogueGradient, Over
from ..ops.norm_act_backward_rows import COLUMNWISE, READERS
from ..ops.quantize_rows import QRows
from ..ops.save_epilogue import Packing
from ..ops.saved_epilogue import is_smooth
from .noise import refuse_twice
from .virtual import Virtual


class QTensor(Virtual):
    """A float32 matrix that is there as int8 rows: rows of x * factor, for one or several factors by name."""

    rows: dict[Hashable, QRows] | None
    factors: Mapping[Hashable, Tensor | None]

    @staticmethod
    def __new__(
        cls: Any, rows: dict[Hashable, QRows], factors: Mapping[Hashable, Tensor | None], *rest: Any
    ) -> QTensor:
        codes = next(iter(rows.values())).codes
        return Tensor._make_wrapper_subclass(cls, codes.shape, dtype=torch.float32, device=codes.device)

    def __init__(self, rows: dict[Hashable, QRows], factors: Mapping[Hashable, Tensor | None], *rest: Any) -> None:
        self.rows, self.factors = rows, factors
        self._float: Tensor | None = None

    def dequantised(self) -> Tensor:
        """The matrix in float32."""
        if self._float is not None:
            return self._float
        assert self.rows is not None
        name, (codes, scale) = next(iter(self.rows.items()))
        whole, factor = ops.dequantize_rows(codes, scale), self.factors[name]
        return whole if factor is None else whole / factor

    numbers = dequantised

    def own_numbers(self) -> Tensor:
        """The codes are void from then on."""
        self._float, self.rows = self.dequantised(), None
        return self._float


class QGradient(QTensor):
    """A gradient as its product asked for it: rows by each factor, column sums, and products by head if asked for."""

    def __init__(
        self, rows: dict[Hashable, QRows], factors: Mapping[Hashable, Tensor | None], request: Request, sums: Tensor,
        dots: Tensor | None,
    ) -> None:  # fmt: skip
        super().__init__(rows, factors)
        self.request, self.sums, self.dots = request, sums, dots


class Request:
    """What a product will read of the gradient of its result."""

    def __init__(self) -> None:
        self.factors: dict[Hashable, Tensor | None] = {}
        self.seeds: dict[Hashable, int | None] = {}
        self._heads = 0
        self._origin: Tensor | None = None
        self._watch: Any = None

    def ask_for(self, factors: Mapping[Hashable, Tensor | None], seeds: Any, watch: Any = None) -> None:
        """Rows multiplied by each factor; `watch` measures their rounding (int8/precision.py)."""
        if len(factors) <= READERS:
            self.factors = dict(factors)
            self.seeds = {name: seeds.of_gradient() for name in factors}
            self._watch = watch

    def ask_for_dots(self, heads: int, origin: Tensor | None) -> None:
        """By head the products of the first rows with the result itself, less `origin`."""
        self._heads, self._origin = heads, origin

    def fill(self, dout: Tensor, x: Tensor, epilogue: Epilogue) -> EpilogueGradient:
        """An epilogue's backward, with the statistics that forward used."""
        stochastic = None not in self.seeds.values()
        seeds, factors = [seed or 0 for seed in self.seeds.values()], list(self.factors.values())
        rounding = (factors, seeds, stochastic, self._heads, self._origin)
        made = ops.norm_act_backward_rows(dout, x, epilogue, *rounding)
        rows = dict(zip(self.factors, made.rows, strict=True))
        if self._watch is not None:
            exact = ops.norm_act_backward(dout, x, epilogue).dx
            for name, factor in self.factors.items():
                self._watch.see("dout", exact, rows[name], factor)
        dx = QGradient(rows, self.factors, self, made.sums, made.dots if self._heads else None)
        return EpilogueGradient(dx, made.dweight, made.dbias)

    def quantise(self, dx: Tensor, sums: Tensor) -> Tensor:
        """A gradient that is there in float32, with its sums by column, as it is asked for; dx itself if that is with
        products by head.
        """
        if self._heads:
            return dx
        rows = {name: ops.quantize_times(dx, factor, self.seeds[name]) for name, factor in self.factors.items()}
        if self._watch is not None:
            for name, factor in self.factors.items():
                self._watch.see("dout", dx, rows[name], factor)
        return QGradient(rows, self.factors, self, sums, None)

    def answer(self, dout: Tensor) -> QGradient | None:
        """The gradient if it came as this request asks; None if dout is any other tensor."""
        return dout if isinstance(dout, QGradient) and dout.request is self and dout.rows is not None else None


def request_of(x: Tensor) -> Request | None:
    """What the maker of x asks of its gradient; None if nothing, if something else stands between, or if x was changed.

    Without a gradient x may have been changed in place: it is then no longer the result that attention asks about.
    """
    request = getattr(x.grad_fn, "request", None)
    return request if request is not None and request.factors and x._version == 0 else None


class _Placeholder(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.new_empty(()).expand(x.shape)

    @staticmethod
    def backward(ctx: Any, dout: Tensor) -> Tensor:
        return dout


def without_memory(x: Tensor) -> Tensor:
    """x's place in the graph, without its numbers: what has been read need not live until the graph knows of it."""
    return _Placeholder.apply(x)


def whole(dout: Tensor) -> Tensor:
    """A gradient in float32, contiguous."""
    return dout.numbers() if isinstance(dout, Virtual) else dout.contiguous()


class _Epilogue(torch.autograd.Function):
    """ops.norm_act whose gradient answers a request."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor | None, bias: Tensor | None, epilogue: Epilogue, asked: Request
    ) -> tuple[Tensor, ...]:
        out, mean, var = ops.norm_act(x, epilogue)
        used = epilogue.using(mean, var)
        ctx.asked, ctx.epilogue = asked, without_tensors(used)
        ctx.save_for_backward(x, *tensors_of(used))
        ctx.mark_non_differentiable(mean, var)
        return out, mean, var

    @staticmethod
    def backward(ctx: Any, dout: Tensor, *unused: Tensor) -> tuple[Tensor | None, ...]:
        x, *tensors = ctx.saved_tensors
        _, needs_weight, needs_bias, _, _ = ctx.needs_input_grad
        with torch.no_grad():
            found = ctx.asked.fill(whole(dout), x, with_tensors(ctx.epilogue, tensors))
        own = (found.dweight if needs_weight else None, found.dbias if needs_bias else None)
        return refuse_twice(found.dx, *own, None, None)


class _EpilogueProducts(torch.autograd.Function):
    """Products of the result of ops.norm_act, whose gradient answers a request."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor | None, bias: Tensor | None, epilogue: Epilogue, asked: Request,
        *params: Tensor | None,
    ) -> tuple[Tensor, ...]:  # fmt: skip
        weights, biases = list(params[::2]), list(params[1::2])
        made = ops.save_epilogue(x, epilogue, Packing(), weights, biases)
        used = epilogue.using(made.mean, made.var)
        ctx.asked, ctx.epilogue, ctx.count = asked, without_tensors(used), len(weights)
        ctx.save_for_backward(*weights, x, *tensors_of(used))
        ctx.mark_non_differentiable(made.mean, made.var)
        return (*made.outs, made.mean, made.var)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        saved = ctx.saved_tensors  # once: checkpointing unpacks a tensor only once
        weights, (x, *tensors) = list(saved[: ctx.count]), saved[ctx.count :]
        _, needs_weight, needs_bias, _, _, *needs = ctx.needs_input_grad
        epilogue = with_tensors(ctx.epilogue, tensors)
        params: list[Tensor | None] = []
        with torch.no_grad():
            douts = [whole(dout) for dout in grads[: ctx.count]]
            dweights, dz = ops.epilogue_products_backward(douts, weights, x, epilogue)
            for dout, dweight, needs_w, needs_b in zip(douts, dweights, needs[::2], needs[1::2], strict=True):
                params += [dweight if needs_w else None, ops.column_sums(dout) if needs_b else None]
            found = ctx.asked.fill(dz, x, epilogue.norm)
        own = (found.dweight if needs_weight else None, found.dbias if needs_bias else None)
        return refuse_twice(found.dx, *own, None, None, *params)


def answers(over: int) -> bool:
    """Whether the backward of such a norm can answer a request: one that saves its input, with statistics by column."""
    return over in COLUMNWISE and over != Over.NOTHING


def multiplies(act: int) -> bool:
    """Whether the products of such an epilogue can be made along with it."""
    return not is_smooth(act)


def norm_act(x: Tensor, epilogue: Epilogue, asked: Request) -> tuple[Tensor, ...]:
    """ops.norm_act of a result whose maker asks for its gradient in int8 rows."""
    return _Epilogue.apply(x, epilogue.weight, epilogue.bias, epilogue, asked)


def products(
    x: Tensor, epilogue: Epilogue, asked: Request, weights: Sequence[Tensor], biases: Sequence[Tensor | None]
) -> tuple[Tensor, ...]:
    """out W_k^T + b_k for each k, out the result of ops.norm_act, then its mean and variance."""
    params = [tensor for pair in zip(weights, biases, strict=True) for tensor in pair]
    return _EpilogueProducts.apply(x, epilogue.weight, epilogue.bias, epilogue, asked, *params)
