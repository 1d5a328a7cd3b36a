"""A file is there whole or as it was before, whatever happens while it is written."""

from __future__ import annotations

import os
import socket
import stat
import subprocess
import sys

import pytest

from gossamer.atomic import replacing


def write(path, text: str) -> None:
    with replacing(path) as temporary, open(temporary, "w") as file:
        file.write(text)


@pytest.mark.parametrize("as_string", [True, False])
def test_writes_and_replaces(tmp_path, as_string):
    path = tmp_path / "file"
    for text in ("first", "second, longer", ""):
        write(str(path) if as_string else path, text)
        assert path.read_text() == text
        assert os.listdir(tmp_path) == ["file"]


def test_a_bare_name_lies_in_the_current_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write("file", "text")
    assert (tmp_path / "file").read_text() == "text"


def test_nobody_sees_it_half_written(tmp_path):
    path = tmp_path / "file"
    write(path, "old")
    with replacing(path) as temporary:
        assert os.path.dirname(temporary) == str(tmp_path)  # same file system: renaming is one step
        with open(temporary, "w") as file:
            file.write("ne")
            file.flush()
            assert path.read_text() == "old"
            file.write("w")
        assert path.read_text() == "old"
    assert path.read_text() == "new"


@pytest.mark.parametrize("error", [OSError, ValueError, KeyboardInterrupt, SystemExit])
@pytest.mark.parametrize("existed", [True, False])
def test_an_error_leaves_everything_as_it_was(tmp_path, error, existed):
    path = tmp_path / "file"
    if existed:
        write(path, "old")
    with pytest.raises(error), replacing(path) as temporary:
        with open(temporary, "w") as file:
            file.write("new")
        raise error
    assert os.listdir(tmp_path) == (["file"] if existed else [])
    assert not existed or path.read_text() == "old"


@pytest.mark.parametrize("step", ["replace", "fsync"])
def test_a_failing_disk(tmp_path, monkeypatch, step):
    path = tmp_path / "file"
    write(path, "old")

    def fail(*args):
        raise OSError("No space left on device")

    monkeypatch.setattr(os, step, fail)
    with pytest.raises(OSError, match="No space left"):
        write(path, "new")
    assert os.listdir(tmp_path) == ["file"]
    assert path.read_text() == "old"


def test_it_reaches_the_disk_before_it_gets_its_name(tmp_path, monkeypatch):
    happened = []
    fsync, replace = os.fsync, os.replace
    monkeypatch.setattr(os, "fsync", lambda fd: (happened.append(stat.S_IFMT(os.fstat(fd).st_mode)), fsync(fd)))
    monkeypatch.setattr(os, "replace", lambda a, b: (happened.append("renamed"), replace(a, b)))
    write(tmp_path / "file", "text")
    assert happened == [stat.S_IFREG, "renamed", stat.S_IFDIR]


def test_killed_while_writing(tmp_path):
    """Nothing can be tidied up then, but the old file is whole."""
    path = tmp_path / "file"
    write(path, "old")
    script = """
import importlib.util, os, sys
spec = importlib.util.spec_from_file_location("atomic", sys.argv[1])  # alone: the package takes seconds to import
atomic = importlib.util.module_from_spec(spec)
spec.loader.exec_module(atomic)
with atomic.replacing(sys.argv[2]) as temporary:
    open(temporary, "w").write("half of the ne")
    os._exit(9)
"""
    source = sys.modules[replacing.__module__].__file__
    assert subprocess.run([sys.executable, "-c", script, source, str(path)], check=False).returncode == 9
    assert path.read_text() == "old"


@pytest.mark.parametrize("umask", [0o022, 0o077, 0o002])
def test_permissions_are_those_of_any_new_file(tmp_path, umask):
    before = os.umask(umask)
    try:
        write(tmp_path / "ours", "text")
        (tmp_path / "theirs").write_text("text")
    finally:
        os.umask(before)
    assert (tmp_path / "ours").stat().st_mode == (tmp_path / "theirs").stat().st_mode


def test_permissions_of_a_replaced_file_stay(tmp_path):
    path = tmp_path / "file"
    write(path, "old")
    path.chmod(0o640)
    write(path, "new")
    assert stat.S_IMODE(path.stat().st_mode) == 0o640


def test_no_folder(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"`path` must lie in an existing folder \(.*nowhere\); create it"):
        write(tmp_path / "nowhere" / "file", "text")


def bind_socket(path) -> None:
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(path))


NO_FILES = {
    "a folder": os.mkdir,
    "a pipe": os.mkfifo,
    "a socket": bind_socket,
    "a device": lambda path: os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(1, 3)),  # as /dev/null
    "a link that leads nowhere": lambda path: os.symlink(path, path),
}


@pytest.mark.parametrize("kind", NO_FILES)
@pytest.mark.parametrize("linked", [False, True])
def test_what_is_no_file_is_refused_and_stays(tmp_path, monkeypatch, kind, linked):
    monkeypatch.chdir(tmp_path)  # a socket's path must be short
    try:
        NO_FILES[kind]("file")
    except PermissionError:
        pytest.skip("only root makes devices")
    if linked:
        os.symlink("file", "link")
    before = sorted(os.listdir()), os.lstat("file")
    with pytest.raises(OSError, match=rf"`path` must be a file \(.*file is {kind}\); choose another name"):
        write("link" if linked else "file", "text")
    after = os.lstat("file")
    assert (after.st_mode, after.st_ino) == (before[1].st_mode, before[1].st_ino)
    assert sorted(os.listdir()) == before[0]


@pytest.mark.parametrize("exists", [True, False])
def test_a_link_stays_and_its_file_is_replaced(tmp_path, exists):
    (tmp_path / "there").mkdir()
    file, link, second = tmp_path / "there" / "file", tmp_path / "link", tmp_path / "second"
    link.symlink_to("there/file")
    second.symlink_to("link")
    if exists:
        write(file, "old")
    write(second, "new")
    assert file.read_text() == "new" and not file.is_symlink()
    assert link.is_symlink() and second.is_symlink()
    assert os.listdir(tmp_path / "there") == ["file"]


def test_a_folder_that_is_read_only(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "access", lambda path, mode: not mode & os.W_OK)  # root may write everywhere
    message = rf"`--out` must be where.*{tmp_path} is read-only.*choose another place"
    with pytest.raises(PermissionError, match=message), replacing(tmp_path / "file", "--out"):
        pass
    assert os.listdir(tmp_path) == []
