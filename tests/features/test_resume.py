"""An interrupted encoding: nothing that looks like a store is left, and it is continued behind the last whole block."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import torch

import gossamer as gs
from gossamer.codecs.rows import RowCodec
from gossamer.features.source import source_of
from gossamer.features.writer import Partial
from support.interrupted import Stop, stopping


def interrupt(x, codec, path, after=60, **settings) -> None:
    with pytest.raises(Stop):
        gs.compress(stopping(x, after), codec, path, block=10, **settings)


def hidden(path, kind):
    return path.with_name(f".{path.name}.{kind}")


def test_an_interruption_leaves_no_file_that_can_be_opened(codec, x, path):
    interrupt(x, codec, path)
    assert sorted(os.listdir(path.parent)) == sorted(p.name for p in (hidden(path, "partial"), hidden(path, "journal")))
    with pytest.raises(gs.BadFeatureFile, match="truncated, unfinished or of another kind"):
        gs.FeatureStore.open(hidden(path, "partial"))


@pytest.mark.parametrize("after", [0, 10, 60, 130])
def test_resuming_gives_the_same_file(codec, x, path, after):
    whole = path.with_name("whole.gsf")
    gs.compress(x, codec, whole, block=10)
    interrupt(x, codec, path, after)
    source, begun = source_of(x), []
    pieces = source.pieces
    source.pieces = lambda start, block: begun.append(start) or pieces(start, block)
    store = gs.compress(source, codec, path, block=10, resume=True)
    again = [0] if after and isinstance(codec, RowCodec) and getattr(codec, "refine", True) else []
    assert begun == [*again, after]  # blocks before are read again for means over all rows, and for nothing else
    assert path.read_bytes() == whole.read_bytes()
    assert store.shape == x.shape and sorted(os.listdir(path.parent)) == [path.name, whole.name]


def test_interrupted_twice(codec, x, path):
    interrupt(x, codec, path, 30)
    interrupt(x, codec, path, 100, resume=True)
    store = gs.compress(x, codec, path, block=10, resume=True)
    assert torch.equal(store.decode(), gs.compress(x, codec).decode())


def test_without_resume_everything_is_encoded_again(x, path):
    interrupt(x, gs.Uniform(bits=4), path)
    store = gs.compress(2 * x, gs.Uniform(bits=8), path, block=20)
    assert torch.equal(store.decode(), gs.compress(2 * x, gs.Uniform(bits=8)).decode())
    assert os.listdir(path.parent) == [path.name]


def test_nothing_to_resume_is_a_beginning(x, path):
    store = gs.compress(x, gs.Uniform(bits=4), path, resume=True)
    again = gs.compress(x, gs.Uniform(bits=4), path, resume=True)
    assert torch.equal(store._tensors[0], again._tensors[0])


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"x": "other"}, "sample was"),
        ({"x": "longer"}, "source was 'tensor, 137 x 21 float32', now 'tensor, 138 x 21 float32'"),
        ({"codec": gs.Uniform(bits=8)}, "codec was"),
        ({"sample": 60}, "sample was '50 rows"),
        ({"seed": 9}, "sample was '50 rows"),
        ({"block": 20}, "block was 10, now 20"),
        ({"dtype_out": torch.bfloat16}, "dtype was"),
    ],
)
def test_another_run_is_not_continued(x, path, changed, told):
    sources = {"other": x + 1, "longer": torch.cat([x, x[:1]])}
    interrupt(x, gs.Uniform(bits=4), path, sample=50)
    settings = {"codec": gs.Uniform(bits=4), "sample": 50, "block": 10} | changed
    made = sources.get(settings.pop("x", ""), x)
    before = hidden(path, "partial").read_bytes()
    with pytest.raises(
        ValueError, match="`resume` needs the source, codec and sample of the interrupted run"
    ) as caught:
        gs.compress(made, settings.pop("codec"), path, resume=True, **settings)
    assert told in str(caught.value)
    assert hidden(path, "partial").read_bytes() == before  # the interrupted run can still be continued


def test_a_file_that_was_changed_since_is_another_source(x, path, tmp_path):
    np.save(tmp_path / "x.npy", x.numpy())
    interrupt(tmp_path / "x.npy", gs.Uniform(bits=4), path, sample=5)
    changed = x.numpy().copy()
    changed[0] += 1  # not in the sample
    np.save(tmp_path / "x.npy", changed)
    with pytest.raises(ValueError, match=r"source was 'x\.npy"):
        gs.compress(tmp_path / "x.npy", gs.Uniform(bits=4), path, sample=5, block=10, resume=True)


@pytest.mark.parametrize("damage", ["block 2", "cut off", "half a line", "a block too many"])
def test_only_blocks_with_their_checksum_are_kept(x, path, damage):
    codec = gs.Uniform(bits=8)
    whole = gs.compress(x, codec, path.with_name("whole.gsf"), block=10)
    interrupt(x, codec, path, 60)
    partial, journal = hidden(path, "partial"), hidden(path, "journal")
    if damage == "block 2":
        data = bytearray(partial.read_bytes())
        at = data.find(whole._tensors[0].view(137, -1)[25].numpy().tobytes())
        assert at > 0
        data[at] ^= 1
        partial.write_bytes(data)
    elif damage == "cut off":
        partial.write_bytes(partial.read_bytes()[:700])
    elif damage == "half a line":
        journal.write_text(journal.read_text()[:-3])
    else:
        journal.write_text(journal.read_text() + "00000000\n" * 20)
    store = gs.compress(x, codec, path, block=10, resume=True)
    assert path.read_bytes() == path.with_name("whole.gsf").read_bytes()
    assert torch.equal(store.decode(), whole.decode())


def test_a_journal_that_cannot_be_read(x, path):
    interrupt(x, gs.Uniform(bits=4), path)
    hidden(path, "journal").write_text("what is this?\n")
    with pytest.raises(ValueError, match="`resume` needs a readable journal"):
        gs.compress(x, gs.Uniform(bits=4), path, block=10, resume=True)


def test_a_full_disk_can_be_resumed_from(x, path, monkeypatch):
    put, count = Partial._put, 0

    def full(self, data, at):
        nonlocal count
        count += 1
        if count > 10:
            raise OSError(28, "No space left on device")
        put(self, data, at)

    monkeypatch.setattr(Partial, "_put", full)
    with pytest.raises(OSError, match="No space left"):
        gs.compress(x, gs.Uniform(bits=4), path, block=10)
    monkeypatch.undo()
    lines = hidden(path, "journal").read_text().splitlines()
    assert json.loads(lines[0])["block"] == 10 and len(lines) == 1 + 3  # three tensors for each block
    store = gs.compress(x, gs.Uniform(bits=4), path, block=10, resume=True)
    assert torch.equal(store.decode(), gs.compress(x, gs.Uniform(bits=4)).decode())


def test_an_older_file_stays_until_the_new_one_is_complete(x, path):
    gs.compress(x, gs.Uniform(bits=8), path)
    before = path.read_bytes()
    interrupt(2 * x, gs.Uniform(bits=4), path)
    assert path.read_bytes() == before


def test_two_processes_do_not_write_one_file(x, path):
    with pytest.raises(FileExistsError, match="`out` is being written by another process"):
        gs.compress(lambda: iter([x, *_compressing(x, path)]), gs.Uniform(bits=4), path, block=10, sample=5)


def _compressing(x, path):
    """Rows that are made while the file is being written, by writing it."""
    if hidden(path, "partial").exists():
        gs.compress(x, gs.Uniform(bits=4), path)
    return []


KILLED = """
import sys, time
import numpy as np
import gossamer as gs
x = np.load(sys.argv[1], mmap_mode="r")
def slowly():
    for k in range(0, len(x), 10):
        time.sleep(0.02)
        yield x[k : k + 10]
gs.compress(slowly, gs.Uniform(bits=4), sys.argv[2], block=10, sample=5)
"""


def test_a_killed_process_is_continued(x, path, tmp_path):
    np.save(tmp_path / "x.npy", x.numpy())
    process = subprocess.Popen([sys.executable, "-c", KILLED, str(tmp_path / "x.npy"), str(path)])
    journal = hidden(path, "journal")
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and process.poll() is None:
        if journal.exists() and journal.read_text().count("\n") > 3:
            break
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL and not path.exists()
    lines = journal.read_text().count("\n")
    store = gs.compress(lambda: iter(x.split(10)), gs.Uniform(bits=4), path, block=10, sample=5, resume=True)
    assert lines > 3 and torch.equal(store.decode(), gs.compress(x, gs.Uniform(bits=4)).decode())
