from __future__ import annotations

import numpy as np
import pytest
import torch
from torch_geometric.loader import DataLoader

from gossamer.datasets import GraphList
from gossamer.datasets.pyg_data import make_data


def graphs(num_classes: int | None, splits: int = 0) -> GraphList:
    edge = torch.tensor([[0, 1], [1, 0]])
    made = [make_data(x=torch.ones(2, 3), edge_index=edge, y=torch.tensor([g % 2])) for g in range(40)]
    return GraphList(made, "pairs", "graph classification", num_classes, np.zeros((splits, 40), np.int8))


def test_it_is_a_list_that_pyg_loads():
    batch = next(iter(DataLoader(graphs(2), batch_size=8)))
    assert batch.num_graphs == 8 and batch.x.shape == (16, 3) and batch.y.tolist() == [0, 1] * 4
    assert repr(graphs(2)) == "GraphList('pairs', 40 graphs, 3 features, 2 classes)"


@pytest.mark.parametrize("num_classes", [2, None])
def test_without_fixed_splits_k_is_a_seed(num_classes):
    train, val, test = graphs(num_classes).split(0)
    assert [len(train), len(val), len(test)] == [32, 4, 4]
    assert torch.cat([train, val, test]).sort().values.tolist() == list(range(40))
    assert torch.equal(train, graphs(num_classes).split(0)[0]) and not torch.equal(
        train, graphs(num_classes).split(1)[0]
    )


def test_every_class_is_in_every_part():
    whole = graphs(2)
    assert [sum(int(whole[i].y) for i in part) for part in whole.split(3)] == [16, 2, 2]


@pytest.mark.parametrize(
    ("splits", "k", "message"), [(2, 2, r"in 0 .. 1"), (2, -1, "in 0 .. 1"), (0, -1, "not negative")]
)
def test_k_out_of_range(splits, k, message):
    with pytest.raises(ValueError, match=rf"`k` must be {message} for pairs \(got {k}\)"):
        graphs(2, splits).split(k)


def test_an_empty_list():
    empty = GraphList([], "none", "graph classification", 2, np.empty((0, 0), np.int8))
    assert empty.num_features == 0 and [len(part) for part in empty.split()] == [0, 0, 0]
