from __future__ import annotations

import builtins
import sys
import types
from importlib.machinery import ModuleSpec

import pytest
import torch

from gossamer.datasets import DatasetUnavailable, load, ogb_sets
from gossamer.datasets.pyg_data import make_data
from gossamer.training.tasks import task_of


def install(monkeypatch, dataset) -> None:
    """A stand-in for the package, with `dataset` as its one class."""
    package, module = types.ModuleType("ogb"), types.ModuleType("ogb.nodeproppred")
    package.__spec__ = ModuleSpec("ogb", None)
    module.PygNodePropPredDataset = dataset
    monkeypatch.setitem(sys.modules, "ogb", package)
    monkeypatch.setitem(sys.modules, "ogb.nodeproppred", module)


class Four:
    """Four nodes in a directed path."""

    def __init__(self, name: str, root: str) -> None:
        assert input("This will download 1.38GB. Will you proceed? (y/N)\n") == "y"
        assert input("Will you update the dataset now? (y/N)\n") == "n"
        self.name = name

    def __getitem__(self, index: int):
        edges = torch.tensor([[0, 1, 2], [1, 2, 3]])
        if self.name == "ogbn-proteins":
            return make_data(edge_index=edges, edge_attr=torch.eye(3), y=torch.ones(4, 112).long(), num_nodes=4)
        return make_data(x=torch.ones(4, 2), edge_index=edges, y=torch.tensor([[0], [1], [2], [3]]))

    def get_idx_split(self):
        return {"train": torch.tensor([0, 1]), "valid": torch.tensor([2]), "test": torch.tensor([3])}


def test_the_package_is_not_installed(monkeypatch):
    monkeypatch.setattr(ogb_sets.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(DatasetUnavailable, match="pip install ogb; or load 'arxiv-like'"):
        load("ogbn-arxiv")
    assert not any(info.ready for info in ogb_sets.infos())


def test_a_set_with_its_split_and_without_questions(monkeypatch, tmp_path):
    install(monkeypatch, Four)
    ask = builtins.input
    data = load("ogbn-arxiv", root=tmp_path)
    assert builtins.input is ask
    assert data.y.tolist() == [0, 1, 2, 3] and data.is_undirected() and data.num_edges == 6
    assert [data[m].nonzero().flatten().tolist() for m in ("train_mask", "val_mask", "test_mask")] == [[0, 1], [2], [3]]
    assert load("ogbn-arxiv", root=tmp_path, undirected=False).num_edges == 3


def test_features_of_edges_become_features_of_nodes(monkeypatch):
    install(monkeypatch, Four)
    data = load("ogbn-proteins")
    assert data.x.tolist() == [[1, 0, 0], [0, 1, 0], [0, 0, 1], [0, 0, 0]]
    assert data.y.dtype == torch.float32 and data.num_classes == 112
    assert data.task == "node multilabel (ROC AUC)" and task_of(data).metric == "roc_auc"
    note = {info.name: info.note for info in ogb_sets.infos()}["ogbn-proteins"]
    assert note == "downloaded by the package ogb; a node's features are the mean of its edges' attributes"


def test_no_network(monkeypatch, tmp_path):
    def unreachable(name: str, root: str):
        raise TimeoutError("timed out")

    install(monkeypatch, unreachable)
    with pytest.raises(DatasetUnavailable, match=r"timed out.*load 'products-like'"):
        load("ogbn-products", root=tmp_path)
