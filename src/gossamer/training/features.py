"""The features that a run trains on, in the codes that its recipe names."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ..features import FeatureStore, compress

if TYPE_CHECKING:
    from torch_geometric.data import Data


def with_features(data: Data | Sequence[Data], codec: Any, sampled: bool, progress: bool) -> Data:
    """A copy of `data` with its features encoded; for training on the whole graph they are decoded again."""
    if isinstance(data, Sequence):
        raise ValueError(
            f"`features` of a recipe must be left out for a list of graphs (got {codec!r}): these are batched as they "
            "are"
        )
    encoded = copy.copy(data)
    store = data.x
    if not isinstance(store, FeatureStore):
        store = compress(data.x, codec, progress=progress)
    elif store.codec != codec:
        raise ValueError(
            f"`data.x` must be encoded as the recipe says, by {codec!r} (it is encoded by {store.codec!r}); leave "
            "`features` out of the recipe, or encode the original features again"
        )
    encoded.x = store if sampled else store.decode()
    return encoded
