"""Every codec in several settings, and a way to run it without native kernels."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import pytest
import torch

from gossamer.codecs import Blockwise, Codec, Principal, Product, Projected, RowInt8, Scalar, TwoLevel, Uniform
from gossamer.ops import OPS

BITS = (1, 2, 4, 8)

# A new codec gets a row here; test_contract.py fails until it has one.
SETTINGS: dict[str, list[Codec]] = {
    "Blockwise": [
        Blockwise(),
        *(Blockwise(bits, block=100) for bits in BITS),
        *(Blockwise(bits, block=64, meta="float32") for bits in BITS),
        Blockwise(bits=2, block=1),
        Blockwise(bits=1, block=7),
        Blockwise(bits=4, block=1000, meta="float32"),
        *(Blockwise(bits, block=60, bins="optimal") for bits in BITS),
        Blockwise(bits=2, block=256, meta="float32", bins="optimal"),
    ],
    "Principal": [
        Principal(),
        Principal(1, Scalar(8, per="tensor", zeros="fold")),
        Principal(2.5, Scalar(2, "optimal", refine=False)),
        Principal(3, Scalar(1)),
        Principal(ratio=2, then=Product(4, 16)),
    ],
    "Product": [Product(), Product(4, 16), Product(5, 7, "cosine"), Product(3, 2, seed=1)],
    "Projected": [
        Projected(),
        Projected(ratio=2.5, then=Blockwise(bits=4, block=50, bins="optimal")),
        Projected(ratio=3, then=RowInt8()),
        Projected(ratio=2, then=Uniform(bits=2, meta="bfloat16")),
    ],
    "RowInt8": [RowInt8()],
    "Scalar": [
        *map(Scalar, BITS),
        *(Scalar(bits, "log", zeros="fold") for bits in BITS[1:]),
        *(Scalar(bits, per="column", zeros="keep") for bits in BITS),
        *(Scalar(bits, "log", "column", "keep", refine=False) for bits in BITS[1:]),
        Scalar(4, per="tensor", zeros="fold", refine=False),
        *(Scalar(bits, "optimal") for bits in BITS),
        Scalar(2, "optimal", "column", "keep", refine=False),
    ],
    "TwoLevel": [TwoLevel(), TwoLevel(Product(4, 16), Scalar(1, per="tensor"), "hotness")],
    "Uniform": [*map(Uniform, BITS), *(Uniform(bits, meta="bfloat16") for bits in (2, 8))],
}


@pytest.fixture
def settings() -> dict[str, list[Codec]]:
    return SETTINGS


ALL = [codec for codecs in SETTINGS.values() for codec in codecs]


@pytest.fixture(params=[codec for codec in ALL if hasattr(codec, "decode_rows")], ids=repr)
def row_codec(request: pytest.FixtureRequest) -> Codec:
    """A codec that can decode single rows."""
    return request.param


FITTED = [codec for codec in ALL if isinstance(codec, (Scalar, Product, Principal, TwoLevel))]


@pytest.fixture(params=FITTED, ids=repr)
def fitted_codec(request: pytest.FixtureRequest) -> Codec:
    """A codec of features: fitted to its data, refined by chunks, and rounding to nearest whatever the seed."""
    return request.param


ROUNDING = [codec for codec in ALL if not isinstance(codec, Projected) and codec not in FITTED]


@pytest.fixture(params=ROUNDING, ids=repr)
def rounding_codec(request: pytest.FixtureRequest) -> Codec:
    """A codec that rounds each number to one of its two neighbours, at random if it is given a seed.

    Projection mixes numbers, without any bound.
    """
    return request.param


@pytest.fixture(params=[codec for codec in ROUNDING if getattr(codec, "block", None) != 1], ids=repr)
def coarse_codec(request: pytest.FixtureRequest) -> Codec:
    """A codec whose numbers share levels; a block of one number has a level for it alone."""
    return request.param


@pytest.fixture(params=ALL, ids=repr)
def codec(request: pytest.FixtureRequest) -> Codec:
    return request.param


@pytest.fixture
def references(monkeypatch: pytest.MonkeyPatch) -> Callable[[], contextlib.AbstractContextManager[list[str]]]:
    """A context manager that runs every op by its PyTorch reference and lists the names of those called."""

    @contextlib.contextmanager
    def run_references():
        called: list[str] = []

        def call(op, *args):
            called.append(op.name)
            op.check(*args)
            return op.reference(*args)

        with monkeypatch.context() as patch:
            patch.setattr(type(OPS["pack"]), "__call__", call)
            yield called

    return run_references


@pytest.fixture
def sample() -> Callable[..., torch.Tensor]:
    """Normal numbers, the same for the same shape."""
    return lambda *shape: torch.randn(shape, generator=torch.Generator().manual_seed(len(shape)))
