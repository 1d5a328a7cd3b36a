from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

import pytest
import torch

from gossamer.datasets import (
    BadDatasetFile,
    BlockModel,
    DatasetUnavailable,
    edge_index,
    open_stream,
    stream,
    write_stream,
)
from gossamer.datasets.powerlaw import generate

MODEL = BlockModel(num_nodes=1500, num_edges=20_000, num_features=6, num_classes=4)


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    return write_stream(tmp_path_factory.mktemp("streams") / "small", MODEL, chunk=3000, progress=False)


def test_the_graph_is_symmetric_sorted_and_without_loops(written):
    data = open_stream(written)
    row, col = edges = edge_index(data)
    assert data.num_nodes == 1500 and edges.shape == (2, 40_000) and edges.dtype == torch.int64
    assert data.rowptr.dtype == torch.int64 and data.col.dtype == torch.int32
    assert not (row == col).any()
    key, mirrored = row * 1500 + col, col * 1500 + row
    assert (key.diff() >= 0).all() and torch.equal(key, mirrored.sort().values)
    assert float((data.y[row] == data.y[col]).float().mean()) == pytest.approx(MODEL.homophily, abs=0.02)


def test_features_labels_and_masks_are_those_of_the_graph_in_memory(written):
    data, same = open_stream(written), generate(MODEL)
    for key in ("x", "y", "train_mask", "val_mask", "test_mask"):
        assert torch.equal(data[key], same[key])


def test_a_chunk_can_be_drawn_again(written, tmp_path):
    again = write_stream(tmp_path / "again", MODEL, chunk=3000, progress=False)
    other = write_stream(tmp_path / "other", MODEL, seed=1, chunk=3000, progress=False)
    for path in sorted(written.iterdir()):
        assert path.read_bytes() == (again / path.name).read_bytes()
    assert (written / "indices.npy").read_bytes() != (other / "indices.npy").read_bytes()


def test_directed_and_half_precision(tmp_path):
    model = BlockModel(1500, 20_000, 6, 4, directed=True, split=(0.01, 0.01, 0.01))
    data = open_stream(write_stream(tmp_path / "d", model, dtype="float16", progress=False))
    assert len(data.col) == 20_000 and data.x.dtype == torch.float16
    assert (data.train_mask | data.val_mask | data.test_mask).float().mean() < 0.1
    with pytest.raises(ValueError, match=r"`dtype` must be one of .*float16.*got 'int8'"):
        write_stream(tmp_path / "e", model, dtype="int8")


def test_binary_labels_are_for_graphs_in_memory(tmp_path):
    model = BlockModel(1500, 20_000, 6, 4, labels=3)
    with pytest.raises(
        ValueError, match=r"`labels` must be None .* on disk \(got 3\); make it in memory, with `stored=F"
    ):
        write_stream(tmp_path / "s", model, progress=False)
    assert list(tmp_path.iterdir()) == []
    assert "labels" not in stream.describe(MODEL, seed=0)["model"], "folders of earlier versions keep their names"


def test_progress_goes_to_standard_error(tmp_path, capsys):
    write_stream(tmp_path / "p", MODEL, progress=True)
    output = capsys.readouterr()
    assert output.out == "" and "edges" in output.err


def test_an_existing_folder_is_left_alone(written):
    before = (written / "meta.json").stat()
    with pytest.raises(FileExistsError, match=r"exists already. Remedy"):
        write_stream(written, MODEL)
    assert (written / "meta.json").stat() == before


def test_a_failure_leaves_nothing(tmp_path, monkeypatch):
    def fail(*arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr(stream, "build_csr", fail)
    with pytest.raises(KeyboardInterrupt):
        write_stream(tmp_path / "s", MODEL, progress=False)
    assert list(tmp_path.iterdir()) == []


def test_killed_in_the_middle_nothing_loads(tmp_path):
    script = """
import sys, time
from gossamer.datasets import BlockModel, stream
stream.build_csr = lambda *arguments: (print("building", flush=True), time.sleep(60))
stream.write_stream(sys.argv[1], BlockModel(1500, 20_000, 6, 4), progress=False)
"""
    folder = tmp_path / "s"
    with subprocess.Popen([sys.executable, "-c", script, str(folder)], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stdout.readline() == b"building\n"
        process.send_signal(signal.SIGKILL)
    assert not folder.exists()
    assert [path.suffix for path in tmp_path.iterdir()] == [".partial"]
    with pytest.raises(BadDatasetFile, match=r"must be a folder with a meta.json"):
        open_stream(folder)
    with pytest.raises(BadDatasetFile, match=r"must be a folder with a meta.json"):
        open_stream(next(tmp_path.iterdir()))
    assert open_stream(write_stream(folder, MODEL, progress=False)).num_nodes == 1500


def test_too_little_disk_is_said_before_anything_is_written(tmp_path, monkeypatch):
    (tmp_path / ".old.1.partial").mkdir()
    monkeypatch.setattr("gossamer.datasets.folders.free_bytes", lambda folder: 1000)
    with pytest.raises(
        DatasetUnavailable, match=r"needs [\d,]+ bytes .* 1,000 are free; nothing was written"
    ) as caught:
        write_stream(tmp_path / "s", MODEL)
    for word in ("scale=", "root=", "float16", ".old.1.partial"):
        assert word in str(caught.value)
    assert [path.name for path in tmp_path.iterdir()] == [".old.1.partial"]


def test_the_size_is_known_before(written):
    meta = json.loads((written / "meta.json").read_text())
    used = sum(path.stat().st_size for path in written.glob("*.npy"))
    assert used <= stream.stream_bytes(meta) <= used + 7 * 4096


def test_memory_is_bounded_by_the_nodes_and_the_chunk(tmp_path):
    """Five times the edges need no more memory than the files they are mapped to, in a fresh process."""
    script = """
import pathlib, resource, sys
from gossamer.datasets import BlockModel, write_stream
for edges in (400_000, 2_000_000):
    folder = write_stream(f"{sys.argv[1]}/{edges}", BlockModel(20_000, edges, 2, 4), chunk=2**17, progress=False)
    mapped = sum(path.stat().st_size for path in folder.iterdir())
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - mapped)
"""
    command = [sys.executable, "-c", script, str(tmp_path)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    output = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120, env=environment)
    few, many = map(int, output.stdout.split())
    assert many < few + 20e6  # the 3.2 million more directed edges are 26 MB even as pairs of int32
