"""An adjacency as a matrix."""

from __future__ import annotations

import torch
from torch import Tensor

from gossamer.aggregate import Adjacency


def dense_of(adjacency: Adjacency) -> Tensor:
    """[num_dst, num_src] in float64, by its definition."""
    graph = adjacency.graph
    src, dst = graph.edge_index
    value = graph.value if adjacency.value is None else adjacency.value.detach()
    weight = torch.ones(len(src), dtype=torch.float64) if value is None else value.double()
    matrix = torch.zeros(graph.num_dst, graph.num_src, dtype=torch.float64).index_put_((dst, src), weight, True)
    matrix = matrix if adjacency.dst_scale is None else matrix * adjacency.dst_scale.double().unsqueeze(1)
    matrix = matrix if adjacency.src_scale is None else matrix * adjacency.src_scale.double()
    if adjacency.diagonal is None:
        return matrix
    main = matrix.diagonal()
    main += adjacency.diagonal.detach().double().reshape(-1).expand(len(main))
    return matrix
