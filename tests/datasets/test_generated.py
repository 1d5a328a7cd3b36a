from __future__ import annotations

import pytest
import torch

from gossamer.datasets import DatasetUnavailable, available, generated, load


def test_named_sizes_are_those_of_the_sets_they_stand_for():
    sizes = {info.name: (info.nodes, info.edges, info.features, info.classes) for info in generated.infos()}
    assert sizes["arxiv-like"] == (169_343, 2 * 1_166_243, 128, 40)
    assert sizes["reddit-like"] == (60_000, 2 * 12_000_000, 256, 41)
    assert sizes["products-like"] == (2_449_029, 2 * 61_859_140, 100, 47)
    assert sizes["yelp-like"] == (716_847, 2 * 6_977_410, 300, 100)
    assert sizes["papers-like"] == (111_059_956, 1_615_685_872, 128, 172)
    tasks = {info.name: info.task for info in generated.infos()}
    assert tasks["arxiv-like"] == "node multiclass" and tasks["yelp-like"] == "node multilabel"


def test_small_scales_are_made_in_memory(tmp_path):
    data = load("products-like", scale=0.001)
    assert (data.num_nodes, data.num_edges, data.num_classes) == (2_450, 2 * 61_860, 47)
    papers = load("papers-like", scale=0.0001)
    assert papers.num_edges == 161_569 and papers.is_directed()
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize(
    ("name", "options", "labels"),
    [
        ("yelp-like", {"scale": 0.001}, 100),
        ("yelp-like", {"scale": 0.001, "labels": 3}, 3),
        ("arxiv-like", {"scale": 0.01, "labels": 12}, 12),
        ("powerlaw", {"num_nodes": 100, "num_edges": 200, "num_features": 3, "num_classes": 2, "labels": 1}, 1),
    ],
)
def test_sets_with_many_labels(name, options, labels):
    data = load(name, **options)
    assert data.y.shape == (data.num_nodes, labels)
    assert (data.name, data.task, data.num_classes) == (name, "node multilabel", labels)


@pytest.mark.parametrize(
    ("name", "options", "labels"),
    [
        ("arxiv-like", {"scale": 0.01, "labels": 12, "stored": True}, 12),
        ("yelp-like", {"scale": 0.001, "stored": True}, 100),
        ("products-like", {"labels": 7}, 7),
    ],
)
def test_many_labels_are_not_stored(tmp_path, name, options, labels):
    message = rf"`labels` must be None .* on disk \(got {labels}\); .*`stored=False` or a smaller `scale`"
    with pytest.raises(ValueError, match=message):
        load(name, **options, root=tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_stored_graph_is_made_once(tmp_path, monkeypatch):
    options = {"scale": 0.01, "stored": True, "root": tmp_path, "progress": False}
    first = load("arxiv-like", **options)
    assert "edge_index" not in first and first.rowptr[-1] == len(first.col) == 2 * 11_663
    monkeypatch.setattr(generated, "write_stream", lambda *a, **o: pytest.fail("generated a second time"))
    again = load("arxiv-like", **options)
    assert torch.equal(first.col, again.col)


def test_each_set_of_parameters_has_its_own_folder(tmp_path):
    for change in ({}, {"seed": 1}, {"dtype": "float16"}, {"scale": 0.02}, {"noise": 1.0}, {"homophily": 0.2}):
        load("arxiv-like", **({"scale": 0.01, "stored": True, "root": tmp_path, "progress": False} | change))
    assert len(list((tmp_path / "streams").iterdir())) == 6


def test_another_process_was_first(tmp_path, monkeypatch):
    write = generated.write_stream

    def overtaken(folder, *arguments, **options):
        write(folder, *arguments, **options)
        raise FileExistsError(folder)

    monkeypatch.setattr(generated, "write_stream", overtaken)
    assert load("arxiv-like", scale=0.01, stored=True, root=tmp_path, progress=False).num_nodes == 1_694


def test_large_graphs_need_disk(tmp_path, monkeypatch):
    monkeypatch.setattr("gossamer.datasets.folders.free_bytes", lambda folder: 10**9)
    monkeypatch.setattr(generated, "free_bytes", lambda folder: 10**9)
    with pytest.raises(
        DatasetUnavailable, match=r"needs 6\d,\d{3},\d{3},\d{3} bytes of disk and 1,000,000,000 are free"
    ):
        load("papers-like", root=tmp_path)
    assert list(tmp_path.iterdir()) == []
    ready = {info.name: info.ready for info in available()}
    assert ready["arxiv-like"] and ready["reddit-like"] and not ready["products-like"] and not ready["papers-like"]


@pytest.mark.parametrize("scale", [0, -0.5, 1.5])
def test_scale_is_checked(scale):
    with pytest.raises(ValueError, match=rf"`scale` must lie between .* and 1 \(got {scale}\)"):
        load("arxiv-like", scale=scale)


def test_powerlaw_by_name():
    data = load("powerlaw", num_nodes=100, num_edges=200, num_features=3, num_classes=2, seed=1)
    assert (data.num_nodes, data.num_edges, data.num_classes) == (100, 400, 2)
    with pytest.raises(TypeError, match="'powerlaw' needs the option 'num_classes'; its options are: confusion"):
        load("powerlaw", num_nodes=100, num_edges=200, num_features=3)
    with pytest.raises(TypeError, match="takes no option 'colour'"):
        load("powerlaw", num_nodes=100, num_edges=200, num_features=3, num_classes=2, colour=1)
