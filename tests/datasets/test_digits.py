from __future__ import annotations

import gzip
import subprocess
import sys

import pytest
import torch

from gossamer.datasets import BadDatasetFile, DatasetUnavailable, digits, load


def test_the_graph():
    data = load("digits")
    row, col = data.edge_index
    assert (data.num_nodes, data.num_features, data.num_classes) == (1797, 64, 10)
    assert data.x.dtype == torch.float32 and data.x.min() == 0 and data.x.max() == 1
    assert data.is_undirected() and data.is_coalesced() and not (row == col).any()
    assert torch.bincount(row).min() >= 8
    assert data.num_edges == digits.infos()[0].edges
    assert (data.y[row] == data.y[col]).float().mean() > 0.95
    assert [int(data[m].sum()) for m in ("train_mask", "val_mask", "test_mask")] == [200, 500, 1097]
    assert torch.bincount(data.y[data.train_mask]).tolist() == [20] * 10


def test_the_seed_changes_the_split_alone():
    first, again, other = load("digits"), load("digits"), load("digits", seed=1)
    assert torch.equal(first.train_mask, again.train_mask) and torch.equal(first.edge_index, other.edge_index)
    assert not torch.equal(first.train_mask, other.train_mask)


def test_neighbours_are_the_nearest_and_ties_go_to_the_lower_index():
    x = torch.tensor([[0.0], [2.0], [1.0], [10.0]])  # 0 and 1 are equally near to 2
    assert digits.nearest_neighbours(x, 1).T.tolist() == [[0, 2], [1, 2], [1, 3], [2, 0], [2, 1], [3, 1]]


@pytest.mark.parametrize("k", [0, -1, 1797])
def test_k_out_of_range(k):
    with pytest.raises(ValueError, match=rf"`k` must be between 1 and 1796.*got {k}"):
        load("digits", k=k)


def test_the_package_is_absent(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(DatasetUnavailable, match="pip install scikit-learn"):
        load("digits")
    assert not digits.infos()[0].ready


@pytest.mark.parametrize("table", ["1,2,3\n", "no numbers\n"])
def test_the_table_is_not_what_it_should_be(monkeypatch, tmp_path, table):
    with gzip.open(tmp_path / "digits.csv.gz", "wt") as file:
        file.write(table)
    monkeypatch.setattr(digits, "_table_path", lambda: tmp_path / "digits.csv.gz")
    with pytest.raises(BadDatasetFile, match="reinstall scikit-learn"):
        load("digits")


def test_no_second_openmp_runtime():
    script = """
import torch
from gossamer.datasets import load
load("digits")
names = ("libgomp", "libiomp", "libomp")
print(len({line.split()[-1] for line in open("/proc/self/maps") if any(name in line for name in names)}))
"""
    if not sys.platform.startswith("linux"):
        pytest.skip("reads /proc/self/maps")
    output = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=120)
    assert output.stdout.split() == ["1"]
