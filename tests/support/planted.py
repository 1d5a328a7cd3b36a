"""A small graph whose features and edges tell the class of a node."""

from __future__ import annotations

import torch
from torch.nn import functional as F

NODES, WIDTH, CLASSES = 300, 32, 4


def planted():
    """Features with a class's direction in them, and edges within classes."""
    generator = torch.Generator().manual_seed(5)
    y = torch.randint(0, CLASSES, (NODES,), generator=generator)
    ends = torch.randint(0, NODES, (2, 30 * NODES), generator=generator)
    x = torch.randn(NODES, WIDTH, generator=generator) + 2 * F.one_hot(y, WIDTH)
    return x, ends[:, y[ends[0]] == y[ends[1]]], y
