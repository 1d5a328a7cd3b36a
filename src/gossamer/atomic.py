"""Files appear whole or not at all: written beside their place, flushed to the disk, then renamed over it.

What is not a regular file (a device, a pipe) would be gone after that, so it is refused; a link stays a link, and the
file that it names is replaced.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path

KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFLNK: "a link that leads nowhere",
}


def destination(path: str | os.PathLike[str], name: str = "path") -> Path:
    """The place of the file that will be written to `path`, behind all links; raises where none can be.

    `name` is that of the argument, for messages.
    """
    place = Path(os.path.realpath(path))
    if not place.parent.is_dir():
        raise FileNotFoundError(
            f"`{name}` must lie in an existing folder (there is no folder {place.parent}); create it"
        )
    check_writable(place.parent, name)
    try:
        kind = stat.S_IFMT(os.lstat(place).st_mode)
    except FileNotFoundError:
        return place
    if kind != stat.S_IFREG:
        error = IsADirectoryError if kind == stat.S_IFDIR else FileExistsError
        raise error(f"`{name}` must be a file ({place} is {KINDS.get(kind, 'none')}); choose another name")
    return place


def check_folder(folder: Path, name: str) -> None:
    """Raise unless `folder` is one in which files can be written, or can be created."""
    nearest = folder.absolute()
    while not nearest.exists():
        nearest = nearest.parent
    if not nearest.is_dir():
        raise NotADirectoryError(f"`{name}` must be a folder ({nearest} is a file); choose another name")
    check_writable(nearest, name)


def check_writable(folder: Path, name: str) -> None:
    if not os.access(folder, os.W_OK | os.X_OK):
        raise PermissionError(
            f"`{name}` must be where files can be written (the folder {folder} is read-only for this user); choose "
            "another place, or change its permissions"
        )


@contextlib.contextmanager
def replacing(path: str | os.PathLike[str], name: str = "path") -> Iterator[str]:
    """Yield a temporary name; on success it replaces `path`, on an error it is removed and `path` stays as it was."""
    path = destination(path, name)
    temporary = str(path.with_name(f".{path.name}.{secrets.token_hex(8)}"))
    # created as open() would, so that the umask decides who may read it; tempfile would let the owner alone
    os.close(os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
    try:
        if path.exists():
            shutil.copymode(path, temporary)
        mode = os.stat(temporary).st_mode
        yield temporary
        # safetensors puts a file of its own there, which only the owner may read
        os.chmod(temporary, stat.S_IMODE(mode))
        put_in_place(temporary, path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
        raise


def put_in_place(temporary: str | os.PathLike[str], path: Path) -> None:
    """Flush a finished file to the disk and rename it over `path`."""
    _sync(temporary)
    os.replace(temporary, path)
    _sync(path.parent)


def _sync(path: str | os.PathLike[str]) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
