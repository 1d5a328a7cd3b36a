"""Small files to load, no network, and no trace of the caches and folders of this machine."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gossamer.datasets.pyg_data import make_data

make_data()  # imports PyG once, without the warnings that would fail the tests which import it

DATA_FOLDER = os.environ.get("GOSSAMER_DATA")


@pytest.fixture(autouse=True)
def _isolated(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("GOSSAMER_DATA", raising=False)
    monkeypatch.setenv("GOSSAMER_CACHE", str(tmp_path / "cache"))

    def refuse(*arguments: Any, **options: Any) -> None:
        raise OSError("the tests have no network")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)


@pytest.fixture
def real_data(monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of real graphs, for the tests that need it."""
    if not DATA_FOLDER:
        pytest.skip("GOSSAMER_DATA is not set")
    monkeypatch.setenv("GOSSAMER_DATA", DATA_FOLDER)
    return Path(DATA_FOLDER)


Writer = Callable[..., Path]


@pytest.fixture
def node_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Writer:
    """Writes a node-level file of a ring of six nodes; arguments replace arrays, None leaves one out."""
    ring = np.arange(6)
    arrays: dict[str, Any] = {
        "meta": json.dumps({"name": "ring", "task": "node multiclass", "classes": 2, "split": "one"}),
        "indptr": np.arange(0, 13, 2, dtype=np.int32),
        "indices": np.sort(np.stack([(ring - 1) % 6, (ring + 1) % 6], 1), axis=1).reshape(-1).astype(np.int32),
        "x": np.arange(12, dtype=np.uint8).reshape(6, 2),
        "y": np.array([0, 1, 0, 1, 0, -1], np.int16),
        "train_mask": ring < 2,
        "val_mask": ring == 2,
        "test_mask": (ring == 3) | (ring == 4),
    }
    return _writer(tmp_path / "data", monkeypatch, "ring", arrays)


@pytest.fixture
def graph_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Writer:
    """Writes a graph-level file: an edge, a path of three nodes, a lone node."""
    arrays: dict[str, Any] = {
        "meta": json.dumps({"name": "three", "task": "graph classification", "classes": 2, "split": "none"}),
        "node_ptr": np.array([0, 2, 5, 6], np.int32),
        "edge_ptr": np.array([0, 2, 6, 6], np.int32),
        "edge_index": np.array([[0, 1, 0, 1, 1, 2], [1, 0, 1, 0, 2, 1]], np.uint8),
        "y": np.array([0, 1, 0], np.int16),
    }
    return _writer(tmp_path / "data", monkeypatch, "three", arrays)


def _writer(folder: Path, monkeypatch: pytest.MonkeyPatch, name: str, arrays: dict[str, Any]) -> Writer:
    folder.mkdir(exist_ok=True)
    monkeypatch.setenv("GOSSAMER_DATA", str(folder))

    def write(name: str = name, **changes: Any) -> Path:
        kept = {key: value for key, value in (arrays | changes).items() if value is not None}
        np.savez_compressed(folder / f"{name}.npz", **kept)
        return folder / f"{name}.npz"

    return write
