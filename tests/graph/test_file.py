"""Graphs on disk: what is loaded is what was saved, read or mapped, and a bad file says so."""

from __future__ import annotations

import errno
import json
import os
import pathlib
import random

import pytest
import safetensors.torch
import torch

from gossamer import Graph, ops
from gossamer.checksums import of_contents
from gossamer.graph import file as graph_file


def make(nnz: int = 50, weighted: bool = True, duplicates: str = "keep") -> Graph:
    draw = torch.Generator().manual_seed(nnz)
    edge_index = torch.randint(0, 8, (2, nnz), generator=draw)
    weight = torch.rand(nnz, generator=draw) if weighted else None
    return Graph.from_edge_index(edge_index, (9, 8), weight, duplicates)


def same(a: Graph, b: Graph) -> bool:
    pairs = [(getattr(a, name), getattr(b, name)) for name in ("rowptr", "col", "value", "perm")]
    return a.num_src == b.num_src and all(x is y if x is None or y is None else torch.equal(x, y) for x, y in pairs)


@pytest.fixture
def path(tmp_path) -> pathlib.Path:
    return tmp_path / "a graph.safetensors"


@pytest.mark.parametrize("weighted", [True, False])
@pytest.mark.parametrize("duplicates", ["keep", "sum"])
@pytest.mark.parametrize("nnz", [0, 1, 51])
@pytest.mark.parametrize("mmap", [False, True])
def test_round_trip(path, nnz, weighted, duplicates, mmap):
    graph = make(nnz, weighted, duplicates)
    graph.save(path)
    loaded = Graph.load(path, mmap=mmap)
    assert same(loaded, graph)
    assert (loaded.value is None, loaded.perm is None) == (graph.value is None, duplicates != "keep")
    assert os.listdir(path.parent) == [path.name]


def test_a_path_may_be_a_string_and_a_loaded_graph_works(path):
    graph = make()
    graph.save(str(path))
    loaded = Graph.load(str(path))
    x = torch.randn(9, 5, requires_grad=True)
    out = ops.spmm(loaded, x)
    assert torch.equal(out, ops.spmm(graph, x))
    out.sum().backward()
    assert torch.equal(loaded.sort_edges(torch.arange(50)), graph.perm)


def test_a_mapped_graph_may_be_saved_over_its_own_file(path):
    graph = make()
    graph.save(path)
    loaded = Graph.load(path, mmap=True)
    loaded.with_value(loaded.value * 2).save(path)
    assert same(loaded, graph)  # still mapped from the old file, which lives on until it is let go
    assert torch.equal(Graph.load(path).value, graph.value * 2)


def test_what_becomes_of_the_file_does_not_matter_to_a_loaded_graph(path):
    """A process that maps a file which is cut off is killed; ids that are written into it are never checked."""
    graph = make(200_000)
    graph.save(path)
    loaded = Graph.load(path)
    with open(path, "r+b") as file:
        file.seek(1000)
        file.write(b"\xff" * 1_000_000)
        file.truncate(1000)
    assert same(loaded, graph)
    assert torch.equal(ops.spmm(loaded, torch.ones(9, 2)), ops.spmm(graph, torch.ones(9, 2)))


@pytest.mark.skipif(not os.path.exists("/proc/self/maps"), reason="needs Linux's list of mappings")
@pytest.mark.parametrize("mmap", [False, True])
def test_tensors_lie_in_the_file_if_it_is_mapped(path, mmap):
    make(200_000).save(path)
    graph = Graph.load(path, mmap=mmap)
    with open("/proc/self/maps") as maps:
        spans = [line.split()[0].split("-") for line in maps if line.rstrip().endswith(str(path))]
    for name in ("rowptr", "col", "value", "perm"):
        address = getattr(graph, name).data_ptr()
        assert any(int(low, 16) <= address < int(high, 16) for low, high in spans) == mmap, name


@pytest.mark.skipif(not os.path.exists("/proc/self/statm"), reason="needs Linux's page counts")
def test_mapping_takes_no_memory_of_its_own(path):
    """Anonymous pages, resident minus file-backed, stay: 40 MB of file would show."""
    make(2_500_000).save(path)

    def anonymous_bytes() -> int:
        _, resident, shared, *_ = map(int, pathlib.Path("/proc/self/statm").read_text().split())
        return (resident - shared) * os.sysconf("SC_PAGE_SIZE")

    before = anonymous_bytes()
    graph = Graph.load(path, mmap=True)
    grown = anonymous_bytes() - before
    assert path.stat().st_size > 40e6
    assert grown < 10e6
    assert graph.num_edges == 2_500_000


FOREIGN = {
    "empty": lambda path: path.write_bytes(b""),
    "text": lambda path: path.write_text("source,destination\n0,1\n" * 50),
    "pickle": lambda path: torch.save({"rowptr": torch.zeros(3)}, path),
    "huge header": lambda path: path.write_bytes(b"\xff" * 64),
    "folder": lambda path: path.mkdir(),
}


@pytest.mark.parametrize("name", FOREIGN)
def test_file_of_another_format(path, name):
    FOREIGN[name](path)
    error = FileNotFoundError if name == "folder" else ValueError
    with pytest.raises(error, match=r"`path` must be a file written by Graph\.save"):
        Graph.load(path)


def test_no_file(path):
    with pytest.raises(FileNotFoundError, match=r"`path` must be a file written by Graph\.save.*a graph\.safetensors"):
        Graph.load(path)


@pytest.mark.parametrize("kept", [0, 7, 8, 100, 0.5, -8, -1])
def test_truncated(path, kept):
    make().save(path)
    whole = path.read_bytes()
    path.write_bytes(whole[: int(len(whole) * kept) if isinstance(kept, float) else kept])
    with pytest.raises(ValueError, match=r"`path` must be a file written by Graph\.save; .* is truncated or not safe"):
        Graph.load(path)


def rewrite(path: pathlib.Path, change_tensors=lambda tensors: None, **metadata: str | None) -> None:
    """The file again, with other contents or metadata."""
    tensors = {name: t.clone() for name, t in safetensors.torch.load_file(path).items()}
    change_tensors(tensors)
    facts = {"format": "gossamer.graph.2", "num_src": "9"} | metadata
    facts = {"checksum": of_contents(tensors, facts["num_src"] or "")} | facts
    safetensors.torch.save_file(tensors, path, {name: fact for name, fact in facts.items() if fact is not None})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": None}, r"of the format gossamer\.graph\.2 .*has the format None"),
        ({"format": "gossamer.graph.0"}, r"of the format gossamer\.graph\.2 .*has the format 'gossamer\.graph\.0'"),
        ({"format": "gossamer.graph.3"}, r"has gossamer\.graph\.3, written by a newer gossamer\); update gossamer"),
        ({"checksum": None}, r"is damaged: its contents do not have their checksum; save the graph again"),
        ({"checksum": "00000000"}, r"is damaged: its contents do not have their checksum"),
        ({"change_tensors": lambda t: t.pop("col")}, r"must hold rowptr and col.*holds \['perm', 'rowptr', 'value'\]"),
        ({"num_src": None}, r"`path` must name the number of sources.*None"),
        ({"num_src": "-9"}, r"`path` must name the number of sources.*'-9'"),
        ({"num_src": "9.0"}, r"`path` must name the number of sources.*'9\.0'"),
        ({"num_src": str(2**31)}, r"`num_src` must lie between 0 and 2147483647"),
        ({"num_src": "3"}, r"`col` must hold ids from 0 to 2"),
        ({"change_tensors": lambda t: t["rowptr"].neg_()}, r"`rowptr` must ascend"),
        ({"change_tensors": lambda t: t["rowptr"][3:].add_(1)}, r"`rowptr` must ascend"),
        ({"change_tensors": lambda t: t["col"].neg_()}, r"`col` must hold ids"),
        ({"change_tensors": lambda t: t.update(col=t["col"].long())}, r"`col` must be int32"),
        ({"change_tensors": lambda t: t.update(value=t["value"].double())}, r"`path` must hold float32 weights"),
        ({"change_tensors": lambda t: t.update(value=t["value"][1:].clone())}, r"`value` must have the shape \[50\]"),
        ({"change_tensors": lambda t: t.update(perm=t["perm"][1:].clone())}, r"`perm` must have the shape \[50\]"),
        ({"change_tensors": lambda t: t.update(perm=t["perm"].int())}, r"`perm` must be int64"),
        ({"change_tensors": lambda t: t["perm"].neg_()}, r"`perm` must hold ids from 0 to 49"),
        ({"change_tensors": lambda t: t["perm"].zero_()}, r"`perm` must hold each position once"),
    ],
)
def test_other_contents(path, change, message):
    make().save(path)
    rewrite(path)
    assert same(Graph.load(path), make())  # what `rewrite` does is not itself the mistake
    rewrite(path, **change)
    with pytest.raises((ValueError, TypeError, IndexError), match=message):
        Graph.load(path)


@pytest.mark.parametrize("mmap", [False, True])
def test_every_flipped_bit_is_refused(path, mmap):
    make().save(path)
    whole = path.read_bytes()
    for bit in random.Random(0).sample(range(8 * len(whole)), 500):
        flipped = bytearray(whole)
        flipped[bit // 8] ^= 1 << bit % 8
        path.write_bytes(flipped)
        with pytest.raises((ValueError, TypeError, IndexError)):
            Graph.load(path, mmap=mmap)


def test_a_file_of_format_1_had_no_checksum(path):
    make().save(path)
    rewrite(path, format="gossamer.graph.1", checksum=None)
    assert same(Graph.load(path), make())


def test_the_file_is_plain_safetensors(path):
    make().save(path)
    raw = path.read_bytes()
    header = json.loads(raw[8 : 8 + int.from_bytes(raw[:8], "little")])
    metadata = header["__metadata__"]
    assert metadata == {"format": "gossamer.graph.2", "num_src": "9", "checksum": metadata["checksum"]}
    assert {name: fact["dtype"] for name, fact in header.items() if name != "__metadata__"} == {
        "rowptr": "I64",
        "col": "I32",
        "value": "F32",
        "perm": "I64",
    }


def test_no_folder(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"`path` must lie in an existing folder.*missing\); create it"):
        make().save(tmp_path / "missing" / "graph.safetensors")
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("step", ["save_file", "replace", "fsync"])
def test_a_failing_write_leaves_the_old_file(path, monkeypatch, step):
    old = make()
    old.save(path)

    def full(*args, **kwargs):
        if step == "save_file":
            pathlib.Path(args[1]).write_bytes(b"half a fi")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(graph_file if step == "save_file" else os, step, full)
    with pytest.raises(OSError, match="No space left"):
        make(7).save(path)
    monkeypatch.undo()
    assert os.listdir(path.parent) == [path.name]
    assert same(Graph.load(path), old)
