"""Downloads: the result is either a complete folder, or an error that says what to do instead."""

from __future__ import annotations

import os
import shutil
import socket
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from .folders import data_folder, data_folder_hint, partial_folder
from .info import DatasetUnavailable

TIMEOUT_SECONDS = 20.0  # without a byte, not for the whole download
_T = TypeVar("_T")

# What to use instead where a set cannot be downloaded: a generated set, or the name of a local file.
ALTERNATIVES = {
    "ogbn-arxiv": "arxiv-like",
    "ogbn-products": "products-like",
    "ogbn-proteins": "products-like",
    "reddit": "products-like",
    "reddit2": "products-like",
    "flickr": "arxiv-like",
    "yelp": "yelp-like",
    "amazon-products": "products-like",
    "zinc": "zinc12k_rebuilt",
    "amazon-photo": "amazon_computers",
    "coauthor-cs": "coauthor_physics",
}


@contextmanager
def socket_timeout(seconds: float = TIMEOUT_SECONDS) -> Iterator[None]:
    """New sockets give up after `seconds` of silence; the previous default comes back afterwards."""
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(seconds)
    try:
        yield
    finally:
        socket.setdefaulttimeout(before)


def fetch(name: str, tried: str, folder: Path, read: Callable[[str], _T]) -> _T:
    """`read(folder)`, where `read` downloads what is not there.

    A folder that exists is used as it is, so files may be placed by hand. Otherwise `read` works in a hidden sibling
    that is renamed when it has succeeded: a broken download leaves nothing that the next attempt would take for whole.
    """
    placed = folder.exists()
    work = folder if placed else partial_folder(folder)
    try:
        with socket_timeout(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # warnings of other packages, which a user of this one cannot act on
            work.mkdir(parents=True, exist_ok=True)
            result = read(os.fspath(work))
        if not folder.exists():  # another process may have been first
            work.rename(folder)
        return result
    except Exception as error:  # of many kinds: urllib, aiohttp, zipfile, pickle, and the loader's own
        raise DatasetUnavailable(_explain(name, tried, folder, error)) from error
    finally:
        if not placed:
            shutil.rmtree(work, ignore_errors=True)


def _explain(name: str, tried: str, folder: Path, error: Exception) -> str:
    remedies = [
        "connect this machine to the network",
        f"place the files that {tried} downloads in {folder}, laid out as it does",
    ]
    text = f"{type(error).__name__}: {error}".strip(": ").partition("\n")[0]
    remedies.append(instead_of(name))
    return f"dataset {name!r} could not be downloaded by {tried} ({text}). Remedy: " + "; or ".join(remedies)


def instead_of(name: str) -> str:
    """What can be loaded here in the place of `name`."""
    other = ALTERNATIVES.get(name, name.replace("-", "_"))
    local = data_folder()
    if other.endswith("-like"):
        return f"load {other!r}, a generated graph of about that size"
    if local is not None and (local / f"{other}.npz").is_file():
        return f"load 'local:{other}', which is in {local}"
    return "load 'digits', which is always there" + data_folder_hint()
