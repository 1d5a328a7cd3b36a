from __future__ import annotations

from pathlib import Path

from gossamer.datasets import folders


def test_root_then_variable_then_home(monkeypatch, tmp_path):
    assert folders.cache_folder("/some/where") == Path("/some/where")
    assert folders.cache_folder() == tmp_path / "cache"
    monkeypatch.delenv("GOSSAMER_CACHE")
    assert folders.cache_folder() == Path.home() / ".cache" / "gossamer"


def test_free_bytes_of_a_folder_that_is_not_there_yet(tmp_path):
    assert folders.free_bytes(tmp_path / "a" / "b") > 0
    assert not (tmp_path / "a").exists()


def test_a_partial_folder_is_a_hidden_sibling(tmp_path):
    partial = folders.partial_folder(tmp_path / "set")
    assert partial.parent == tmp_path and partial.name.startswith(".set.") and partial.suffix == ".partial"
