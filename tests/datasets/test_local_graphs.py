from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from gossamer.datasets import BadDatasetFile, GraphList, load


def test_graphs_without_features_get_their_degree(graph_file):
    graph_file()
    graphs = load("three")
    assert isinstance(graphs, GraphList) and [g.num_nodes for g in graphs] == [2, 3, 1]
    assert graphs[1].edge_index.tolist() == [[0, 1, 1, 2], [1, 0, 2, 1]]
    assert [g.x.argmax(1).tolist() for g in graphs] == [[1, 1], [1, 2, 1], [0]] and graphs.num_features == 64
    assert [g.y.tolist() for g in graphs] == [[0], [1], [0]] and graphs[0].y.dtype == torch.int64
    assert load("three", features="constant")[1].x.tolist() == [[1], [1], [1]]
    with pytest.raises(ValueError, match=r"`features` must be one of .* \(got 'any'\)"):
        load("three", features="any")


def test_a_graph_owns_its_arrays(graph_file):
    graph_file()
    graph = load("three")[0]
    assert graph.edge_index.untyped_storage().nbytes() == graph.edge_index.nbytes
    assert graph.x.untyped_storage().nbytes() == graph.x.nbytes


def test_degrees_above_the_last_column_share_it(graph_file):
    star = np.stack(
        [np.append(np.zeros(100, int), np.arange(1, 101)), np.append(np.arange(1, 101), np.zeros(100, int))]
    )
    graph_file(node_ptr=np.array([0, 101]), edge_ptr=np.array([0, 200]), edge_index=star, y=np.array([1]))
    assert load("three")[0].x.argmax(1).tolist() == [63] + [1] * 100


def test_attributes_then_types(graph_file):
    x, types = np.arange(6.0)[:, None], np.array([0, 1, 2, 2, 1, 0], np.uint8)
    edge_type = np.array([0, 0, 1, 1, 2, 2], np.uint8)
    graph_file(x=x, node_type=types, node_type_values=np.arange(4), edge_type=edge_type)
    graphs = load("three")
    assert graphs[1].x.tolist() == [[2, 0, 0, 1, 0], [3, 0, 0, 1, 0], [4, 0, 1, 0, 0]]
    assert graphs[1].edge_attr.argmax(1).tolist() == [1, 1, 2, 2] and graphs[1].edge_attr.dtype == torch.float32
    assert load("three", features="degree").num_features == 64


def test_superpixels(graph_file):
    ones = np.ones(6, np.uint16)
    graph_file(pixel_count=ones * 2, intensity_sum=ones * 510, row_sum=ones * 28, col_sum=ones * 14)
    assert load("three")[0].x.tolist() == [[1, 0.5, 0.25]] * 2
    graph_file(pixel_count=ones * 0, intensity_sum=ones, row_sum=ones, col_sum=ones)
    with pytest.raises(BadDatasetFile, match="`pixel_count` must be in 1"):
        load("three")


def test_regression(graph_file):
    meta = json.dumps({"task": "graph regression"})
    graph_file(meta=meta, y=np.array([0.5, -1.5, 2], np.float32))
    graphs = load("three")
    assert graphs.num_classes is None and graphs[1].y.tolist() == [-1.5]


def test_the_three_ways_of_splitting(graph_file):
    def split(k=0):
        return [part.tolist() for part in load("three").split(k)]

    graph_file(split=np.array([2, 0, 1]))
    assert split() == [[1], [2], [0]]
    graph_file(test_fold=np.array([0, 1, -1], np.int8))
    assert split(0) == [[2], [1], [0]] and split(1) == [[2], [0], [1]]
    eye = np.eye(3, dtype=bool)[:, None]
    graph_file(train_mask=eye[0], val_mask=eye[1], test_mask=eye[2])
    assert split() == [[0], [1], [2]]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"edge_index": None}, "`edge_index` must be among its arrays"),
        ({"edge_ptr": None}, "`edge_ptr` must be among its arrays"),
        ({"y": None}, "`y` must be among its arrays"),
        ({"edge_index": np.zeros((3, 6), int)}, r"`edge_index` must be integers of shape \[2, any\]"),
        ({"edge_index": np.full((2, 6), 2)}, r"`edge_index` must be in 0 .. 1 \(found 2 at entry 0"),
        ({"edge_ptr": np.array([0, 2, 5, 5])}, "`edge_ptr` must be offsets from 0 to 6"),
        ({"edge_ptr": np.array([0, 6])}, r"`edge_ptr` must be integers of shape \[4\]"),
        ({"node_ptr": np.array([0, 3, 2, 6])}, "`node_ptr` must be offsets that never descend"),
        ({"node_ptr": np.array([], int)}, "`node_ptr` must be offsets"),
        ({"node_type": np.zeros(5, int)}, "`node_ptr` must be offsets from 0 to 5 .found 0 to 6"),
        ({"node_type": np.array(1)}, "`node_type` must be an array of at least one dimension"),
        ({"x": np.zeros(6)}, r"`x` must be numbers of shape \[6, any\]"),
        ({"node_type": np.full(6, 3), "node_type_values": np.arange(3)}, r"`node_type` must be in 0 .. 2"),
        ({"edge_type": np.zeros(5, int)}, r"`edge_type` must be integers of shape \[6\]"),
        ({"y": np.array([0, 1, 2])}, r"`y` must be in 0 .. 1 \(found 2"),
        ({"y": np.array([0, 1])}, r"`y` must be integers of shape \[3\]"),
        ({"split": np.array([0, 1, 3])}, r"`split` must be in 0 .. 2 \(found 3"),
        ({"test_fold": np.array([0, 0, 0])}, "`test_fold` must be at least two folds"),
        ({"test_fold": np.array([0, 1, -2])}, r"`test_fold` must be in -1 .. 1 \(found -2"),
        ({"train_mask": np.ones((2, 3), bool)}, "`val_mask` must be among its arrays"),
        ({f"{part}_mask": np.ones((2, 3), bool) for part in ("train", "val", "test")}, "`train_mask` must be disjoint"),
    ],
)
def test_files_that_contradict_themselves(graph_file, changes, message):
    path = graph_file(**changes)
    with pytest.raises(BadDatasetFile, match=message) as caught:
        load("local:three")
    assert str(path) in str(caught.value) and "Remedy" in str(caught.value)
