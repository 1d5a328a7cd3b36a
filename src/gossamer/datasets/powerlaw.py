"""Generated graphs in memory: exactly the number of distinct edges asked for.

Edges within classes and edges between classes are drawn separately, each until enough distinct ones are there, so
their proportion is exact. Hubs run out of new partners before others do; where draws by propensity stop giving new
edges, the rest is drawn evenly.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray

from . import splits
from .block_model import BlockModel
from .info import MULTILABEL
from .planted import NODE_CHUNK, Planted
from .pyg_data import make_data

if TYPE_CHECKING:
    from torch_geometric.data import Data

ROUNDS_BY_PROPENSITY = 12
MOST_ROUNDS = 200


def powerlaw(
    num_nodes: int,
    num_edges: int,
    num_features: int,
    num_classes: int,
    *,
    homophily: float = BlockModel.homophily,
    exponent: float = BlockModel.exponent,
    noise: float = BlockModel.noise,
    confusion: float = BlockModel.confusion,
    directed: bool = False,
    split: tuple[float, float, float] = BlockModel.split,
    labels: int | None = None,
    seed: int = 0,
) -> Data:
    """A power-law graph with planted classes (see `block_model`), the same for the same arguments.

    edge_index has 2 * num_edges columns (num_edges if `directed`), sorted, without self-loops or duplicates.
    With `labels`, the set is multi-label: y is float [num_nodes, labels] of 0 and 1 that depend on the planted class.
    """
    model = BlockModel(
        num_nodes, num_edges, num_features, num_classes, homophily, exponent, noise, confusion, directed, split, labels
    )
    return generate(model, seed)


def generate(model: BlockModel, seed: int = 0) -> Data:
    """The graph of `model` as one PyG `Data`."""
    planted = Planted(model, seed)
    within = round(model.planted_homophily * model.num_edges)
    _check_room(model, within)
    key = np.concatenate([_distinct(planted, within, True), _distinct(planted, model.num_edges - within, False)])
    row, col = (planted.node_at[position].astype(np.int64) for position in np.divmod(key, model.num_nodes))
    if not model.directed:
        row, col = np.concatenate([row, col]), np.concatenate([col, row])
    edges = np.stack(np.divmod(np.sort(row * model.num_nodes + col), model.num_nodes))
    chunks = [planted.nodes(chunk) for chunk in range(-(-model.num_nodes // NODE_CHUNK))]
    x, y, part = (torch.from_numpy(np.concatenate(arrays)) for arrays in zip(*chunks, strict=True))
    told = {} if model.labels is None else {"task": MULTILABEL, "num_classes": model.labels}
    return make_data(x=x, edge_index=torch.from_numpy(edges), y=y, **splits.masks(part.numpy()), **told)


def _check_room(model: BlockModel, within: int) -> None:
    """At most half of the possible pairs of either kind, so that drawing distinct ones comes to an end."""
    sizes = np.diff(model.class_bounds)
    orders = 1 if not model.directed else 2  # (i, j) and (j, i) are two directed edges, one undirected
    pairs_within = int((sizes * (sizes - 1)).sum()) * orders // 2
    pairs_between = (model.num_nodes * (model.num_nodes - 1)) * orders // 2 - pairs_within
    for kind, wanted, possible in (
        ("within", within, pairs_within),
        ("between", model.num_edges - within, pairs_between),
    ):
        if 2 * wanted > possible:
            raise ValueError(
                f"`num_edges` {model.num_edges} with `homophily` {model.homophily} asks for {wanted} distinct edges "
                f"{kind} classes, more than half of the {possible} that {model.num_nodes} nodes allow. Remedy: fewer "
                "edges, more nodes (a larger `scale` of a named set), or another homophily"
            )


def _distinct(planted: Planted, count: int, same: bool) -> NDArray[np.int64]:
    """`count` distinct edges within classes (`same`) or between them, as keys i * num_nodes + j in block order."""
    n = planted.model.num_nodes
    keys = np.empty(0, np.int64)
    for attempt in range(MOST_ROUNDS):
        if len(keys) >= count:
            break
        rng = planted.edge_rng(2 * attempt + same)
        kinds = np.full((count - len(keys)) * 11 // 10 + 64, same)
        i, j = planted.pairs(rng, kinds, flat=attempt >= ROUNDS_BY_PROPENSITY)
        if not planted.model.directed:
            i, j = np.minimum(i, j), np.maximum(i, j)
        keys = np.unique(np.concatenate([keys, i * n + j]))
    else:
        raise ValueError(f"found only {len(keys)} of {count} distinct edges; ask for fewer edges or more nodes")
    return planted.edge_rng(2 * MOST_ROUNDS + same).choice(keys, count, replace=False)
