"""Random words as a function of (seed, element index).

    (a, b) = splitmix64(seed), its low and high 32 bits
    x = low(index) + a;         x ^= x >> 16;   x *= 0x7feb352d
    x ^= high(index) * 0x9e3779b9 + b;          x ^= x >> 15;   x *= 0x846ca68b;   x ^= x >> 16     (mod 2^32)

For one seed the map is a bijection of the low 32 bits, so words are uniform. An element's word depends on nothing else:
not on threads, device or order, and masks can be recomputed instead of being stored. C++: csrc/random-inl.h.
"""

from __future__ import annotations

import hashlib

import torch
from torch import Tensor

from . import _checks
from ._library import define

_WORD = 0xFFFFFFFF


def splitmix64(x: int) -> int:
    """A word of 64 bits in which every bit depends on every bit of x."""
    mask = 2**64 - 1
    z = (x + 0x9E3779B97F4A7C15) & mask
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & mask
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
    return z ^ (z >> 31)


def key_of(seed: int) -> tuple[int, int]:
    """The two words that stand for a seed."""
    z = splitmix64(seed)
    return z & _WORD, z >> 32


def seed_from(x: Tensor | None) -> int:
    """hash(state of torch's default generator, 64 elements of x): a seed that takes nothing from the generator."""
    return int.from_bytes(hashlib.blake2b(state_and(x), digest_size=8).digest(), "little", signed=True)


def state_and(x: Tensor | None) -> bytes:
    """The generator's state, and a few dozen numbers from all over x."""
    return torch.get_rng_state().numpy().tobytes() + (b"" if x is None else _sample(x))


def _sample(x: Tensor) -> bytes:
    rows = x.detach().reshape(-1) if x.is_contiguous() else x.detach().flatten(0, -2)[:, 0]
    picked = rows[:: max(1, rows.numel() // 64)]
    return picked.to("cpu", torch.float32).numpy().tobytes()


def words(seed: int, index: Tensor) -> Tensor:
    """Random words, [0, 2^32) in int64, of the elements `index` (int64)."""
    a, b = key_of(seed)
    high = index >> 32
    x = ((index & _WORD) + a) & _WORD
    x = x ^ (x >> 16)
    x = (x * 0x7FEB352D) & _WORD
    x = x ^ ((high * 0x9E3779B9 + b) & _WORD)
    x = x ^ (x >> 15)
    x = (x * 0x846CA68B) & _WORD
    return x ^ (x >> 16)


def unit(seed: int, index: Tensor) -> Tensor:
    """Uniform float32 in [0, 1), 24 bits of each word."""
    return (words(seed, index) >> 8).to(torch.float32) * 2.0**-24


def floor_plus(t: Tensor, seed: int, index: Tensor) -> Tensor:
    """floor(t + u) with u uniform in [0, 1), and both as fractions of 2^15: unbiased up to 2^-16.

    An element has half a word: elements 32 k + l and 32 k + 16 + l, l below 16, share word 16 k + l.
    """
    word = words(seed, (index >> 5 << 4) | (index & 15))
    half = torch.where((index & 16) == 0, word & 0x7FFF, word >> 17)
    return (((t * 2.0**15).round().long() + half) >> 15).to(t.dtype)


def _check(seed: int, offset: int, numel: int, like: Tensor) -> None:
    _checks.at_least("offset", offset, 0)
    _checks.at_least("numel", numel, 0)
    if offset + numel >= 2**63:
        raise ValueError(f"`offset` + `numel` must stay below 2^63 (got {offset} + {numel})")


def _reference(seed: int, offset: int, numel: int, like: Tensor) -> Tensor:
    index = torch.arange(offset, offset + numel, device=like.device)
    x = words(seed, index)
    return torch.where(x >= 2**31, x - 2**32, x).to(torch.int32)


def _fake(seed: int, offset: int, numel: int, like: Tensor) -> Tensor:
    return like.new_empty(numel, dtype=torch.int32)


random_bits_op = define(
    "random_bits(int seed, int offset, int numel, Tensor like) -> Tensor",
    check=_check,
    reference=_reference,
    fake=_fake,
)


def random_bits(seed: int, numel: int, offset: int = 0, device: torch.device | str = "cpu") -> Tensor:
    """The words of elements offset .. offset + numel, as int32 bit patterns."""
    return random_bits_op(seed, offset, numel, torch.empty(0, device=device))
