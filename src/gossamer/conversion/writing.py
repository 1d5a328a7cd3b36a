"""`gs.export`: a model with ranges as one file of integers."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from torch import nn

from ..inference import file
from ..state import model_state_of
from .calibration import check_program
from .capture import capture
from .errors import NotQuantised
from .lower import lower


@final
@dataclass(frozen=True)
class Exported:
    """The file, its bytes, those of the parameters and buffers in float32, and how many times smaller it is."""

    path: Path
    nbytes: int
    float_bytes: int

    @property
    def ratio(self) -> float:
        return self.float_bytes / self.nbytes

    def __str__(self) -> str:
        return f"{self.path}: {self.nbytes / 1e3:,.1f} kB, {self.ratio:.1f}x smaller than float32"


def export(model: nn.Module, path: str | os.PathLike[str], example: Any = None) -> Exported:
    """Write an integer model to `path` (safetensors), for `gs.load`.

    The model was trained with gs.DegreeQuant or gs.QAT (`training` of its recipe), or calibrated. `example`: arguments
    of a call, as (x, edge_index), on which the program is compared with the model before anything is written.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"`model` must be a torch.nn.Module (got {type(model).__name__})")
    state = model_state_of(model)
    if state is None or state.recipe.training is None:
        raise NotQuantised(
            "`model` must have ranges to be exported (it was neither trained for integers nor calibrated); call "
            "gs.calibrate(model, (x, edge_index)) first, or train it with the recipe 'degree-quant-int8'"
        )
    program, tensors = lower(model, capture(model))
    if example is not None:
        check_program(model, example if isinstance(example, tuple) else (example,))
    file.write(path, program, tensors, state.recipe.to_json())
    return Exported(Path(path), os.path.getsize(path), float_bytes(model))


def float_bytes(model: nn.Module) -> int:
    """Of the parameters and buffers of a model without its quantisers."""
    own = [tensor for name, tensor in model.state_dict().items() if ".quantisers." not in f".{name}"]
    return sum(tensor.numel() * 4 for tensor in own if tensor.is_floating_point())
