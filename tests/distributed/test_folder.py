"""Parts on disk: what is read is what was cut; nothing damaged or foreign is read, and nothing is overwritten."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import gossamer as gs
from gossamer import distributed
from gossamer.distributed import partition, read
from gossamer.distributed import write as writing
from gossamer.distributed.assign import assign
from support import graphs
from support.parts import differences

NODES, PARTS = 120, 6


def inputs(symmetric: bool = False, weighted: bool = False, codec: gs.Codec | None = None) -> dict[str, Any]:
    rng = torch.Generator().manual_seed(2)
    graph = graphs.random_graph(NODES, NODES, 700, weighted)
    if symmetric:
        edges = torch.cat([graph.edge_index, graph.edge_index.flip(0)], 1)
        graph = gs.Graph.from_edge_index(edges, NODES, duplicates="sum").with_value(None)
    x: Any = torch.randn(NODES, 6, generator=rng)
    train, val = (torch.rand(NODES, generator=rng) < 0.4 for _ in range(2))
    return {
        "graph": graph,
        "x": x if codec is None else gs.compress(x, codec),
        "y": torch.randint(0, 5, (NODES,), generator=rng),
        "train_mask": train,
        "val_mask": val,
    }


def write(folder: Path, **changes: Any) -> distributed.Partition:
    settings = {"parts": PARTS, "method": "stream", "out": folder, "progress": False}
    return partition(**(inputs() | settings | changes))


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("parts") / "parts"
    write(folder)
    return folder


@pytest.fixture
def folder(written: Path, tmp_path: Path) -> Path:
    """A copy to damage."""
    return Path(shutil.copytree(written, tmp_path / "parts"))


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"symmetric": True},
        {"weighted": True},
        {"codec": gs.Scalar(bits=1)},
        {"codec": gs.Scalar(bits=4)},
        {"codec": gs.Product(width=3, length=8)},
    ],
    ids=str,
)
@pytest.mark.parametrize("ranks", [1, 4, PARTS])
def test_what_is_read_is_what_was_cut(tmp_path, given, ranks):
    data = inputs(**given)
    found = write(tmp_path / "parts", **data)
    graph, nodes = data["graph"], {name: rows for name, rows in data.items() if name != "graph"}
    assignment = assign(graph, PARTS, "stream")
    bounds = distributed.groups(PARTS, ranks)
    rank_of = torch.searchsorted(torch.tensor(bounds), assignment, right=True) - 1
    for rank, expected in enumerate(distributed.cut(graph, rank_of, **nodes)):
        part = read(tmp_path / "parts", rank, ranks)
        assert differences(part, expected) == ["fingerprint"] and part.fingerprint == found.manifest.fingerprint
        assert part.symmetric == given.get("symmetric", False) and (part.t_col is part.col) == part.symmetric
    counts = found.counts(ranks)
    assert sum(each.nodes for each in counts) == NODES and sum(each.edges for each in counts) == graph.num_edges
    for each, part in zip(counts, (read(tmp_path / "parts", rank, ranks) for rank in range(ranks)), strict=True):
        assert (each.halo, each.sent) == (part.num_halo, part.send_row.numel())
        assert (each.t_halo, each.t_sent) == (part.t_halo_ids.numel(), part.t_send_row.numel())


def test_the_same_input_gives_the_same_files(written, tmp_path):
    write(tmp_path / "again")
    names = sorted(path.name for path in written.iterdir())
    assert names == ["manifest.json", *(f"part-00{p}.safetensors" for p in range(PARTS))]
    assert all((written / name).read_bytes() == (tmp_path / "again" / name).read_bytes() for name in names)


def test_a_rank_reads_its_own_files_alone(folder):
    for p in (0, 1, 4, 5):
        (folder / f"part-00{p}.safetensors").unlink()
    assert read(folder, 1, 3).num_parts == 3
    with pytest.raises(FileNotFoundError, match=r"part-000.*is missing; copy it.*rank 0 of 3 needs.*part-001"):
        read(folder, 0, 3)


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


def flip_a_bit(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


def edit(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def replace_by_another(path: Path) -> None:
    other = path.parent / "other"
    write(other, x=inputs()["x"] + 1)
    (other / path.name).rename(path)


def another_number(path: Path) -> None:
    shutil.copy(path.with_name("part-003.safetensors"), path)


PART = "part-002.safetensors"


@pytest.mark.parametrize(
    ("file", "damage", "message"),
    [
        (PART, truncate, r"part-002.*must have \d+ bytes.*it is truncated"),
        (PART, flip_a_bit, r"part-002.*the checksum.*it is damaged; copy it again"),
        (PART, lambda path: path.write_bytes(b""), r"part-002.*got 0.*truncated"),
        (PART, replace_by_another, r"part-002.*must be part 2 of the partition.*copy the whole folder again"),
        (PART, another_number, r"part-002.*must be part 2 of.*it is part 3"),
        (PART, lambda path: save_file({"a": torch.zeros(1)}, path), r"must be of the format gossamer.parts.1.*None"),
        ("manifest.json", lambda path: path.write_text("{"), "manifest.json is damaged"),
        ("manifest.json", lambda path: path.write_text("[]"), "manifest.json is damaged.*no object"),
        ("manifest.json", lambda path: edit(path, parts=[{}]), "manifest.json is damaged"),
        ("manifest.json", lambda path: edit(path, format="gossamer.parts.0"), "written by an older gossamer"),
        ("manifest.json", lambda path: edit(path, format="gossamer.parts.2"), "newer gossamer.*update gossamer"),
        ("manifest.json", lambda path: edit(path, format="zip"), "must be of the format gossamer.parts.1.*'zip'"),
    ],
)
def test_damaged_and_foreign_files_are_refused(folder, file: str, damage: Callable[[Path], Any], message):
    damage(folder / file)
    with pytest.raises(gs.distributed.BadPartFile, match=message):
        read(folder, 2, PARTS)


@pytest.mark.parametrize(
    ("rank", "ranks", "message"),
    [
        (0, PARTS + 1, r"`ranks` must lie between 1 and the number of parts, 6.*got 7.*into more parts"),
        (0, 0, "`ranks` must lie between 1"),
        (3, 3, r"`rank` must lie between 0 and 2 \(got 3\)"),
    ],
)
def test_wrong_ranks_are_refused(written, rank, ranks, message):
    with pytest.raises(ValueError, match=message):
        read(written, rank, ranks)


def test_a_folder_without_parts_is_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"one written by `gossamer partition` \(there is no manifest.json"):
        read(tmp_path)


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"graph": graphs.random_graph(NODES, NODES, 700, seed=9)}, "parts of another graph"),
        ({"x": torch.zeros(NODES, 6)}, "parts with other x"),
        ({"x": None}, "parts with other x"),
        ({"parts": 5}, "parts with other parts: parts 6"),
        ({"seed": 1}, "parts with other seed: seed 0"),
    ],
)
def test_another_partition_is_not_overwritten(folder, changes, message):
    before = contents(folder)
    with pytest.raises(gs.distributed.BadPartFile, match=f"{message}.*nothing was overwritten.*--overwrite"):
        write(folder, **changes)
    assert contents(folder) == before
    found = write(folder, overwrite=True, **changes)
    assert read(folder, 0, 2).fingerprint == found.manifest.fingerprint
    assert len(list(folder.iterdir())) == found.num_parts + 1


def test_parts_without_a_manifest_are_not_overwritten(folder):
    (folder / "manifest.json").unlink()
    with pytest.raises(gs.distributed.BadPartFile, match=r"holds parts without a manifest.*nothing was overwritten"):
        write(folder)


def test_a_file_is_no_folder(tmp_path):
    (tmp_path / "parts").touch()
    with pytest.raises(NotADirectoryError, match="`out` must be a folder"):
        write(tmp_path / "parts")


def test_a_finished_partition_is_not_made_again(folder, monkeypatch):
    before = {path.name: path.stat().st_mtime_ns for path in folder.iterdir()}
    write(folder)
    assert {path.name: path.stat().st_mtime_ns for path in folder.iterdir()} == before


def test_an_interrupted_partition_is_continued(written, tmp_path, monkeypatch):
    folder, tried, whole = tmp_path / "parts", [], writing.to_tensors

    def interrupted(part: distributed.Part, fingerprint: str) -> Any:
        tried.append(part.part)
        if part.part == 3 and tried.count(3) == 1:
            raise KeyboardInterrupt
        return whole(part, fingerprint)

    monkeypatch.setattr(writing, "to_tensors", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write(folder)
    with pytest.raises(gs.distributed.BadPartFile, match=r"is unfinished.*run the same `gossamer partition` again"):
        read(folder, 0, 2)
    with pytest.raises(gs.distributed.BadPartFile, match="nothing was overwritten"):
        write(folder, seed=1)
    flip_a_bit(folder / "part-001.safetensors")  # damaged meanwhile: written again
    write(folder)
    assert tried == [0, 1, 2, 3, 1, 3, 4, 5]
    assert contents(folder) == contents(written)


def test_shared_tensors_are_stored_once(tmp_path):
    write(tmp_path / "parts", **inputs(symmetric=True))
    names = load_file(tmp_path / "parts" / PART)
    assert "col" in names and not any(name.startswith("t_") for name in names)


def test_a_part_is_mapped_not_read(written):
    """Its tensors lie in the file's mapping, which a process shares with others."""
    part = read(written, 2, PARTS, verify=False)
    ranges = [
        line.split()[0].split("-")
        for line in Path("/proc/self/maps").read_text().splitlines()
        if str(written / PART) in line
    ]
    within = [int(low, 16) <= part.x.data_ptr() < int(high, 16) for low, high in ranges]
    assert any(within)
