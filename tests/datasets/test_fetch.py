from __future__ import annotations

import socket
from pathlib import Path
from urllib.error import URLError

import pytest

from gossamer.datasets import DatasetUnavailable
from gossamer.datasets.fetch import TIMEOUT_SECONDS, fetch


def unreachable(folder: str) -> None:
    (Path(folder) / "half").write_text("of a file")
    raise URLError("no network")


def test_success_leaves_the_whole_folder(tmp_path):
    def read(folder: str) -> str:
        (Path(folder) / "file").write_text("whole")
        return "result"

    assert fetch("cora", "PyG", tmp_path / "pyg" / "cora", read) == "result"
    assert [path.name for path in (tmp_path / "pyg").iterdir()] == ["cora"]


def test_failure_leaves_nothing_and_says_what_to_do(tmp_path):
    with pytest.raises(DatasetUnavailable) as caught:
        fetch("ogbn-arxiv", "the loader", tmp_path / "ogb" / "a", unreachable)
    assert list((tmp_path / "ogb").iterdir()) == []
    for words in ("'ogbn-arxiv'", "the loader", "no network", str(tmp_path / "ogb" / "a"), "load 'arxiv-like'"):
        assert words in str(caught.value)
    assert isinstance(caught.value.__cause__, URLError)


def test_files_placed_by_hand_are_used_and_kept(tmp_path):
    (tmp_path / "placed").write_text("by hand")
    assert fetch("cora", "PyG", tmp_path, lambda folder: (Path(folder) / "placed").read_text()) == "by hand"
    with pytest.raises(DatasetUnavailable):
        fetch("cora", "PyG", tmp_path, unreachable)
    assert (tmp_path / "placed").exists()


def test_the_alternative_is_one_that_is_there(tmp_path, node_file):
    with pytest.raises(DatasetUnavailable, match="load 'digits'"):
        fetch("cora", "PyG", tmp_path / "cora", unreachable)
    node_file("cora")
    with pytest.raises(DatasetUnavailable, match="load 'local:cora', which is in"):
        fetch("cora", "PyG", tmp_path / "cora", unreachable)


@pytest.mark.parametrize("before", [None, 3.0])
def test_sockets_time_out_during_the_attempt_alone(tmp_path, before):
    socket.setdefaulttimeout(before)
    try:
        assert fetch("cora", "PyG", tmp_path / "a", lambda folder: socket.getdefaulttimeout()) == TIMEOUT_SECONDS
        with pytest.raises(DatasetUnavailable):
            fetch("cora", "PyG", tmp_path / "b", unreachable)
        assert socket.getdefaulttimeout() == before
    finally:
        socket.setdefaulttimeout(None)
