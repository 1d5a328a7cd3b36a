"""What the tests of layers share: numbers that repeat, and graphs."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from support.pyg_models import NASTY, random_input


@pytest.fixture(autouse=True)
def _same_numbers():
    torch.manual_seed(0)


@pytest.fixture(params=NASTY)
def nasty(request: pytest.FixtureRequest) -> tuple[Tensor, int]:
    """edge_index and the number of nodes of each graph that breaks things."""
    return NASTY[request.param]


@pytest.fixture
def graph() -> tuple[Tensor, Tensor]:
    return random_input()
