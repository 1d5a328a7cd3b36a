"""Seeds of rounding noise, and errors for what few bits cannot do: NaN in anomaly mode, second derivatives."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from ..ops.random import key_of, state_and
from ..state.location import layer_here
from ..state.plain import whole

LATELY = 64
"""How many recent calls are remembered."""


class Stream:
    """Seeds that follow torch's default generator without taking anything from it.

    seed = hash(generator state, 64 elements of x, how many recent calls had the same two)

    `torch.manual_seed` and restored states thus govern the noise, yet nothing is drawn: dropout masks equal those of a
    float32 run. Under activation checkpointing only the recomputation saves codes, hence only it adds noise. The count
    gives a repeated step new noise; `lighten_` and `gs.train` reset it, so that runs repeat.
    """

    def __init__(self) -> None:
        self._asked: OrderedDict[bytes, int] = OrderedDict()

    def reset(self) -> None:
        self._asked.clear()

    def state(self) -> list[tuple[str, int]]:
        """Recent calls as plain values, for a checkpoint."""
        return [(asked.hex(), count) for asked, count in self._asked.items()]

    def restore(self, state: Iterable[Sequence[Any]]) -> None:
        found = OrderedDict((bytes.fromhex(asked), whole(count)) for asked, count in state)
        if len(found) > LATELY:
            raise ValueError(f"at most {LATELY} recent seeds must be named (got {len(found)})")
        self._asked = found

    def seed(self, x: Tensor | None) -> int:
        asked = hashlib.blake2b(state_and(x), digest_size=8).digest()
        count = self._asked.pop(asked, 0)
        self._asked[asked] = count + 1
        if len(self._asked) > LATELY:
            self._asked.popitem(last=False)
        made = hashlib.blake2b(asked + count.to_bytes(8, "little"), digest_size=8).digest()
        return int.from_bytes(made, "little", signed=True)


stream = Stream()


def draw_seed(x: Tensor | None = None) -> int:
    """A seed for the noise of rounding x."""
    return stream.seed(x)


def seed_beside(seed: int) -> int:
    """Another seed, a function of this one: noise beside a dropout takes nothing more from the generator, so that the
    masks of later layers are those of a run without noise.
    """
    low, high = key_of(~seed)
    word = low | high << 32
    return word - 2**64 if word >= 2**63 else word


def refuse_nan(zero: Tensor) -> None:
    """In torch's anomaly mode: an error if a block's metadata shows NaN or infinity. Else the gradient shows it."""
    if torch.is_anomaly_enabled() and zero.numel() and bool(zero.isnan().any()):
        raise ValueError(
            f"{layer_here()}, what is saved for backward holds NaN or infinity; look for the step that diverged, or "
            "clean the input with torch.nan_to_num"
        )


class _Refusal(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *grads: Tensor) -> tuple[Tensor, ...]:
        return tuple(grad.view_as(grad) for grad in grads)

    @staticmethod
    def backward(ctx: Any, *unused: Tensor) -> Any:
        raise RuntimeError(
            "few bits allow one derivative: what backward decodes or rounds is not a function of the input. For second "
            "derivatives use activations=gs.Keep() and compute=gs.Float32()"
        )


def refuse_twice(*grads: Tensor | None) -> tuple[Tensor | None, ...]:
    """The results of a backward, such that differentiating them is an error that says why."""
    if not torch.is_grad_enabled():
        return grads
    there = [grad for grad in grads if grad is not None]
    marked = iter(_Refusal.apply(*(grad.detach().requires_grad_() for grad in there)))
    return tuple(None if grad is None else next(marked) for grad in grads)
