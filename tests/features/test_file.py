"""The file of a feature store: plain safetensors, mapped, exact in size; whatever is wrong with it is told."""

from __future__ import annotations

import json
import os
import pathlib
import random

import pytest
import safetensors.torch
import torch

import gossamer as gs
from gossamer.features import file as feature_file


@pytest.fixture
def written(x, path) -> pathlib.Path:
    gs.compress(x, gs.Uniform(bits=4), path, block=50)
    return path


def head_of(path: pathlib.Path) -> tuple[dict, int]:
    raw = path.read_bytes()
    size = 8 + int.from_bytes(raw[:8], "little")
    return json.loads(raw[8:size]), size


def rewrite(path: pathlib.Path, change=lambda head: None, **metadata: str | None) -> None:
    """The file again, with another header."""
    head, size = head_of(path)
    body = path.read_bytes()[size:]
    change(head)
    head["__metadata__"] |= metadata
    head["__metadata__"] = {name: fact for name, fact in head["__metadata__"].items() if fact is not None}
    text = json.dumps(head).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + body)


def test_the_file_is_plain_safetensors(codec, x, path):
    store = gs.compress(x.half(), codec, path, block=50)
    head, size = head_of(path)
    assert size % 64 == 0 and store.nbytes == path.stat().st_size - size  # bytes reported are bytes stored
    facts = head["__metadata__"]
    assert (facts["format"], facts["shape"], facts["block"]) == ("gossamer.features.1", "[137, 21]", "50")
    assert facts["source_dtype"] == '["float16", 2]' and json.loads(facts["codec"])["name"] == type(codec).__name__
    assert len(facts["checksums"]) == 3 * 8
    tensors = safetensors.torch.load_file(path)
    assert [tensors[name].tolist() for name in sorted(tensors)] == [t.tolist() for t in store._tensors]


@pytest.mark.skipif(not os.path.exists("/proc/self/maps"), reason="needs Linux's list of mappings")
def test_tensors_lie_in_the_mapped_file_unless_copied(written):
    store, copied = gs.FeatureStore.open(written), gs.FeatureStore.open(written, mmap=False)
    with open("/proc/self/maps") as maps:
        spans = [line.split()[0].split("-") for line in maps if line.rstrip().endswith(str(written))]

    def is_mapped(tensor):
        return any(int(low, 16) <= tensor.data_ptr() < int(high, 16) for low, high in spans)

    assert all(map(is_mapped, store._tensors)) and not any(map(is_mapped, copied._tensors))
    assert all(tensor.data_ptr() % tensor.element_size() == 0 for tensor in store._tensors)


FOREIGN = {
    "empty": lambda path: path.write_bytes(b""),
    "text": lambda path: path.write_text("0.5,0.1\n" * 50),
    "pickle": lambda path: torch.save({"rows": torch.zeros(3)}, path),
    "huge header": lambda path: path.write_bytes(b"\xff" * 64),
    "zeros": lambda path: path.write_bytes(bytes(4096)),
    "graph": lambda path: gs.Graph.from_edge_index(torch.tensor([[0], [1]]), 2).save(path),
    "safetensors": lambda path: safetensors.torch.save_file({"0.rows": torch.zeros(3)}, path),
}


@pytest.mark.parametrize("name", FOREIGN)
def test_file_of_another_format(path, name):
    FOREIGN[name](path)
    with pytest.raises(gs.BadFeatureFile, match=r"`path` must be a file written by gs\.compress"):
        gs.FeatureStore.open(path)


def test_no_file(path):
    for missing in (path, path.parent):
        with pytest.raises(FileNotFoundError, match=r"`path` must be a file written by gs\.compress .there is no file"):
            gs.FeatureStore.open(missing)


@pytest.mark.parametrize("kept", [0, 7, 8, 100, 0.5, -8, -1])
def test_truncated(written, kept):
    whole = written.read_bytes()
    written.write_bytes(whole[: int(len(whole) * kept) if isinstance(kept, float) else kept])
    with pytest.raises(gs.BadFeatureFile, match="truncated, unfinished or of another kind"):
        gs.FeatureStore.open(written)


def grown(head: dict) -> None:
    head["0.rows"]["shape"] = [2**60, 2**60]


def renamed(head: dict) -> None:
    head["7.rows"] = head.pop("0.rows")


def other_dtype(head: dict) -> None:
    head["1.rows"]["dtype"] = "I32"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": None}, r"of the format gossamer\.features\.1 .*has the format None"),
        ({"format": "gossamer.graph.1"}, r"has the format 'gossamer\.graph\.1'"),
        ({"format": "gossamer.features.2"}, r"written by a newer gossamer\); update gossamer"),
        ({"format": "gossamer.features.x"}, r"has the format 'gossamer\.features\.x'"),
        ({"shape": None}, "does not fit its contents"),
        ({"shape": "[137]"}, r"shape \[137\]"),
        ({"shape": "[136, 21]"}, r"a tensor of rows of the shape .* for 136 of them"),
        ({"shape": "[137, 23]"}, r"bytes of codes, where Uniform\(bits=4.*for 137 x 23"),
        ({"shape": "[-137, 21]"}, r"shape \[-137, 21\]"),
        ({"shape": f"[{2**60}, 21]"}, r"shape \["),
        ({"shape": "[true, 21]"}, r"shape \[true, 21\]"),
        ({"block": "0"}, "blocks of 0 rows"),
        ({"block": "many"}, "does not fit its contents"),
        ({"block": "60000"}, "3 checksums for 1 blocks"),
        ({"dtype": "float64"}, "decoded in float64"),
        ({"source_dtype": '["float16", -2]'}, "source dtype 'float16' of -2 bytes"),
        ({"source_dtype": "3"}, "does not fit its contents"),
        ({"codec": "{}"}, r"codec must be one of .*\(got None\)"),
        ({"codec": '{"name": "Magic"}'}, r"codec must be one of .*Uniform.*got 'Magic'"),
        ({"codec": '{"name": "Codec"}'}, r"does not fit its contents"),
        ({"codec": '{"name": "Uniform", "colour": 3}'}, "Uniform does not have these settings"),
        ({"codec": '{"name": "Uniform", "bits": 3}'}, "`bits` must be 1, 2, 4 or 8"),
        ({"codec": '{"name": "Uniform", "bits": 8}'}, r"bytes of codes, where Uniform\(bits=8"),
        (
            {"codec": '{"name": "Blockwise"}'},
            "`codec` must be one that decodes single rows|bytes of codes, where Blockwise",
        ),
        ({"codec": "import os"}, "does not fit its contents"),
        ({"checksums": ""}, "0 checksums for 3 blocks"),
        ({"checksums": "x" * 24}, "does not fit its contents"),
        ({"tables_checksum": None}, "does not fit its contents"),
        ({"change": grown}, "truncated, unfinished or of another kind"),
        ({"change": renamed}, r"tensors \['1\.rows', '2\.rows', '7\.rows'\]"),
        ({"change": other_dtype}, r"does not fit its contents \(`zero` must be"),
    ],
)
def test_other_contents(written, change, message):
    rewrite(written)
    gs.FeatureStore.open(written, verify=True)  # what `rewrite` does is not itself the mistake
    rewrite(written, **change)
    with pytest.raises(gs.BadFeatureFile, match=message):
        gs.FeatureStore.open(written)


def test_checksums_notice_every_byte(written, x):
    whole = written.read_bytes()
    size = head_of(written)[1]
    offsets = feature_file.read(written).header.offsets()
    for at in (0, 1, 500, len(whole) - size - 1):
        damaged = bytearray(whole)
        damaged[size + at] ^= 16
        written.write_bytes(damaged)
        gs.FeatureStore.open(written)  # which reads no rows
        with pytest.raises(gs.BadFeatureFile, match=r"is damaged: its rows \d+ to \d+ do not have their checksum"):
            gs.FeatureStore.open(written, verify=True)
    damaged = bytearray(whole)
    damaged[size + offsets[0] + 60 * 11] ^= 1  # a code of row 60
    written.write_bytes(damaged)
    with pytest.raises(gs.BadFeatureFile, match="its rows 50 to 99 do not"):
        gs.FeatureStore.open(written, verify=True)


def test_damage_anywhere_is_an_error_or_other_numbers_and_never_a_crash(codec, x, path):
    gs.compress(x, codec, path, block=50)
    whole, size, draw = path.read_bytes(), head_of(path)[1], random.Random(0)
    refused = 0
    for _ in range(100):
        damaged = bytearray(whole)
        for _ in range(draw.choice((1, 2, 5))):
            at = draw.randrange(size if draw.random() < 0.8 else len(whole))
            damaged[at] = draw.choice(b'0123456789-,[]{}":') if draw.random() < 0.5 else draw.randrange(256)
        path.write_bytes(damaged)
        try:
            assert len(gs.FeatureStore.open(path).decode()) > 0
        except gs.BadFeatureFile:
            refused += 1
    assert 50 < refused < 100


def test_a_file_that_is_written_to_while_mapped(written):
    store = gs.FeatureStore.open(written)
    kept = gs.FeatureStore.open(written, mmap=False)
    before = store.decode()
    with open(written, "r+b") as file:
        file.seek(-1, os.SEEK_END)
        file.write(b"!")
    os.utime(written, ns=(1, 1))  # the clock of a file system may be too coarse for a test
    for use in (lambda: store[0], store.decode, lambda: store.codes, lambda: store.save(written)):
        with pytest.raises(gs.FeatureFileChanged, match="was written to while it was mapped; open it again"):
            use()
    assert torch.equal(kept.decode(), before)


def test_a_file_that_is_cut_off_while_mapped(written):
    store = gs.FeatureStore.open(written)
    os.truncate(written, 1000)
    with pytest.raises(gs.FeatureFileChanged, match="and has 1000 bytes instead of"):
        store.decode()


def test_a_file_that_is_replaced_while_mapped(written, x):
    store = gs.FeatureStore.open(written)
    gs.compress(2 * x, gs.Uniform(bits=4), written, block=50)
    with pytest.raises(gs.FeatureFileChanged, match="was replaced by another file since it was opened"):
        store[[0]]
    assert torch.equal(gs.FeatureStore.open(written)[0], 2 * gs.compress(x, gs.Uniform(bits=4))[0])


def test_a_file_that_is_removed_can_be_used_on(written, x):
    store = gs.FeatureStore.open(written)
    written.unlink()
    assert torch.equal(store.decode(), gs.compress(x, gs.Uniform(bits=4)).decode())


def test_files_are_closed(written):
    count = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0
    for _ in range(20):
        gs.FeatureStore.open(written)
    assert not count or len(os.listdir("/proc/self/fd")) <= count + 1


def test_a_failing_save_leaves_the_old_file(written, x, monkeypatch):
    before = written.read_bytes()

    def full(*args, **kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        gs.compress(x, gs.Uniform(bits=1)).save(written)
    monkeypatch.undo()
    assert written.read_bytes() == before and os.listdir(written.parent) == [written.name]


def test_permissions_are_those_of_any_new_file(x, path):
    gs.compress(x, gs.Uniform(bits=1), path)
    other = path.with_name("other")
    other.touch()
    assert path.stat().st_mode == other.stat().st_mode
