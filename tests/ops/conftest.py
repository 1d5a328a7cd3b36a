"""Tests of ops run on one thread unless they ask for `threads`: their tensors are small, and waking threads is not."""

from __future__ import annotations

import pytest
import torch


@pytest.fixture(autouse=True)
def _one_thread(request: pytest.FixtureRequest):
    before = torch.get_num_threads()
    if "threads" not in request.fixturenames:
        torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
