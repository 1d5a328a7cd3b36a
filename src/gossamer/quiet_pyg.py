"""PyG is imported when it is first needed, and without its warnings.

    with importing_pyg():
        from torch_geometric.nn import GCNConv

Importing PyG takes a second or two, and what only runs exported models needs none of it. PyG also scripts some of its
own classes at that moment, which newer torch versions call deprecated: not a warning that a user of this library can
act on, and under `python -W error` a failed import.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator


@contextlib.contextmanager
def importing_pyg() -> Iterator[None]:
    """A block that imports PyG, with all warnings off."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
