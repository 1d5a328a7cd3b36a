from __future__ import annotations

import io
import json
import random
import zipfile

import numpy as np
import pytest

from gossamer.datasets import BadDatasetFile, load
from gossamer.datasets import npz as npz_files
from gossamer.datasets.npz import Npz, read_meta


def test_shapes_come_from_headers(node_file):
    npz = Npz(node_file())
    assert npz.shape("x") == (6, 2) and npz.shape("meta") == () and npz.length("y") == 6
    assert "x" in npz and "z" not in npz


@pytest.mark.parametrize(
    "content", [b"", b"PK\x03\x04", b"not an archive at all", b"\x93NUMPY\x01\x00"], ids=["empty", "zip", "text", "npy"]
)
def test_files_of_another_format(tmp_path, content):
    (tmp_path / "f.npz").write_bytes(content)
    with pytest.raises(BadDatasetFile, match=rf"f.npz must be an .npz archive \({len(content)} bytes.*Remedy"):
        Npz(tmp_path / "f.npz")


def test_no_file(tmp_path):
    with pytest.raises(BadDatasetFile, match="no file found"):
        Npz(tmp_path / "f.npz")


def test_truncated_files(node_file):
    path = node_file()
    content = path.read_bytes()
    for length in range(0, len(content), 97):
        path.write_bytes(content[:length])
        with pytest.raises(BadDatasetFile, match="Remedy"):
            load("local:ring")


def test_flipped_bytes_give_a_graph_or_an_error_of_ours(node_file):
    path = node_file()
    content, rng = path.read_bytes(), random.Random(0)
    for _ in range(300):
        damaged = bytearray(content)
        damaged[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
        path.write_bytes(damaged)
        try:
            load("local:ring")
        except BadDatasetFile as error:
            assert "ring.npz" in str(error) and "Remedy" in str(error)


def test_python_objects_are_not_unpickled(node_file):
    node_file(y=np.array([{"any": "object"}] * 6, dtype=object))
    with pytest.raises(BadDatasetFile, match="`y` must be a readable array without Python objects"):
        load("ring")


@pytest.mark.parametrize(
    ("pointers", "message"),
    [
        ([0, 2, 1, 4], "never descend .found a descent after entry 1"),
        ([1, 2, 3, 4], "offsets from 0 to 4 .found 1 to 4"),
        ([0, 1, 2, 3], "offsets from 0 to 4 .found 0 to 3"),
        ([], "offsets from 0 to 4 .found no entries"),
        ([0.0, 4.0], r"integers of shape \[any\] .found float64 of shape \[2\]"),
        ([[0, 4]], r"integers of shape \[any\] .found int64 of shape \[1, 2\]"),
    ],
)
def test_offsets(tmp_path, pointers, message):
    np.savez(tmp_path / "f.npz", ptr=np.array(pointers, dtype=None if pointers else np.int64))
    with pytest.raises(BadDatasetFile, match=message):
        Npz(tmp_path / "f.npz").offsets("ptr", end=4)


@pytest.mark.parametrize(
    "meta", ["no json", "[]", "{}", json.dumps({"task": 3}), json.dumps({"task": "a", "classes": "b"})]
)
def test_meta_that_says_nothing(node_file, meta):
    with pytest.raises(BadDatasetFile, match="`meta` must be"):
        read_meta(Npz(node_file(meta=meta)))


def test_values_too_large_for_float32(node_file):
    node_file(x=np.full((6, 2), 1e300))
    with pytest.raises(BadDatasetFile, match=r"`x` must be finite numbers .found 12"):
        load("ring")


# Sizes ----------------------------------------------------------------------------------------------------------------


def test_a_header_that_claims_more_than_there_is(tmp_path, node_file):
    """Nothing is allocated for it."""
    path = node_file()
    with zipfile.ZipFile(path, "a") as archive:
        member = io.BytesIO()
        np.lib.format.write_array_header_1_0(member, {"shape": (10**12, 4), "fortran_order": False, "descr": "<f4"})
        archive.writestr("x_data.npy", member.getvalue() + b"\0" * 64)
    message = r"`x_data` must be 16,000,000,000,000 bytes, as its shape .* says \(found 64\)"
    for read in (
        lambda npz: npz.reals("x_data", (None, None)),
        lambda npz: npz["x_data"],
        lambda npz: npz.shape("x_data"),
    ):
        with pytest.raises(BadDatasetFile, match=message):
            read(Npz(path))


@pytest.mark.parametrize(
    "sizes", [{"x": np.zeros((6, 10_000), np.uint8)}, {"x": None, "x_shape": np.array([6, 10**10])}]
)
def test_what_unpacks_to_more_than_the_memory(node_file, monkeypatch, sizes):
    """Zeros are packed a thousand to one, and uint8 becomes float32."""
    sparse = {"x_indptr": np.zeros(7, np.int64), "x_indices": np.zeros(0, np.int64), "x_data": np.zeros(0, np.float32)}
    node_file(**(sizes if sizes["x"] is not None else sizes | sparse))
    monkeypatch.setattr(npz_files, "available_memory", lambda: 100_000)
    with pytest.raises(
        BadDatasetFile, match=r"`x(_shape)?` needs [\d,]+ bytes of memory, and 100,000 are available.*Remedy"
    ):
        load("ring")


def test_counts_that_would_fill_the_memory(graph_file):
    graph_file(node_ptr=np.array([0, 2, 5, 10**12]))
    with pytest.raises(BadDatasetFile, match=r"`node_ptr` needs 256,000,000,000,000 bytes of memory"):
        load("three")
    graph_file(node_type=np.array([0, 1, 2, 3, 4, 10**12]))
    with pytest.raises(BadDatasetFile, match=r"`node_type` needs [\d,]+ bytes of memory"):
        load("three")


def test_the_memory_of_this_machine_is_known():
    assert 10**7 < npz_files.available_memory() < 10**15
