"""Which rows to keep for given work, on real graphs: by density no worse than by score, and better where hubs are."""

from __future__ import annotations

import os

import pytest
import torch

import gossamer as gs
from gossamer import ops
from gossamer.aggregate.build import gcn
from gossamer.aggregate.selection import row_norms
from gossamer.ops.spmm import row_sums

pytestmark = pytest.mark.skipif("GOSSAMER_DATA" not in os.environ, reason="needs real graphs in GOSSAMER_DATA")


def gradient_of(data, columns, related):
    """One layer below the loss, through a ReLU mask; related: nodes of a class share a direction."""
    rng = torch.Generator().manual_seed(0)
    dout = torch.randn(data.num_nodes, columns, generator=rng)
    if related:
        dout = dout + 2 * torch.randn(int(data.y.max()) + 1, columns, generator=rng)[data.y.clamp(min=0)]
    adjacency = gcn(data.edge_index, data.num_nodes, None, False, True)
    back = row_sums(adjacency.transpose(), dout, adjacency.diagonal)
    return adjacency, back * (torch.randn(back.shape, generator=rng) > 0)


@pytest.mark.parametrize("related", [False, True])
@pytest.mark.parametrize("name", ["pubmed", "amazon_computers", "musae_github"])
def test_density_keeps_at_least_what_score_keeps(name, related):
    adjacency, dout = gradient_of(gs.datasets.load(name), 16, related)
    matrix, degree = adjacency.transpose(), adjacency.graph.degree
    score = torch.linalg.vector_norm(dout, dim=1) * row_norms(adjacency)
    exact = row_sums(matrix, dout)
    for share in (0.1, 0.3, 0.5):
        errors = []
        for key in (score, score * degree.clamp(min=1).float().rsqrt()):
            keep = ops.top_rows(key, degree, int(share * adjacency.graph.num_edges))
            errors.append(float((row_sums(matrix, dout, None, keep) - exact).norm() / exact.norm()))
        assert errors[1] <= errors[0] + 0.02, (share, errors)
