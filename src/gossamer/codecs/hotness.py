"""How often a node's features are read by neighbour sampling: its hotness.

    h_0(v) = [v in seeds]     h_(l+1)(u) = min(1, h_l(u) + sum_{v: u in N(v)} h_l(v) min(1, fanout_l / deg(v)))

an estimate of the probability that a batch which starts from all seeds reads u. One pass over the edges per layer.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..ops import _checks
from ..ops.csr import row_of_edge


def hotness(rowptr: Tensor, col: Tensor, seeds: Tensor, fanouts: Sequence[int], num_nodes: int) -> Tensor:
    """Hotness of all nodes, float64 in [0, 1], of a graph in CSR by destination (`Graph.rowptr`, `Graph.col`).

    `seeds`: ids, or a truth value per node; `fanouts` from the seeds outwards, -1 for all neighbours.
    """
    _checks.csr(rowptr, col, num_nodes)
    if rowptr.numel() != num_nodes + 1:
        raise ValueError(f"`rowptr` must have {num_nodes + 1} entries, as all nodes may be read (got {rowptr.numel()})")
    hot = torch.zeros(num_nodes, dtype=torch.float64, device=rowptr.device)
    if seeds.dtype == torch.bool:
        _checks.shape_of("seeds", seeds, (num_nodes,), f"[{num_nodes}], a truth value per node")
    else:
        _checks.dtype_of("seeds", seeds, (torch.int64,))
        _checks.ids_within("seeds", seeds, num_nodes, "nodes")
    hot[seeds] = 1
    degree, source, row = rowptr.diff().double(), col.long(), row_of_edge(rowptr)
    for fanout in fanouts:
        if fanout < -1 or fanout == 0:
            raise ValueError(f"`fanouts` must be positive, or -1 for all neighbours (got {fanout})")
        read = hot if fanout == -1 else hot * (fanout / degree.clamp(min=1)).clamp(max=1)
        hot = (hot + torch.bincount(source, weights=read[row], minlength=num_nodes)).clamp(max=1)
    return hot


def hottest(hot: Tensor, share: float) -> Tensor:
    """A truth value per node: the `share` of nodes of greatest hotness, of equal ones the first."""
    if not 0 <= share <= 1:
        raise ValueError(f"`share` must be between 0 and 1 (got {share})")
    important = torch.zeros(hot.numel(), dtype=torch.bool, device=hot.device)
    important[hot.argsort(descending=True, stable=True)[: round(share * hot.numel())]] = True
    return important
