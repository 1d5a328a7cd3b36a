"""From a trained model to an integer program: capture its structure, calibrate its ranges, write the file.

capture       the structure of a model, by modules and by torch.fx
lower         the program, from that structure and the model's quantisers, by the plan of sites it was trained with
lowering      how each layer becomes steps; by the fused plan
published     what differs where every message is rounded
calibration   gs.calibrate: ranges from a few batches, without training
writing       gs.export
errors        what may be refused
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ..quiet_pyg import importing_pyg
from .errors import CannotCapture, NotQuantised

if TYPE_CHECKING:
    from torch import nn

    from .calibration import Calibration
    from .writing import Exported

__all__ = ["CannotCapture", "NotQuantised", "calibrate", "export"]


def calibrate(
    model: nn.Module, data: Any, bits: int = 8, *, skip: Sequence[str] = (), check: bool = True
) -> Calibration:
    """Give a trained model ranges from a few batches, so that it can be exported; the report has each layer's error.

    data    what the model is called with: a tuple such as (x, edge_index) or (x, edge_index, batch), a PyG `Data`, or a
            list of those
    bits    8 or 4
    skip    names of modules that stay in float32
    check   capture the model and run its program on the first batch: what cannot be exported is an error now
    """
    with importing_pyg():
        from .calibration import calibrate as run
    return run(model, data, bits, skip=skip, check=check)


def export(model: nn.Module, path: str | os.PathLike[str], example: Any = None) -> Exported:
    """Write an integer model to one safetensors file, which `gs.load` runs without PyG.

    The model was trained with gs.DegreeQuant or gs.QAT as its recipe's `training`, or calibrated. `example`: the
    arguments of a call, as (x, edge_index), on which the program is compared with the model before anything is written.
    """
    with importing_pyg():
        from .writing import export as run
    return run(model, path, example)
