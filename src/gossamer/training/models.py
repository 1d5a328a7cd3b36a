"""The models of the command line: PyG's own GCN, GraphSAGE, GIN and GAT, with a pooling head for graph-level sets.

    model = build("gcn", data)                     data: a PyG `Data`, or a list of graphs
    out = model(data.x, data.edge_index)           [nodes, classes]
    out = model(x, edge_index, batch)              [graphs, classes], or [graphs, 1] for regression

A graph-level model is the same stack of layers, then the mean over the nodes of each graph (the sum for GIN, which
is what lets it count) and a linear head.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from ..quiet_pyg import importing_pyg
from .checks import check_counts
from .tasks import check_features, task_of

if TYPE_CHECKING:
    from torch_geometric.data import Data

MODELS = {"gcn": "GCN", "sage": "GraphSAGE", "gin": "GIN", "gat": "GAT"}
NORMS: dict[str, dict[str, Any]] = {
    "batch": {"norm": "batch_norm"},
    "layer": {"norm": "layer_norm", "norm_kwargs": {"mode": "node"}},
    "none": {"norm": None},
}


class UnknownModel(ValueError):
    """No model has this name."""


class GraphModel(nn.Module):
    """Node layers, a pool over the nodes of each graph, a linear head."""

    def __init__(self, gnn: nn.Module, width: int, out_channels: int, pool: str) -> None:
        super().__init__()
        from torch_geometric.nn import global_add_pool, global_mean_pool

        self.gnn = gnn
        self.pool = global_add_pool if pool == "add" else global_mean_pool
        self.head = nn.Linear(width, out_channels)

    def forward(self, x: Tensor, edge_index: Any, batch: Tensor) -> Tensor:
        return self.head(self.pool(self.gnn(x, edge_index), batch))


def build(
    name: str,
    data: Data | Sequence[Data],
    *,
    layers: int = 3,
    width: int = 256,
    dropout: float = 0.5,
    norm: str = "batch",
    heads: int = 4,
    out_channels: int | None = None,
) -> nn.Module:
    """A model for `data`. `heads` is for gat alone; `out_channels` defaults to that of the task."""
    cls, options = _class_of(name), _norm_of(norm)
    _check_sizes(name, layers, width, dropout, heads)
    task = task_of(data)
    first = data[0] if isinstance(data, Sequence) else data
    check_features(first, "it")
    out_channels = task.out_channels if out_channels is None else out_channels
    if name == "gat":
        options["heads"] = heads
    gnn_out = None if task.graph_level else out_channels  # None leaves the last layer `width` wide
    gnn = cls(first.num_features, width, layers, gnn_out, dropout=dropout, **options)
    if not task.graph_level:
        return gnn
    return GraphModel(gnn, width, out_channels, pool="add" if name == "gin" else "mean")


def _class_of(name: str) -> Any:
    if name not in MODELS:
        near = difflib.get_close_matches(str(name).lower(), [*MODELS, "graphsage"], n=1, cutoff=0.4)
        nearest = f" Did you mean {near[0].replace('graphsage', 'sage')!r}?" if near else ""
        raise UnknownModel(f"there is no model {name!r}.{nearest} Models: {', '.join(MODELS)}.")
    with importing_pyg():
        from torch_geometric.nn import models

    return getattr(models, MODELS[name])


def _norm_of(norm: str) -> dict[str, Any]:
    if norm not in NORMS:
        raise ValueError(f"`norm` must be one of {', '.join(NORMS)} (got {norm!r})")
    return dict(NORMS[norm])


def _check_sizes(name: str, layers: int, width: int, dropout: float, heads: int) -> None:
    check_counts(layers=layers, width=width, heads=heads)
    if not (math.isfinite(dropout) and 0 <= dropout < 1):
        raise ValueError(f"`dropout` must be at least 0 and below 1 (got {dropout!r}); 0 turns it off")
    if name == "gat" and width % heads:
        raise ValueError(
            f"`width` must be a multiple of `heads` for gat, which concatenates its heads (got {width} and {heads}); "
            f"the nearest is {max(1, round(width / heads)) * heads}"
        )
