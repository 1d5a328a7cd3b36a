from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
import torch

from gossamer.datasets import BadDatasetFile, BlockModel, open_stream, write_stream

MODEL = BlockModel(num_nodes=100, num_edges=300, num_features=3, num_classes=2)


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    return write_stream(tmp_path_factory.mktemp("streams") / "s", MODEL, progress=False)


@pytest.fixture
def folder(original, tmp_path):
    return shutil.copytree(original, tmp_path / "s")


def test_writing_to_a_tensor_does_not_change_the_files(folder):
    data = open_stream(folder)
    data.x.zero_()
    assert open_stream(folder).x.abs().sum() > 0


def test_where_private_mappings_are_refused_a_read_only_one_is_used(folder, monkeypatch):
    load, before = np.load, open_stream(folder)

    def refuse(path, mmap_mode=None, **options):
        if mmap_mode == "c":
            raise OSError(12, "Cannot allocate memory")
        return load(path, mmap_mode=mmap_mode, **options)

    monkeypatch.setattr(np, "load", refuse)
    assert torch.equal(open_stream(folder).x, before.x)


def edit_meta(folder, **changes):
    meta = json.loads((folder / "meta.json").read_text())
    (folder / "meta.json").write_text(json.dumps(meta | changes))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda f: (f / "meta.json").unlink(), "must be a folder with a meta.json"),
        (lambda f: (f / "meta.json").write_text("{"), "is not the description of a stream"),
        (lambda f: (f / "meta.json").write_text("[]"), "is not the description of a stream"),
        (lambda f: edit_meta(f, version=2), "version 1 .got .*2"),
        (lambda f: edit_meta(f, arrays={}), r"must list the arrays \['indices', 'indptr', 'x', 'y'\]"),
        (lambda f: (f / "x.npy").unlink(), "x.npy is missing"),
        (lambda f: (f / "x.npy").write_bytes((f / "x.npy").read_bytes()[:-1]), "x.npy is not a complete .npy file"),
        (lambda f: (f / "y.npy").write_bytes(b""), "y.npy is not a complete .npy file"),
        (lambda f: np.save(f / "y.npy", np.zeros(100, np.int32)), "y.npy must be .*int64.*got .*int32"),
        (lambda f: np.save(f / "indptr.npy", np.zeros(101, np.int64)), "indptr.npy must run from 0 to 600"),
    ],
)
def test_damaged_streams(folder, damage, message):
    damage(folder)
    with pytest.raises(BadDatasetFile, match=message) as caught:
        open_stream(folder)
    assert "Remedy: delete the folder" in str(caught.value)
