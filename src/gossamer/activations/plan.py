"""What a recipe's `activations` asks of each kind of op.

rows     operands of products: their noise reaches weight gradients alone, so they may be projected
sums     neighbour sums of data that go into a product: four bits or more, as making them again would be exact
values   tensors that count element by element (normalised rows, attention): never projected
slopes   derivatives of smooth activations, whose noise travels down: four bits or more
sharp    what backward puts through something not linear (GATv2): eight bits or more
shared   chains keep one stash, SAGE one tensor, data is kept by reference; else every op its own, as published
"""

from __future__ import annotations

import dataclasses
import functools
from dataclasses import dataclass, field
from typing import Any, final

import torch
from torch import Tensor, nn

from .. import memory
from ..codecs import Blockwise, Codec, Projected, Uniform

MARK = "_gossamer_recipe"
"""Where `lighten_` writes a module's recipe."""
LEAST = 1024
"""Elements from which a tensor is worth a codec."""


WIDEST_PUBLISHED = 1024
"""Elements of the longest blocks of block-wise EXACT."""


@dataclass(frozen=True)
class Keep:
    """What backward needs is kept as it is."""


@final
@dataclass(frozen=True)
class Published:
    """Every op keeps its own operand by `codec`, as EXACT and block-wise EXACT have it: nothing is shared.

    Norms keep their input, not x-hat; SAGE keeps its rows and their sums; data is kept again by every layer that reads
    it; an activation and a dropout keep one bit each.
    """

    codec: Codec = field(default_factory=lambda: Projected(ratio=8, then=Uniform(bits=2, meta="bfloat16")))

    def __post_init__(self) -> None:
        if not isinstance(self.codec, Codec):
            raise ValueError(f"`codec` must be a codec such as gs.Blockwise() (got {self.codec!r})")


@dataclass(frozen=True)
class Plan:
    rows: Codec
    sums: Codec
    values: Codec
    slopes: int
    sharp: Codec
    shared: bool = True

    def worth(self, x: Tensor) -> bool:
        """Whether what is kept of x is to be compressed: there will be a backward, and x is not small."""
        return (
            torch.is_grad_enabled()
            and x.numel() >= LEAST
            and x.is_floating_point()
            and x.layout == torch.strided
            and not torch.compiler.is_compiling()
            and not torch.is_autocast_enabled(x.device.type)
            and not torch._C._are_functorch_transforms_active()
        )


def of(module: nn.Module) -> Plan | None:
    """The plan of a lightened module; None: what backward needs is kept as it is."""
    if torch.compiler.is_compiling():
        return None
    recipe = module.__dict__.get(MARK)
    return None if recipe is None else plan_of(recipe.activations)


def leave_room_for_loss(out: Any, plan: Plan | None) -> Any:
    """`out`, a model's result, after the pool made room for the loss, which takes torch's own memory.

    The logarithm of a softmax, its gradient and that of the result are each as large as the result.
    """
    if plan is not None and isinstance(out, Tensor) and out.requires_grad and plan.worth(out):
        memory.leave_room(3 * out.nbytes)
    return out


@functools.cache
def plan_of(setting: Any) -> Plan | None:
    if isinstance(setting, Keep):
        return None
    codec = setting.codec if isinstance(setting, Published) else setting
    values: Any = codec.then if isinstance(codec, Projected) else codec
    if isinstance(setting, Published) and isinstance(codec, Projected) and isinstance(values, Blockwise):
        values = dataclasses.replace(
            values, block=min(int(values.block * codec.ratio), WIDEST_PUBLISHED)
        )  # as many nodes
    bits = getattr(values, "bits", 8)
    sharp = dataclasses.replace(values, bits=8) if hasattr(values, "bits") else values
    sums = dataclasses.replace(values, bits=max(4, bits)) if hasattr(values, "bits") else values
    # ReLU's outputs are not symmetric: bins made for a normal distribution do not suit them.
    rows, sums = (dataclasses.replace(c, bins="uniform") if isinstance(c, Blockwise) else c for c in (codec, sums))
    return Plan(rows, sums, values, max(4, bits), sharp, not isinstance(setting, Published))
