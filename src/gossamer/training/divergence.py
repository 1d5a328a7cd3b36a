"""Divergence: training stops at the first NaN or infinity, before it reaches the weights.

The loss is checked before backward, every gradient before the optimizer's step, outputs and scores after the epoch.
The model is left with the weights of the last good step, the folder of the run with its last checkpoint.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator

import torch
from torch import nn

from .scores import NoScore

REMEDY = (
    "Remedy: a smaller `lr`, the recipe 'float32', or features of ordinary size (data.x without NaN, scaled to about "
    "1); torch.autograd.set_detect_anomaly(True) shows the layer"
)


class TrainingDiverged(RuntimeError):
    """The loss, a gradient, an output or a score is no longer a finite number."""


def check_finite(what: str, value: float, when: str) -> None:
    """`when` names the epoch and the checkpoint on disk."""
    if not math.isfinite(value):
        raise TrainingDiverged(f"the {what} became {value} {when}. {REMEDY}")


@contextlib.contextmanager
def scoring(when: str) -> Iterator[None]:
    """Outputs that cannot be scored are a divergence, too."""
    try:
        yield
    except NoScore as error:
        raise TrainingDiverged(f"{error} {when}. {REMEDY}") from None


def check_gradients(model: nn.Module, when: str) -> None:
    """Raises for the first parameter, in the model's order, whose gradient holds NaN or infinity."""
    for name, parameter in model.named_parameters():
        grad = parameter.grad
        if grad is not None and not bool(torch.isfinite(grad).all()):
            check_finite(f"gradient of {name!r}", float(grad[~torch.isfinite(grad)][0]), when)
