"""The integer program of a captured model, by the plan of sites that it was trained with."""

from __future__ import annotations

from torch import Tensor, nn

from ..inference.program import Program
from ..state import model_state_of
from .capture import Node
from .lowering import FUSED, Lowering
from .published import PUBLISHED


def lower(model: nn.Module, output: Node) -> tuple[Program, dict[str, Tensor]]:
    """The program of a captured model, and the tensors it names."""
    state = model_state_of(model)
    training = None if state is None else state.recipe.training
    table = PUBLISHED if training is not None and training.plan == "published" else FUSED
    lowering = Lowering(model, output, table)
    program = lowering.program()
    return program, lowering.tensors
