from __future__ import annotations

import numpy as np
import pytest
import torch

from gossamer.datasets import BadDatasetFile, load

MASKS = ("train_mask", "val_mask", "test_mask")


def parts(data) -> list[list[int]]:
    return [data[mask].nonzero().flatten().tolist() for mask in MASKS]


def test_a_small_graph(node_file):
    node_file()
    data = load("ring")
    assert data.edge_index.T.tolist()[:3] == [[0, 1], [0, 5], [1, 0]] and data.num_edges == 12
    assert data.x.dtype == torch.float32 and data.x[1].tolist() == [2, 3]
    assert data.y.dtype == torch.int64 and data.y.tolist() == [0, 1, 0, 1, 0, -1]
    assert parts(data) == [[0, 1], [2], [3, 4]]
    assert (data.name, data.task, data.num_classes) == ("ring", "node multiclass", 2)


def test_sparse_features(node_file):
    sparse = {
        "x": None,
        "x_indptr": np.array([0, 1, 1, 3, 3, 3, 4]),
        "x_indices": np.array([2, 0, 1, 2], np.uint16),
        "x_data": np.array([1, 2, 3, 4], np.uint8),
        "x_shape": np.array([6, 3]),
    }
    node_file(**sparse)
    dense, csr = load("ring"), load("ring", sparse=True)
    assert dense.x.tolist() == [[0, 0, 1], [0, 0, 0], [2, 3, 0], [0, 0, 0], [0, 0, 0], [0, 0, 4]]
    assert csr.x.layout == torch.sparse_csr and torch.equal(csr.x.to_dense(), dense.x)
    node_file(**(sparse | {"x_indices": np.array([2, 1, 0, 2])}))
    with pytest.raises(BadDatasetFile, match="`x_indices` must be ascending and distinct within every row"):
        load("ring", sparse=True)
    for change, message in (
        ({"x_shape": np.array([5, 3])}, r"`x_shape` must be \[6, at least 1\]"),
        ({"x_indices": np.array([3, 0, 1, 2])}, r"`x_indices` must be in 0 .. 2 \(found 3 at entry 0"),
        ({"x_data": np.array([1, 2, 3])}, r"`x_data` must be numbers of shape \[4\]"),
        ({"x_indptr": np.array([0, 1, 1, 3, 3, 4])}, r"`x_indptr` must be integers of shape \[7\]"),
        ({"x_data": None}, "`x_data` must be among its arrays"),
    ):
        node_file(**(sparse | change))
        with pytest.raises(BadDatasetFile, match=message):
            load("ring")


def test_dense_features_as_sparse(node_file):
    node_file()
    assert torch.equal(load("ring", sparse=True).x.to_dense(), load("ring").x)


def test_many_fixed_splits(node_file):
    ring = np.arange(6)
    node_file(
        train_mask=np.stack([ring < 2, ring == 4]),
        val_mask=np.stack([ring == 2, ring == 3]),
        test_mask=np.stack([ring == 3, ring < 2]),
    )
    assert parts(load("ring")) == parts(load("ring", split=0)) == [[0, 1], [2], [3]]
    assert parts(load("ring", split=1)) == [[4], [3], [0, 1]]
    for split in (2, -1):
        with pytest.raises(ValueError, match=rf"`split` must be in 0 .. 1 for ring.npz \(got {split}\)"):
            load("ring", split=split)


def test_drawn_splits(node_file):
    y = np.repeat([0, 1], 50).astype(np.int16)
    y[0] = -1
    none = dict.fromkeys(MASKS)
    ring = {"indptr": np.zeros(101, np.int32), "indices": np.empty(0, np.int32), "x": None}
    node_file(**ring, y=y, **none)
    data = load("ring")
    assert [len(part) for part in parts(data)] == pytest.approx([59.4, 19.8, 19.8], abs=1)
    assert not any(0 in part for part in parts(data))
    assert parts(data) == parts(load("ring", split="random", seed=0)) != parts(load("ring", seed=1))
    few = load("ring", split="few")
    assert [len(part) for part in parts(few)] == [40, 59, 0]
    for split in (0, "other"):
        with pytest.raises(ValueError, match=r"`split` must be 'random' or 'few' for ring.npz"):
            load("ring", split=split)


def test_validation_nodes_are_taken_from_training_nodes_where_there_are_none(node_file):
    y = np.append(np.repeat([0, 1], 20), [0, 1]).astype(np.int16)
    node = np.arange(42)
    bare = {"indptr": np.zeros(43, np.int32), "indices": np.empty(0, np.int32), "x": None, "val_mask": None}
    node_file(**bare, y=y, train_mask=node < 40, test_mask=node >= 40)
    train, val, test = parts(load("ring"))
    assert (len(train), len(val), test) == (32, 8, [40, 41])
    assert sorted(train + val) == list(range(40)) and sum(v < 20 for v in val) == 4
    assert parts(load("ring", seed=1))[1] != val


def test_nodes_without_known_label_are_in_no_mask(node_file):
    labelled = np.array([False, True, True, True, True, True])
    node_file(labelled=labelled)
    assert parts(load("ring")) == [[1], [2], [3, 4]]


def test_structure_alone(node_file):
    node_file(**dict.fromkeys(("x", "y", *MASKS)))
    data = load("ring")
    assert data.num_nodes == 6 and data.num_edges == 12 and data.x is None and data.y is None
    assert "train_mask" not in data and "num_classes" not in data


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"indices": None}, "`indices` must be among its arrays .found only"),
        ({"indptr": None}, "`indptr` must be among its arrays"),
        ({"meta": None}, "`meta` must be among its arrays"),
        ({"indices": np.full(12, 6)}, r"`indices` must be in 0 .. 5 \(found 6 at entry 0, 12 such in all\)"),
        ({"indices": np.full(12, -1)}, r"`indices` must be in 0 .. 5 \(found -1"),
        ({"indptr": np.array([0, 4, 2, 6, 8, 10, 12])}, "`indptr` must be offsets that never descend"),
        ({"indptr": np.array([0, 2, 4, 6, 8, 10, 11])}, "`indptr` must be offsets from 0 to 12 .found 0 to 11"),
        ({"indptr": np.array(0)}, r"`indptr` must be integers of shape \[any\]"),
        ({"x": np.zeros((5, 2))}, r"`x` must be numbers of shape \[6, any\] .found float64 of shape \[5, 2\]"),
        ({"x": np.full((6, 2), np.nan)}, "`x` must be finite numbers .found 12"),
        ({"x": np.full((6, 2), "a")}, "`x` must be numbers"),
        ({"y": np.zeros(7, np.int16)}, r"`y` must be integers of shape \[6\]"),
        ({"y": np.full(6, 2)}, r"`y` must be in -1 .. 1 \(found 2"),
        ({"y": np.zeros(6)}, "`y` must be integers"),
        ({"train_mask": np.zeros(5, bool)}, r"`train_mask` must be booleans of shape \[6\]"),
        ({"train_mask": np.zeros(6, int)}, "`train_mask` must be booleans"),
        ({"test_mask": np.zeros((2, 6), bool)}, r"`test_mask` must be booleans of shape \[6\]"),
        ({"test_mask": None}, "`test_mask` must be among its arrays"),
        ({"test_mask": np.ones(6, bool)}, "`test_mask` must be disjoint from the other masks"),
    ],
)
def test_files_that_contradict_themselves(node_file, changes, message):
    path = node_file(**changes)
    with pytest.raises(BadDatasetFile, match=message) as caught:
        load("local:ring")
    assert str(path) in str(caught.value) and "Remedy: copy the file again" in str(caught.value)
