"""Loaders of processes that train together share the seeds."""

from __future__ import annotations

import pytest
import torch

import gossamer as gs
from support.graphs import random_graph


def loaders(count: int, ranks: int, batch_size: int = 8, **named: object) -> list[gs.NeighborLoader]:
    graph = random_graph(60, 60, 400)
    seeds = torch.arange(count)
    return [gs.NeighborLoader(graph, None, [3], seeds, batch_size, ranks=(r, ranks), **named) for r in range(ranks)]


@pytest.mark.parametrize(("count", "ranks"), [(50, 3), (48, 3), (49, 2), (1, 4), (34, 4), (50, 1)])
def test_every_rank_has_as_many_batches_and_every_seed_comes(count, ranks):
    found = [list(loader) for loader in loaders(count, ranks, shuffle=True)]
    assert len({len(batches) for batches in found}) == 1
    assert all(batch.batch_size for batches in found for batch in batches), "a batch without a seed"
    seen = torch.cat([batch.input_id for batches in found for batch in batches])
    assert sorted(set(seen.tolist())) == list(range(count))
    assert len(seen) - count < ranks, "only where fewer are left than there are ranks, some come again"


def test_one_rank_yields_what_a_process_alone_does():
    one, alone = loaders(50, 1, shuffle=True)[0], loaders(50, 1, shuffle=True)[0]
    assert all(torch.equal(a.n_id, b.n_id) for a, b in zip(one, alone, strict=True))


def test_drop_last_leaves_whole_batches_on_every_rank():
    for loader in loaders(50, 3, drop_last=True):
        assert [batch.batch_size for batch in loader] == [8, 8]


@pytest.mark.parametrize("ranks", [(2, 2), (-1, 2), 3, (0,), ("a", 1)])
def test_ranks_must_be_a_rank_and_a_number(ranks):
    with pytest.raises(ValueError, match="`ranks` must be"):
        gs.NeighborLoader(random_graph(9, 9, 30), None, [2], torch.arange(4), 2, ranks=ranks)
