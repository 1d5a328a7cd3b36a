"""The global random generators: torch's, numpy's, Python's, and the stream of rounding noise."""

from __future__ import annotations

import random
import struct
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..engine.noise import Stream, stream
from ..state.plain import real, whole

MT_WORDS = 624
"""Of the state of a Mersenne Twister, which torch, numpy and Python all draw from."""


class RandomState(NamedTuple):
    """The state of all: a tensor, and what goes to JSON exactly."""

    torch: Tensor
    others: dict[str, Any]


def seed_all(seed: int) -> None:
    if not isinstance(seed, int) or not 0 <= seed < 2**63:
        raise ValueError(f"`seed` must be a whole number in 0 .. 2**63 - 1 (got {seed!r})")
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed % 2**32)  # numpy takes 32 bits
    stream.reset()


def capture() -> RandomState:
    version, words, gauss = random.getstate()
    kind, keys, position, has_gauss, cached = np.random.get_state()
    python = {"version": version, "words": list(words), "gauss": gauss}
    numpy = {
        "kind": kind,
        "keys": np.asarray(keys).tolist(),
        "position": position,
        "has_gauss": has_gauss,
        "cached": cached,
    }
    return RandomState(torch.get_rng_state(), {"python": python, "numpy": numpy, "noise": stream.state()})


def restore(state: RandomState) -> None:
    torch.set_rng_state(state.torch)
    stream.restore(state.others.get("noise", []))
    random.setstate(_python(state))
    np.random.set_state(_numpy(state))


def check(state: RandomState) -> None:
    """Raise for a state that no generator was ever in. The generators believe what they are told: numpy's and torch's
    read far outside of their state if the position in it is a large number."""
    torch.Generator().set_state(state.torch)
    _check_position(state.torch)
    random.Random().setstate(_python(state))
    np.random.RandomState().set_state(_numpy(state))
    Stream().restore(state.others.get("noise", []))


def _check_position(state: Tensor) -> None:
    """torch's state begins with the seed, the number of words left, whether it was seeded, and the next word."""
    _, left, _, following = struct.unpack_from("<QiiQ", state.numpy().tobytes())
    if left != 1 and left + following != MT_WORDS + 1:
        raise ValueError(f"torch's generator has {left} words left and stands at word {following}")


def _python(state: RandomState) -> tuple[Any, ...]:
    python = state.others["python"]
    gauss = None if python["gauss"] is None else real(python["gauss"])
    return whole(python["version"], 3, 3), tuple(whole(word, high=2**32 - 1) for word in python["words"]), gauss


def _numpy(state: RandomState) -> tuple[Any, ...]:
    numpy = state.others["numpy"]
    keys = np.array([whole(key, high=2**32 - 1) for key in numpy["keys"]], np.uint32)
    position, has_gauss = whole(numpy["position"], high=MT_WORDS), whole(numpy["has_gauss"], high=1)
    return numpy["kind"], keys, position, has_gauss, real(numpy["cached"])
