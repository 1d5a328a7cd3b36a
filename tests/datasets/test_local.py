from __future__ import annotations

import io
import zipfile

import numpy as np
import pytest
import torch

from gossamer.datasets import BadDatasetFile, DatasetInfo, UnknownDataset, load, local
from gossamer.datasets.npz import Npz

NODE_SETS = (
    "cora",
    "citeseer",
    "pubmed",
    "amazon_computers",
    "minesweeper",
    "nell",
    "musae_facebook",
    "chameleon_filtered",
)
GRAPH_SETS = ("tu_mutag", "tu_enzymes", "tu_bzr", "tu_imdb_binary", "zinc12k_rebuilt")


def test_infos_come_from_headers(node_file, graph_file):
    node_file()
    assert local.infos() == [DatasetInfo("ring", "local", "node multiclass", 6, 12, 2, 2, "split: one")]
    graph_file()
    assert local.infos()[1] == DatasetInfo(
        "three", "local", "graph classification", 6, 6, 64, 2, "3 graphs; split: none"
    )


def test_a_broken_file_is_listed_with_its_fault_and_hides_no_other(node_file):
    node_file().with_name("broken.npz").write_bytes(b"not an archive")
    node_file("empty", **dict.fromkeys(("indptr", "indices")))
    found = {info.name: info for info in local.infos()}
    assert found["ring"].ready and not found["broken"].ready and not found["empty"].ready
    assert "must be an .npz archive" in found["broken"].note and "`indptr`" in found["empty"].note
    assert found["broken"].note.startswith("damaged: ")


def test_a_damaged_file_fails_only_where_it_is_asked_for(node_file):
    """An unfinished header is a TokenError in NumPy, which no other name need know of."""
    path = node_file("broken", x=np.zeros((6, 2)))
    content = path.read_bytes()
    with zipfile.ZipFile(path, "w") as archive:
        for name in np.load(io.BytesIO(content)).files:
            with zipfile.ZipFile(io.BytesIO(content)) as whole:
                member = whole.read(f"{name}.npy")
            archive.writestr(f"{name}.npy", member.replace(b"}", b"(", 1) if name == "meta" else member)
    node_file("ring")
    assert load("digits").num_nodes == 1797 and load("ring").num_nodes == 6
    with pytest.raises(BadDatasetFile, match=r"broken\.npz: `meta` must be an array with a readable header.*Remedy"):
        load("broken")
    assert {info.name: info.ready for info in local.infos()} == {"broken": False, "ring": True}


def test_resolving_a_name_opens_no_other_file(node_file, monkeypatch):
    node_file("other"), node_file("ring")
    opened, init = [], Npz.__init__
    monkeypatch.setattr(Npz, "__init__", lambda npz, path: (opened.append(path.name), init(npz, path))[1])
    load("ring"), load("digits")
    assert set(opened) == {"ring.npz"}


@pytest.mark.parametrize("value", [None, "/no/such/folder"])
def test_no_folder(monkeypatch, value):
    if value:
        monkeypatch.setenv("GOSSAMER_DATA", value)
    assert local.infos() == []
    with pytest.raises(UnknownDataset, match=f"GOSSAMER_DATA.* {'is not a folder' if value else 'is not set'}"):
        load("local:cora")


def test_options_of_the_other_kind(node_file, graph_file):
    node_file(), graph_file()
    with pytest.raises(TypeError, match="'ring' takes no option 'features'; its options are: seed, sparse, split"):
        load("ring", features="degree")
    with pytest.raises(TypeError, match="'three' takes no option 'split'; its options are: features"):
        load("three", split=1)


@pytest.mark.parametrize("name", NODE_SETS)
def test_real_node_sets(real_data, name):
    info = next(info for info in local.infos() if info.name == name)
    data = load(name)
    assert (data.num_nodes, data.num_edges, data.num_features) == (info.nodes, info.edges, info.features)
    assert data.x.dtype == torch.float32 and int(data.y.max()) < data.num_classes
    masks = torch.stack([data.train_mask, data.val_mask, data.test_mask])
    assert masks.any(1).all() and masks.sum(0).max() == 1 and (data.y[masks.any(0)] >= 0).all()


def test_real_splits(real_data):
    assert [int(load("cora")[m].sum()) for m in ("train_mask", "val_mask", "test_mask")] == [140, 500, 1000]
    assert not torch.equal(load("minesweeper", split=0).train_mask, load("minesweeper", split=9).train_mask)
    nell = load("nell", sparse=True)
    assert int((nell.train_mask | nell.val_mask).sum()) == 1054 and int(nell.test_mask.sum()) == 848


def test_real_structure(real_data):
    data = load("web_google_structure")
    assert (data.num_nodes, data.num_edges) == (875_713, 5_105_039) and data.x is None


@pytest.mark.parametrize("name", GRAPH_SETS)
def test_real_graph_sets(real_data, name):
    info = next(info for info in local.infos() if info.name == name)
    graphs = load(name)
    assert sum(g.num_nodes for g in graphs) == info.nodes and sum(g.num_edges for g in graphs) == info.edges
    assert graphs.num_features == info.features and graphs.num_classes == info.classes
    train, val, test = graphs.split(0)
    assert len(set(torch.cat([train, val, test]).tolist())) == len(graphs) and min(len(val), len(test)) > 0
