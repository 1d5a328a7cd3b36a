"""The weights of edges that GAT's integer form has (ops/integer_attention.py), as floats."""

from __future__ import annotations

import torch
from torch import Tensor

from ...graph import Graph
from ...ops.csr import row_of_edge
from ...ops.integer_attention import attention_codes


def integer_weights(graph: Graph, a_src: Tensor, a_dst: Tensor | None, edge: Tensor | None, slope: float) -> Tensor:
    """[edges, heads]; those of a node add up to 1."""
    codes = attention_codes(graph.rowptr, graph.col, a_src, a_dst, edge, slope).float()
    if not len(codes):
        return codes
    sums = torch.segment_reduce(codes, "sum", offsets=graph.rowptr, axis=0)
    return codes / sums[row_of_edge(graph.rowptr)]
