"""The global random generators: torch's, numpy's, Python's, and the stream of rounding noise."""

from __future__ import annotations

import random
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..engine.noise import stream


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
    python, numpy = state.others["python"], state.others["numpy"]
    torch.set_rng_state(state.torch)
    stream.restore(state.others.get("noise", []))
    random.setstate((python["version"], tuple(python["words"]), python["gauss"]))
    keys = np.array(numpy["keys"], np.uint32)
    np.random.set_state((numpy["kind"], keys, numpy["position"], numpy["has_gauss"], numpy["cached"]))
