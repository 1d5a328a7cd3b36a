"""PyG's `Data`, imported when the first graph is made."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..quiet_pyg import importing_pyg

if TYPE_CHECKING:
    from torch_geometric.data import Data


def make_data(**fields: Any) -> Data:
    """`torch_geometric.data.Data(**fields)`."""
    with importing_pyg():
        from torch_geometric.data import Data

    return Data(**fields)
