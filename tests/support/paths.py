"""Forces a path through the library. The only file of the tests that knows where the library decides on one."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from gossamer import kernels
from gossamer.layers import rules

if kernels.native:
    from gossamer.kernels import cpu_chain

needs_native = pytest.mark.skipif(kernels.native is None, reason="the native module is not in use")


@contextlib.contextmanager
def forced(least: int | None = None, tile_elements: int | None = None) -> Iterator[None]:
    """Within this context, layers take fused ops from `least` elements on, and kernels work in tiles of so many.

    `least=1`: small tensors go the way of large ones, without kernels through the references of the fused ops;
    a huge one: torch's own ops. None: as it is.
    """
    with pytest.MonkeyPatch.context() as patch:
        if least is not None:
            patch.setattr(rules, "LEAST_PASS", least)
            patch.setattr(rules, "LEAST_DROPOUT", least)
            if kernels.native is None:
                patch.setattr(rules, "kernels", SimpleNamespace(native="references"))
        if tile_elements is not None and kernels.native:
            patch.setattr(cpu_chain, "TILE_ELEMENTS", tile_elements)
        yield
