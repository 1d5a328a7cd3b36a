"""PyG's `Data`, imported when the first graph is made, and quietly.

Importing PyG takes a second or two, and what only runs exported models needs none of it. PyG also scripts some of its
own classes at that moment, which newer torch versions call deprecated: not a warning that a user of this library can
act on, and under `python -W error` a failed import.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch_geometric.data import Data


def make_data(**fields: Any) -> Data:
    """`torch_geometric.data.Data(**fields)`."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from torch_geometric.data import Data

    return Data(**fields)
