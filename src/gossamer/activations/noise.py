"""Where the noise of rounding comes from, and what refuses to be differentiated twice."""

from __future__ import annotations

import hashlib
from typing import Any

import torch
from torch import Tensor

from ..ops.random import key_of


class Stream:
    """Seeds that follow torch's default generator without taking anything from it.

    A seed is a hash of the generator's state and of how many seeds were made in that state. `torch.manual_seed` and
    restored states thus govern the noise, yet dropout masks are those of a run without noise, and a checkpointed
    function draws the same masks in its second run, which alone makes noise. Where nothing else draws, the state stays
    as it is and only the count makes seeds differ: it belongs to what a resumed run restores.
    """

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self.state, self.count = b"", 0

    def seed(self) -> int:
        state = hashlib.blake2b(torch.get_rng_state().numpy().tobytes(), digest_size=8).digest()
        self.count = self.count + 1 if state == self.state else 0
        self.state = state
        made = hashlib.blake2b(state + self.count.to_bytes(8, "little"), digest_size=8).digest()
        return int.from_bytes(made, "little", signed=True)


stream = Stream()


def draw_seed() -> int:
    """A seed for the noise of one rounding."""
    return stream.seed()


def seed_beside(seed: int) -> int:
    """Another seed, a function of this one: noise beside a dropout takes nothing more from the generator, so that the
    masks of later layers are those of a run without noise.
    """
    low, high = key_of(~seed)
    word = low | high << 32
    return word - 2**64 if word >= 2**63 else word


class _Refusal(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *grads: Tensor) -> tuple[Tensor, ...]:
        return tuple(grad.view_as(grad) for grad in grads)

    @staticmethod
    def backward(ctx: Any, *unused: Tensor) -> Any:
        raise RuntimeError(
            "activations kept in few bits allow one derivative: what backward decodes is not a function of the input. "
            "For second derivatives keep them whole, with activations=gs.Keep()"
        )


def refuse_twice(*grads: Tensor | None) -> tuple[Tensor | None, ...]:
    """The results of a backward, such that differentiating them is an error that says why."""
    if not torch.is_grad_enabled():
        return grads
    there = [grad for grad in grads if grad is not None]
    marked = iter(_Refusal.apply(*(grad.detach().requires_grad_() for grad in there)))
    return tuple(None if grad is None else next(marked) for grad in grads)
