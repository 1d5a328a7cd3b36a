"""Files appear whole or not at all: written beside their place, flushed to the disk, then renamed over it."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[str]:
    """Yield a temporary name; on success it replaces `path`, on an error it is removed and `path` stays as it was."""
    path = Path(path)
    if not path.parent.is_dir():
        raise FileNotFoundError(f"`path` must lie in an existing folder (there is no folder {path.parent}); create it")
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
