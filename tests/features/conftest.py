"""Codecs that a feature store takes, and some features."""

from __future__ import annotations

import pathlib

import pytest
import torch
from torch import Tensor

from gossamer.codecs import Codec, Uniform

CODECS: list[Codec] = [*(Uniform(bits) for bits in (1, 2, 4, 8)), Uniform(2, meta="bfloat16")]


@pytest.fixture(params=CODECS, ids=repr)
def codec(request: pytest.FixtureRequest) -> Codec:
    return request.param


@pytest.fixture
def x() -> Tensor:
    return torch.randn(137, 21, generator=torch.Generator().manual_seed(0))


@pytest.fixture
def path(tmp_path: pathlib.Path) -> pathlib.Path:
    return tmp_path / "some features.gsf"
