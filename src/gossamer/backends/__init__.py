"""Fast kernels for the ops: one package per device, and in it one file per page of `ops/`, under the same name."""

from __future__ import annotations

import importlib

from .. import native


def bind() -> None:
    """Give the ops every kernel that this machine can run."""
    if native.library is not None:
        try:
            importlib.import_module(".cpu", __name__)
        except AttributeError as error:
            native.explain(error)
            raise
