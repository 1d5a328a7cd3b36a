"""Multiply first or aggregate first: A (X W) = (A X) W, and the sparse product is the dear one.

In training a sparse product of width w is paid once forward and, if a gradient flows through it, once backward:

    multiply first    out + out             backward always needs A^T dout
    aggregate first   in + (in if x needs a gradient)

Aggregate first wins in a first layer whose features are narrower than twice its output; on a tie multiply first, which
keeps x alone and not A X for backward.

Where activations are compressed, what is kept decides: x, whose codes serve several ops; of data, which lives anyway,
the codes of A X if they are no more than those of the result.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..activations.plan import Plan


def aggregate_first(x: Tensor, in_channels: int, out_channels: int, plan: Plan | None = None) -> bool:
    if plan is not None and plan.shared and plan.worth(x):
        return not x.requires_grad and in_channels <= out_channels
    if not torch.is_grad_enabled():
        return in_channels < out_channels
    return in_channels * (1 + int(x.requires_grad)) < 2 * out_channels
