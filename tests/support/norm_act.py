"""Arguments of norm_act, and its gradients."""

from __future__ import annotations

import torch

from gossamer.ops import norm_act
from gossamer.ops.activation import ACTIVATIONS
from gossamer.ops.norm_act import Over

from .norm_bounds import Settings
from .tensors import rand

OVER = list(Over)
SLOPES = (0.0, 0.0, 0.2, 1.3, 0.0)  # of each activation


def act(name: str, p: float = 0.0, over: int = Over.COLUMNS, eps: float = 1e-5, slope: float | None = None) -> Settings:
    number = ACTIVATIONS.index(name)
    return Settings(int(over), eps, number, SLOPES[number] if slope is None else slope, p, 11)


def inputs(rows, columns, over, dtype=torch.float32, affine=True):
    """x, weight, bias, mean and var, as `over` takes them."""
    x, like = rand(rows, columns, dtype=dtype), {"dtype": dtype}
    weight, bias = (rand(columns, seed=s, **like) for s in (1, 2)) if affine and over else (None, None)
    fixed = (rand(columns, seed=3, **like), rand(columns, seed=4, **like).abs() + 0.1)
    return [x, weight, bias, *(fixed if over == Over.FIXED else (None, None))]


def differentiated(args, s, dout, op=norm_act):
    """The three results, and the gradients of x, weight and bias (zeros for what is not given)."""
    leaves = [None if a is None else a.detach().clone().requires_grad_() for a in args[:3]]
    out, mean, var = op(*leaves, *args[3:], *s)
    given = [leaf for leaf in leaves if leaf is not None]
    grads = iter(torch.autograd.grad(out, given, dout))
    return (out.detach(), mean, var), [None if leaf is None else next(grads) for leaf in leaves]
