"""What these tests share: numbers that repeat, and a graph."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from support.pyg_models import random_input


@pytest.fixture(autouse=True)
def _same_numbers():
    torch.manual_seed(0)


@pytest.fixture
def graph() -> tuple[Tensor, Tensor]:
    return random_input()
