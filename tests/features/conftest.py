"""Codecs that a feature store takes, and some features."""

from __future__ import annotations

import pathlib

import pytest
import torch
from torch import Tensor

from gossamer.codecs import Codec, Principal, Product, Scalar, Uniform

CODECS: list[Codec] = [
    *(Uniform(bits) for bits in (1, 4)),
    Uniform(2, meta="bfloat16"),
    *(Scalar(bits) for bits in (1, 2, 8)),
    Scalar(4, scale="log", per="column"),
    Scalar(2, refine=False),
    Product(width=8, length=16),
    Product(width=5, length=11, metric="cosine"),
    Principal(ratio=2, then=Scalar(bits=4)),
    Principal(ratio=1.5, then=Product(width=4, length=16)),
    Principal(ratio=3, then=Scalar(bits=2, refine=False)),
]


@pytest.fixture(params=CODECS, ids=repr)
def codec(request: pytest.FixtureRequest) -> Codec:
    return request.param


@pytest.fixture
def x() -> Tensor:
    return torch.randn(137, 21, generator=torch.Generator().manual_seed(0))


@pytest.fixture
def path(tmp_path: pathlib.Path) -> pathlib.Path:
    return tmp_path / "some features.gsf"
