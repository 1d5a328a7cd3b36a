from __future__ import annotations

from pathlib import Path
from urllib.error import URLError

import pytest
import torch
import torch_geometric.datasets

from gossamer.datasets import DatasetUnavailable, load, pyg_sets
from gossamer.datasets.pyg_data import make_data
from gossamer.training.tasks import task_of


@pytest.mark.parametrize("name", ["cora", "amazon-photo", "reddit2", "yelp", "amazon-products", "tu-mutag", "zinc"])
def test_no_network(monkeypatch, name, tmp_path):
    entry = (pyg_sets.NODE_SETS | pyg_sets.GRAPH_SETS)[name]

    def unreachable(root: str, **arguments):
        raise URLError("Name or service not known")

    monkeypatch.setattr(torch_geometric.datasets, entry.cls, unreachable)
    with pytest.raises(DatasetUnavailable, match=f"{entry.cls} .URLError.*Name or service not known.*Remedy: connect"):
        load(f"pyg:{name}", root=tmp_path)
    assert list((tmp_path / "pyg").iterdir()) == []


def test_no_network_in_earnest(tmp_path):
    """Through PyG's own downloads, which the tests' sockets refuse."""
    for name in ("cora", "coauthor-cs"):
        with pytest.raises(DatasetUnavailable, match="Remedy: connect"):
            load(name, root=tmp_path)


def test_a_node_set(monkeypatch, tmp_path):
    def computers(root: str, name: str):
        assert name == "Computers"
        (Path(root) / "processed").mkdir()
        (Path(root) / "processed" / "data.pt").touch()
        y = torch.arange(20) % 10
        return [make_data(x=torch.ones(20, 3), edge_index=torch.tensor([[0, 1], [1, 0]]), y=y)]

    monkeypatch.setattr(torch_geometric.datasets, "Amazon", computers)
    data = load("Amazon_Computers", root=tmp_path)
    assert data.num_classes == 10 and data.name == "amazon-computers"
    assert int((data.train_mask | data.val_mask | data.test_mask).sum()) == 20
    assert {info.name for info in pyg_sets.infos(tmp_path) if info.ready} == {"amazon-computers"}


def test_official_masks_are_kept(monkeypatch):
    mask = torch.tensor([True, False])
    graph = make_data(x=torch.ones(2, 1), y=torch.zeros(2).long(), train_mask=mask, val_mask=~mask, test_mask=~mask)
    monkeypatch.setattr(torch_geometric.datasets, "Planetoid", lambda root, name: [graph])
    assert torch.equal(load("cora").train_mask, mask)
    assert load("cora", split="few").train_mask.tolist() == [True, True]
    for name, split in (("cora", 3), ("cora", "any"), ("yelp", "random")):
        with pytest.raises(ValueError, match=f"`split` must be .* for '{name}' .got {split!r}"):
            load(name, split=split)


@pytest.mark.parametrize(("name", "cls", "labels"), [("yelp", "Yelp", 100), ("amazon-products", "AmazonProducts", 107)])
def test_a_set_with_many_labels(monkeypatch, tmp_path, name, cls, labels):
    part = torch.arange(6) % 3
    masks = {f"{key}_mask": part == i for i, key in enumerate(("train", "val", "test"))}
    y = (torch.arange(6 * labels).reshape(6, labels) % 3 == 0).long()
    graph = make_data(x=torch.ones(6, 2), edge_index=torch.tensor([[0, 1], [1, 0]]), y=y, **masks)
    monkeypatch.setattr(torch_geometric.datasets, cls, lambda root: [graph])
    data = load(name, root=tmp_path)
    assert (data.name, data.task, data.num_classes) == (name, "node multilabel", labels)
    assert data.y.dtype == torch.float32 and torch.equal(data.y, y.float())
    assert torch.equal(data.val_mask, masks["val_mask"])
    task = task_of(data)
    assert (task.metric, task.out_channels) == ("micro_f1", labels)
    with pytest.raises(ValueError, match="`split` must be left out, as nodes with many labels"):
        load(name, split="random", root=tmp_path)


def test_zinc_is_one_hot_and_knows_its_split(monkeypatch):
    def zinc(root: str, subset: bool, split: str):
        edge_attr = torch.tensor([1, 3])
        count = {"train": 3, "val": 2, "test": 1}[split]
        edges = torch.tensor([[0, 1], [1, 0]])
        graph = {"x": torch.tensor([[5], [27]]), "edge_index": edges, "edge_attr": edge_attr, "y": torch.tensor([0.5])}
        return [make_data(**graph) for _ in range(count)]

    monkeypatch.setattr(torch_geometric.datasets, "ZINC", zinc)
    graphs = load("zinc")
    assert graphs.num_features == 28 and graphs[0].x.argmax(1).tolist() == [5, 27]
    assert graphs[0].edge_attr.argmax(1).tolist() == [1, 3] and graphs.num_classes is None
    assert [part.tolist() for part in graphs.split()] == [[0, 1, 2], [3, 4], [5]]


def test_a_tu_set(monkeypatch):
    graph = make_data(x=torch.ones(2, 7), edge_index=torch.tensor([[0, 1], [1, 0]]), y=torch.tensor([1]))
    monkeypatch.setattr(torch_geometric.datasets, "TUDataset", lambda root, name: [graph] * 30)
    graphs = load("tu-mutag")
    assert len(graphs) == 30 and graphs.num_classes == 2 and len(graphs.split(0)[0]) == 24


def test_every_class_named_here_is_in_pyg():
    for entry in (pyg_sets.NODE_SETS | pyg_sets.GRAPH_SETS).values():
        assert hasattr(torch_geometric.datasets, entry.cls)
