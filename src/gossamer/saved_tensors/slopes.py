"""Elementwise functions y = f(x) that save their slope f'(x) instead of x or y.

    dx = dout d^        d = f'(x), saved in few bits

f' of a decoded x would be biased, because f' is not linear; a decoded f'(x) is not. The slope is taken by torch itself,
right after the forward, which costs two more passes over memory. A slope of two values (ReLU6, clamp, hard shrink)
takes one bit per element and is exact.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

ELEMENTWISE: frozenset[Callable[..., Any]] = frozenset(
    {
        functional.celu,
        functional.elu,
        functional.gelu,
        functional.hardshrink,
        functional.hardsigmoid,
        functional.hardswish,
        functional.hardtanh,
        functional.logsigmoid,
        functional.mish,
        functional.relu6,
        functional.selu,
        functional.silu,
        functional.softplus,
        functional.softshrink,
        functional.threshold,
        torch.abs,
        torch.celu,
        torch.clamp,
        torch.cos,
        torch.erf,
        torch.selu,
        torch.sigmoid,
        torch.sin,
        torch.tanh,
        torch.threshold,
        Tensor.abs,
        Tensor.clamp,
        Tensor.cos,
        Tensor.erf,
        Tensor.sigmoid,
        Tensor.sin,
        Tensor.tanh,
    }
)
"""Functions of one tensor whose slope is bounded, and which save that tensor or their result."""


class _Slope(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, function: Callable[[Tensor], Tensor]) -> Tensor:
        with torch.enable_grad():
            leaf = x.detach().requires_grad_()
            y = function(leaf)
        (slope,) = torch.autograd.grad(y, leaf, torch.ones_like(y))
        ctx.save_for_backward(slope)
        return y.detach()

    @staticmethod
    def backward(ctx: Any, dout: Tensor) -> tuple[Tensor, None]:
        (slope,) = ctx.saved_tensors
        return (dout * slope).to(slope.dtype), None


def operand(args: tuple[Any, ...], named: dict[str, Any]) -> Tensor | None:
    """The tensor that one of these functions is called with; None if it works in place or on several tensors."""
    x = args[0] if args else named.get("input")
    others = [*args[1:], *(value for name, value in named.items() if name != "input")]
    if not isinstance(x, Tensor) or any(isinstance(other, Tensor) or other is True for other in others):
        return None  # True: in place, the only switch these functions have
    return x


def apply(function: Callable[..., Any], x: Tensor, args: tuple[Any, ...], named: dict[str, Any]) -> Tensor:
    """function(*args, **named) whose gradient with respect to x needs the slope alone."""
    rest = {name: value for name, value in named.items() if name != "input"}
    result: Tensor = _Slope.apply(x, lambda leaf: function(leaf, *args[1:], **rest))
    return result
