"""Forces a path through the library. The only file of the tests that knows where the library decides on one."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from gossamer import native
from gossamer.quiet_pyg import importing_pyg

with importing_pyg():
    from gossamer.engine import gradient, rules
    from gossamer.engine.int8 import engine as int8_engine
if native.library:
    from gossamer.backends.cpu import _saved_epilogue

needs_native = pytest.mark.skipif(native.library is None, reason="the native module is not in use")


IN_USE = dataclasses.asdict(rules.least)


def nothing_too_small() -> contextlib.AbstractContextManager[None]:
    """Convolutions of few messages on our kernels, and small tensors in few bits and in int8."""
    return rules.forced(saved=2**10, int8=2**10, messages=0)


def int8_for_any_size() -> contextlib.AbstractContextManager[None]:
    return rules.forced(int8=1)


def sizes_of_users() -> contextlib.AbstractContextManager[None]:
    return rules.forced(**IN_USE)


@contextlib.contextmanager
def forced(
    least: int | None = None, tile_elements: int | None = None, requests: bool = True, together: bool = True
) -> Iterator[None]:
    """Within this context, layers take fused ops from `least` elements on, and kernels work in tiles of so many.

    `least=1`: small tensors go the way of large ones, without kernels through the references of the fused ops;
    a huge one: torch's own ops. None: as it is. Without `requests` no epilogue makes its gradient as int8 rows;
    unless `together`, a float32 product behind one that does is made by itself.
    """
    sizes = {} if least is None else dict.fromkeys(("fused", "activation", "dropout"), least)
    with pytest.MonkeyPatch.context() as patch, rules.forced(**sizes):
        if least is not None and native.library is None:
            patch.setattr(rules, "native", SimpleNamespace(library="references"))
        if tile_elements is not None and native.library:
            patch.setattr(_saved_epilogue, "TILE_ELEMENTS", tile_elements)
        if not requests:
            patch.setattr(int8_engine, "request_of", lambda x: None)
        if not together:
            patch.setattr(gradient, "multiplies", lambda act: False)
        yield
